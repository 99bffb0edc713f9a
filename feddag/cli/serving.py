"""feddag predict | export: the models of a finished run, used here or taken elsewhere."""

import json
from pathlib import Path
from typing import Annotated

import typer

from feddag.cli.common import JsonOption, console
from feddag.cli.reports import RunDirectory
from feddag.console import print_line, show_table
from feddag.errors import FeddagError
from feddag.files import write_atomically

FORMATS = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx"}
"""As `feddag.runner.export` has them (a test compares): help must not wait for that module."""

ClientOption = Annotated[int | None, typer.Option("--client", metavar="N", help="the model that this client uses")]
ClusterOption = Annotated[int | None, typer.Option("--cluster", metavar="N", help="or the model of this cluster")]
TunedOption = Annotated[bool, typer.Option("--tuned", help="the model that the client chose at the end (personal)")]
TrustOption = Annotated[bool, typer.Option("--trust", help="import the run's own method or model (module:name)")]


def predict(
    directory: RunDirectory,
    data: Annotated[Path, typer.Argument(metavar="DATA.npz", help="x: samples as the run's; y: labels, if known")],
    client: ClientOption = None,
    cluster: ClusterOption = None,
    tuned: TunedOption = False,
    trust: TrustOption = False,
    json_file: JsonOption = None,
) -> None:
    """Say which class each sample of a file belongs to.

    Samples are given as they lie in the file: the run knows how they are normalised.
    """
    _check_whose(client, cluster)
    from feddag.client.evaluate import balanced_accuracy
    from feddag.data.readers import read_inputs
    from feddag.runner.run import load
    from feddag.runner.serving import class_numbers

    x, y = read_inputs(data)
    model = load(directory, trust).model(client, cluster=cluster, tuned=tuned)
    try:
        scores = model.scores(x)
        labels = None if y is None else class_numbers(y, model.classes)
    except FeddagError as error:
        raise FeddagError(f"{data}: {error}") from None
    if labels is not None and len(labels) != len(scores):
        raise FeddagError(f"{data}: there are {len(scores)} samples and {len(labels)} labels")
    best, shares = scores.argmax(axis=1), model.probabilities(scores)
    rows = [[str(n), model.classes[k], f"{shares[n, k]:.3f}"] for n, k in enumerate(best.tolist())]
    show_table(console, "", ("sample", "class", "probability"), rows, 2)
    if labels is not None and len(labels):
        print_line(
            console, f"balanced accuracy {balanced_accuracy(best, labels):.3f} on {len(labels)} labelled samples"
        )
    if json_file:
        named = [model.classes[k] for k in best.tolist()]
        content = {"classes": list(model.classes), "predicted": named, "scores": scores.tolist()}
        write_atomically(json_file, json.dumps(content) + "\n")


def export(
    directory: RunDirectory,
    format: Annotated[str, typer.Option(help=" | ".join(FORMATS))] = "safetensors",
    client: ClientOption = None,
    cluster: ClusterOption = None,
    tuned: TunedOption = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="default: RUN-client-N.*")] = None,
    trust: TrustOption = False,
) -> None:
    """Write a client's or a cluster's model as one file.

    It takes samples as they lie in files, as float32, and gives the run's own scores.
    """
    _check_whose(client, cluster)
    from feddag.runner.export import export as export_model
    from feddag.runner.run import load

    whose = f"client-{client}{'-tuned' * tuned}" if cluster is None else f"cluster-{cluster}"
    target = out or Path(f"{directory.resolve().name}-{whose}{FORMATS.get(format, '')}")
    written = export_model(load(directory, trust), target, format, client=client, cluster=cluster, tuned=tuned)
    print_line(console, f"{written}: {written.stat().st_size:,} bytes")


def _check_whose(client: int | None, cluster: int | None) -> None:
    if (client is None) == (cluster is None):
        raise FeddagError("say either --client N or --cluster N: whose model is meant")
