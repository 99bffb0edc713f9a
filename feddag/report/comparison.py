"""placeholder"""

from typing import Any


def comparison_document(runs: Any) -> dict[str, Any]:
    return {}
