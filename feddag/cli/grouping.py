"""feddag sign | group: who belongs together, from one small file of each client."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddag.cli.common import console
from feddag.console import print_line, show_table
from feddag.errors import FeddagError
from feddag.files import write_atomically

if TYPE_CHECKING:  # help must not wait for NumPy
    from feddag.client.signature import Signature

FUSION_NAMES = ("clarity", "mlp", "projected", "data", "gradient", "stacked")
"""As `feddag.server.grouping` has them (a test compares): help must not wait for that module."""


MOST_SHOWN = 1_000  # files whose groups are listed one by one
MOST_WHOLE = 10_000
"""Signatures that are held as they are; of more files each is sketched as it is read."""


def sign(
    data: Annotated[
        list[Path], typer.Argument(metavar="DATA.npz...", help="x: samples of any shape; y: whole numbers")
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="default: DATA.sig; a folder for several")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="of all clients together; default: those in y")] = None,
    vectors: Annotated[int, typer.Option(help="principal vectors per class")] = 3,
    inputs: Annotated[str, typer.Option(help="standardised (sample by sample) or raw")] = "standardised",
    sketch: Annotated[int, typer.Option(metavar="N", min=0, help="project onto N dimensions; 0: not")] = 0,
) -> None:
    """Sign clients' data: one small file each that it is grouped by.

    It is made where the data are, and holds neither samples nor labels. Files are read one after the other.
    """
    from feddag.client.signature import signature
    from feddag.data.readers import read_npz

    if len(data) > 1 and out is not None and not out.is_dir():
        raise FeddagError(f"--out {out} is not a folder, and there are {len(data)} files to sign")
    for file in data:
        samples, _ = read_npz(file)
        try:
            made = signature(samples.x, samples.y, classes, vectors=vectors, inputs=inputs, sketch=sketch)  # type: ignore[arg-type]
        except FeddagError as error:
            raise FeddagError(f"{file}: {error}") from None
        target = out or file.with_suffix(".sig")
        target = target / file.with_suffix(".sig").name if target.is_dir() else target
        made.save(target)
        kinds, kept, features = made.vectors.shape
        of_what = "sketched dimensions" if sketch else "features"
        content = f"{kinds} classes x {kept} vectors x {features} {of_what}, counts, reliabilities and looks"
        print_line(console, f"{target}: {target.stat().st_size:,} bytes; {content}")


def group(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE.sig...", help="what `feddag sign` wrote, one per client; or folders")
    ],
    fusion: Annotated[str, typer.Option(help=" | ".join(FUSION_NAMES))] = FUSION_NAMES[0],
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="also write the groups here")] = None,
) -> None:
    """Group clients by their signatures.

    It says who belongs together, and which group can teach which.
    """
    from feddag.server.grouping import group as group_signatures

    paths = [path for file in files for path in (sorted(file.glob("*.sig")) if file.is_dir() else [file])]
    if not paths:
        raise FeddagError(f"there is no .sig file in {', '.join(map(str, files))}")
    names = [str(path) for path in paths]
    found = group_signatures(read_signatures(paths), fusion=fusion, names=names)  # type: ignore[arg-type]
    assert found.graph_ is not None
    sources = [found.graph_.sources_of(learner) for learner in range(found.clusters_)]
    groups: list[int] = found.labels_.tolist()
    rows = [[name, str(number)] for name, number in zip(names, groups, strict=True)]
    if len(rows) <= MOST_SHOWN:
        show_table(console, "groups", ("file", "group"), rows)
    else:
        sizes = [[str(number), f"{groups.count(number):,}"] for number in range(found.clusters_)]
        show_table(console, "groups", ("group", "clients"), sizes, texts=0)
    print_line(console, f"{found.verdict_} ({len(paths)} clients, cut at distance {found.threshold_:.3f})")
    for learner, teachers in enumerate(sources):
        if teachers:
            print_line(console, f"group {learner} can learn from {', '.join(map(str, teachers))}")
    if json_file:
        kept = {"fusion": fusion, "clusters": found.clusters_, "threshold": found.threshold_, "noise": found.noise_}
        kept |= {"verdict": found.verdict_, "stability": found.stability_, "sureness": found.sureness_.tolist()}
        content = {**kept, "groups": dict(zip(names, groups, strict=True)), "sources": sources}
        write_atomically(json_file, json.dumps(content, indent=1) + "\n")


def read_signatures(paths: Sequence[Path]) -> list["Signature"]:
    """The signatures of these files, one after the other; of many only sketches are held, of a tenth of the size."""
    from feddag.client.signature import Signature

    if len(paths) <= MOST_WHOLE:
        return [Signature.load(path) for path in paths]
    made = []
    for path in paths:
        whole = Signature.load(path)
        made.append(whole if whole.vectors.dtype == "float16" else whole.sketched())
    return made
