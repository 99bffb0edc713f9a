"""One HTML page that needs nothing else: style, program, plotly.js and data are all inside it."""

import html
import json
from importlib.resources import files
from typing import Any

NO_NETWORK = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:;"
    " base-uri 'none'; form-action 'none'"
)


def page(document: dict[str, Any], live: bool = False) -> str:
    """The page of a document. A live one asks the server it came from for news; any other asks nobody for anything."""
    rules = NO_NETWORK + ("; connect-src 'self'" if live else "")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{rules}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(writable(document["title"]))}</title>
<link rel="icon" href="data:,">
<style>
{_text("page.css")}
</style>
</head>
<body{" data-live" if live else ""}>
<a class="skip" href="#content">to the content</a>
<header><h1></h1><p id="next"></p><p id="subtitle"></p><p id="state" role="status"></p></header>
<nav aria-label="sections"></nav>
<main id="content"><dl id="tiles"></dl></main>
<noscript>This page draws itself with JavaScript, which is switched off.</noscript>
<script type="application/json" id="document">{as_json(document)}</script>
<script>{plotly()}</script>
<script>
{_text("page.js")}
</script>
</body>
</html>
"""


def as_json(document: dict[str, Any]) -> str:
    """JSON that can stand inside a page: no name in it can end the element that holds it, or is half a character.

    >>> as_json({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return writable(text)


def writable(text: str) -> str:
    """Text that any file can hold: half a character, which JSON may hold, becomes a question mark.

    >>> writable("a\\ud800")
    'a?'
    """
    return text.encode("utf-8", "replace").decode()


def _text(name: str) -> str:
    return (files("feddag.report") / name).read_text(encoding="utf-8")


def plotly() -> str:
    """The copy of plotly.js that comes with plotly, read without importing plotly: that alone takes a second."""
    return (
        (files("plotly") / "package_data" / "plotly.min.js")
        .read_text(encoding="utf-8")
        .replace("</script", "<\\/script")
    )
