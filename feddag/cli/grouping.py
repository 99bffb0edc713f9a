"""feddag sign | group: who belongs together, from one small file of each client."""

import json
from pathlib import Path
from typing import Annotated

import typer

from feddag.cli.common import console
from feddag.console import print_line, show_table
from feddag.errors import FeddagError
from feddag.files import write_atomically

FUSION_NAMES = ("clarity", "mlp", "projected", "data", "gradient", "stacked")
"""As `feddag.server.grouping` has them (a test compares): help must not wait for that module."""


def sign(
    data: Annotated[Path, typer.Argument(metavar="DATA.npz", help="x: samples of any shape; y: whole numbers")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="default: DATA.sig")] = None,
    classes: Annotated[int | None, typer.Option(help="of all clients together; default: those in y")] = None,
    vectors: Annotated[int, typer.Option(help="principal vectors per class")] = 3,
    inputs: Annotated[str, typer.Option(help="standardised (sample by sample) or raw")] = "standardised",
) -> None:
    """Sign a client's data: one small file that it is grouped by.

    It is made where the data are, and holds neither samples nor labels.
    """
    from feddag.client.signature import signature
    from feddag.data.readers import read_npz

    samples, _ = read_npz(data)
    try:
        made = signature(samples.x, samples.y, classes, vectors=vectors, inputs=inputs)  # type: ignore[arg-type]
    except FeddagError as error:
        raise FeddagError(f"{data}: {error}") from None
    target = out or data.with_suffix(".sig")
    made.save(target)
    kinds, kept, features = made.vectors.shape
    content = f"{kinds} classes x {kept} vectors x {features} features, counts, reliabilities and looks"
    print_line(console, f"{target}: {target.stat().st_size:,} bytes; {content}")


def group(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE.sig...", help="what `feddag sign` wrote, one per client")
    ],
    fusion: Annotated[str, typer.Option(help=" | ".join(FUSION_NAMES))] = FUSION_NAMES[0],
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="also write the groups here")] = None,
) -> None:
    """Group clients by their signatures.

    It says who belongs together, and which group can teach which.
    """
    from feddag.client.signature import Signature
    from feddag.server.grouping import group as group_signatures

    names = [str(file) for file in files]
    signatures = [Signature.load(file) for file in files]
    found = group_signatures(signatures, fusion=fusion, names=names)  # type: ignore[arg-type]
    assert found.graph_ is not None
    sources = [found.graph_.sources_of(learner) for learner in range(found.clusters_)]
    groups: list[int] = found.labels_.tolist()
    rows = [[name, str(number)] for name, number in zip(names, groups, strict=True)]
    show_table(console, "groups", ("file", "group"), rows)
    print_line(console, f"{found.verdict_} ({len(files)} clients, cut at distance {found.threshold_:.3f})")
    for learner, teachers in enumerate(sources):
        if teachers:
            print_line(console, f"group {learner} can learn from {', '.join(map(str, teachers))}")
    if json_file:
        kept = {"fusion": fusion, "clusters": found.clusters_, "threshold": found.threshold_, "noise": found.noise_}
        kept |= {"verdict": found.verdict_, "stability": found.stability_, "sureness": found.sureness_.tolist()}
        content = {**kept, "groups": dict(zip(names, groups, strict=True)), "sources": sources}
        write_atomically(json_file, json.dumps(content, indent=1) + "\n")
