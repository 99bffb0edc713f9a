"""A finished run, read back from its directory: what was asked, what came out, and the models."""

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from feddag.client.trainer import load_weights
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.models import DualEncoder, MixtureOfModels, Model, ModelSpec, default_model
from feddag.records import ResultRecord, RoundRecord
from feddag.runner.checked import own_code, parse_experiment
from feddag.runner.directory import Checkpoint, RunDirectory
from feddag.runner.results import Accuracy
from feddag.runner.serving import ServedModel, read_format
from feddag.weights import Choice, ClientId, Mixture, Own, Weights, kept, overlaid

MOST_FEATURES = 2**31  # of a sample; images of 8 megapixels have 2**25
LARGE = 2**20  # features or classes: memory enough to look twice before it is taken

Network = Model | DualEncoder | MixtureOfModels


class Run:
    """A finished run: what was asked, what came out, and the models."""

    def __init__(
        self, directory: Path, experiment: Experiment, result: ResultRecord, keep_alive: object = None
    ) -> None:
        self.directory = directory
        self.experiment = experiment
        self.result = result
        self._keep_alive = keep_alive  # a temporary directory lives as long as its run

    @property
    def accuracy(self) -> Accuracy:
        """The headline: mean over the last tenth of the rounds."""
        block = self.result["accuracy"]
        return Accuracy(block["mean"], block["std"], block["worst_decile"], tuple(block["per_client"]))

    @property
    def clusters(self) -> list[int | None] | None:
        """The group of each client, None for one that has none; None for a method that makes no groups."""
        return self.result["clusters"]

    @property
    def truth(self) -> list[int] | None:
        """The true group of each client, where the partition has one."""
        return self.result["truth"]

    @property
    def history(self) -> list[RoundRecord]:
        """A record for each round."""
        return RunDirectory(self.directory).read_history(self.result)

    def model(self, client: ClientId) -> ServedModel:
        """The model this client ended with, ready to use: it takes samples as they lie in files.

        `model.scores(x)` gives a score for each of `model.classes`, `model.predict(x)` the names of the likeliest.
        """
        saved = self._checkpoint(client)
        return self._served(saved, self._network_of(saved, client))

    def network(self, client: ClientId) -> Network:
        """The bare network of this client, for normalised samples (images with their channels first)."""
        return self._network_of(self._checkpoint(client), client)

    def _served(self, saved: Checkpoint, network: Network) -> ServedModel:
        form = read_format(RunDirectory(self.directory).serving, self._spec(saved.tree))
        if form is None:
            raise FeddagError(
                f"the run in '{self.directory}' is of an older version of feddag and has no serving.json, so that its "
                "models cannot take samples as they are; run.network(client) gives a network for normalised samples"
            )
        return ServedModel(network, form)

    def _checkpoint(self, client: ClientId) -> Checkpoint:
        if not 0 <= client < self.result["clients"]:
            raise FeddagError(f"client = {client} is not one of the {self.result['clients']} clients")
        saved = RunDirectory(self.directory).load_checkpoint()
        if saved is None or saved.tree["round"] != self.result["rounds"]:
            raise FeddagError(f"run directory '{self.directory}' has lost its last checkpoint, and with it the models")
        return saved

    def _network_of(self, saved: Checkpoint, client: ClientId) -> Network:
        try:
            return self._loaded(saved, client)
        except FeddagError:
            raise
        except Exception as error:  # a checkpoint can be whole and still not hold what this method saves
            raise FeddagError(
                f"run directory '{self.directory}' holds no model of client {client} that method = "
                f"'{self.experiment.method}' could use"
            ) from error

    def _loaded(self, saved: Checkpoint, client: ClientId) -> Network:
        method = self.experiment.method_class(self.experiment.settings)
        method.load_state_dict(saved.tree["method"])
        method.held = saved.held
        spec = self._spec(saved.tree)
        served = method.model_of(client)
        if isinstance(served, Mixture):
            members = [_loaded(spec, weights) for weights in served.models]
            return MixtureOfModels(members, served.shares).eval()
        if isinstance(served, Choice):
            if client not in saved.tree["chosen"]:
                raise FeddagError(f"client = {client} has not chosen among its {len(served.models)} models yet")
            served = served.models[saved.tree["chosen"][client]]
        layers = served if isinstance(served, tuple) else (served,)
        if not saved.tree["holds_states"] and any(isinstance(layer, Own) for layer in layers):
            raise FeddagError(f"client = {client} keeps its model on its own machine")
        state = saved.states.get(client, (0, {}))[1]
        return _loaded(spec, overlaid(kept(state, x.name) if isinstance(x, Own) else x for x in layers))

    def _spec(self, tree: Mapping[str, Any]) -> ModelSpec:
        """The network that the experiment names; what a checkpoint says about it only has to agree."""
        told = ModelSpec(*tree["model"])
        if not told.shape or math.prod(told.shape) > MOST_FEATURES:
            raise FeddagError(f"the checkpoints in '{self.directory}' are of samples of the shape {told.shape}")
        name = self.experiment.model or default_model(told.shape)
        meant = replace(told, name=name, encoders=self.experiment.method_class.encoders)
        if told != meant:
            raise FeddagError(
                f"the checkpoints in '{self.directory}' are of another network than the experiment's model = '{name}'"
            )
        return meant

    def save(self, directory: str | Path) -> None:
        """Copy everything the run left into another directory."""
        target = Path(directory)
        if target.exists() and any(target.iterdir()):
            raise FeddagError(f"directory '{target}' is not empty; give a new one")
        shutil.copytree(self.directory, target, dirs_exist_ok=True, ignore=_not_to_copy)


