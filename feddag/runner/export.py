"""A served model as one file: for feddag itself, for PyTorch without feddag, or for whatever runs ONNX.

What is exported takes what `run.model(...)` takes, as float32, and gives the same scores. Class names travel with it.
"""

import io
import json
import logging
import math
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save

from feddag.encoders import channels_first
from feddag.errors import FeddagError, nearest, one_line, short
from feddag.files import check_plain, write_atomically
from feddag.models import DualEncoder, MixtureOfModels, Model, ModelSpec
from feddag.runner.checked import check, damaged, from_json
from feddag.runner.finished import MOST_FEATURES, Run, built
from feddag.runner.serving import ServedModel, checked_format
from feddag.runner.trees import LARGEST_TREE

FORMATS = ("safetensors", "torch-export", "onnx")
NETWORK = "network."  # before the names of weights; mean and std stand beside them


def export(
    run: Run,
    path: str | Path,
    format: str,
    *,
    client: int | None = None,
    cluster: int | None = None,
    tuned: bool = False,
) -> Path:
    """Write the model of a client or a cluster as one file, whole or not at all; `tuned`: see `Run.model`."""
    if format not in FORMATS:
        allowed = ", ".join(FORMATS)
        raise FeddagError(f"format = '{short(format)}' is not one of {allowed}{nearest(format, FORMATS)}")
    if format == "onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        raise FeddagError("format = 'onnx' needs packages that are not installed: pip install 'feddag[onnx]'")
    model = run.model(client, cluster=cluster, tuned=tuned)
    about = json.dumps({**model.form.as_record(), **_network_of(run, model)}, ensure_ascii=False)
    try:
        content = {"safetensors": _safetensors, "torch-export": _exported, "onnx": _onnx}[format](model, about)
    except Exception as error:  # a network of the user's own may do what cannot be written down
        reason = short(one_line(str(error) or type(error).__name__), 200)
        raise FeddagError(f"the model cannot be exported as {format}: {reason}") from error
    write_atomically(Path(path), content)
    return Path(path)


def _network_of(run: Run, model: ServedModel) -> dict[str, Any]:
    shares = model.network.shares if isinstance(model.network, MixtureOfModels) else None
    return {"model": run.result["model"], "encoders": run.experiment.encoders, "shares": shares}


def _safetensors(model: ServedModel, about: str) -> bytes:
    weights = {name: value.contiguous().clone() for name, value in model.state_dict().items()}
    content: bytes = save(weights, metadata={"feddag": about})
    return content


def _program(model: ServedModel) -> torch.export.ExportedProgram:
    """The model as a graph for any number of samples; two in the example, because one would be taken for a constant."""
    example = torch.zeros(2, *model.form.sample_shape)
    return torch.export.export(model, (example,), dynamic_shapes={"x": {0: torch.export.Dim("samples")}})


def _exported(model: ServedModel, about: str) -> bytes:
    file = io.BytesIO()
    torch.export.save(_program(model), file, extra_files={"feddag.json": about})
    return file.getvalue()


def _onnx(model: ServedModel, about: str) -> bytes:
    log = logging.getLogger("torch.onnx")
    level, log.level = log.level, logging.ERROR  # it tells of packages that it could have used
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own old functions
        program = torch.onnx.export(
            _program(model), input_names=["samples"], output_names=["scores"], dynamo=True, verbose=False
        )
    log.setLevel(level)
    assert program is not None
    program.model.metadata_props["feddag"] = about
    content: bytes = program.model_proto.SerializeToString()
    return content


def load_model(path: str | Path, trust: bool = False) -> ServedModel:
    """A model that was exported as safetensors. A network of somebody's own code is refused unless you `trust` it."""
    path = Path(path)
    try:
        check_plain(path, LARGEST_TREE)
        with safe_open(path, framework="pt") as file:
            about = (file.metadata() or {}).get("feddag", "")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise FeddagError(f"'{path}' is missing; it should be a model that feddag exported") from None
    except FeddagError:
        raise
    except Exception as error:  # damage makes the reader raise nearly anything
        raise damaged(path, f"it is no safetensors file ({short(one_line(str(error)))})") from None
    told = from_json(about.encode(), path, "it does not say that feddag exported it")
    form = checked_format(told, path)
    check(dict[str, Any], told, path)
    name, encoders = check(str, told.get("model"), path), check(Literal[1, 2], told.get("encoders"), path)
    shares = check(list[float] | None, told.get("shares"), path)
    if ":" in name and not trust:
        raise FeddagError(
            f"the model in '{path}' uses code that does not come with feddag (model = '{short(name)}'), which would be "
            "imported; if you trust it, say trust=True"
        )
    spec = ModelSpec(name, channels_first(form.sample_shape), len(form.classes), encoders)
    if math.prod(spec.shape) > MOST_FEATURES or (shares is not None and not 0 < len(shares) < 1000):
        raise damaged(path, "its samples are larger than any, or it mixes too many models")
    try:
        return ServedModel(_network(spec, shares, weights), form)
    except FeddagError:
        raise
    except Exception as error:  # weights that do not fit the network make PyTorch raise nearly anything
        raise damaged(path, short(one_line(str(error)), 200)) from error


def _network(
    spec: ModelSpec, shares: list[float] | None, weights: dict[str, torch.Tensor]
) -> Model | DualEncoder | MixtureOfModels:
    own = {name.removeprefix(NETWORK): value for name, value in weights.items() if name.startswith(NETWORK)}
    if shares is None:
        return built(spec, own)
    members = []
    for number in range(len(shares)):
        start = f"models.{number}."
        members.append(built(spec, {name.removeprefix(start): v for name, v in own.items() if name.startswith(start)}))
    return MixtureOfModels(members, shares).eval()