def _not_to_copy(folder: str, names: list[str]) -> list[str]:
    """The lock, and whatever is neither a plain file nor a folder: a link's target is not part of the run."""
    paths = [Path(folder, name) for name in names]
    return [path.name for path in paths if path.name == ".lock" or path.is_symlink() or not _is_plain(path)]


def _is_plain(path: Path) -> bool:
    return path.is_file() or path.is_dir()


def _loaded(spec: ModelSpec, weights: Weights) -> Model | DualEncoder:
    if ":" not in spec.name and max(spec.num_classes, math.prod(spec.shape)) > LARGE:
        with torch.device("meta"):  # takes no memory, whatever a checkpoint says; but a while to get ready
            _check_shapes(spec.build(), weights)
    model = spec.build().eval()
    _check_shapes(model, weights)
    load_weights(model, weights)
    return model


def _check_shapes(model: torch.nn.Module, weights: Weights) -> None:
    for name, value in model.state_dict().items():
        if name not in weights or weights[name].shape != value.shape:
            raise ValueError(f"there are no weights '{name}' of the shape {tuple(value.shape)}")


def load(directory: str | Path, trust: bool = False) -> Run:
    """A finished run from its directory.

    A run whose method or model is code of its own (`module:name`) is refused unless you `trust` it: that code is
    imported, and whoever wrote the directory chose its name.
    """
    files = RunDirectory(Path(directory))
    result = files.read_result()
    if result is None:
        raise FeddagError(f"'{directory}' holds no finished run: it has no result.json")
    experiment = recorded_experiment(files, trust)
    files.read_history(result)  # refuses one that is not what the result was made of
    return Run(files.path, experiment, result)


def recorded_experiment(files: RunDirectory, trust: bool = False) -> Experiment:
    """The experiment of a run directory. Before one is refused that names code of its own, nothing is imported."""
    try:
        values, _ = parse_experiment(files.experiment)
    except FileNotFoundError:
        raise FeddagError(f"'{files.path}' is not a run directory: it has no experiment.toml") from None
    named = own_code(values)
    if named and not trust:
        raise FeddagError(
            f"the run in '{files.path}' uses code that does not come with feddag ({', '.join(named)}), which would be "
            "imported; if you trust it, say trust=True in Python or --trust on the command line"
        )
    try:
        return Experiment(**values)
    except FeddagError as error:
        raise FeddagError(f"'{files.experiment}': {error}") from None
