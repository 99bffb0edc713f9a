"""A finished run, read back from its directory: what was asked, what came out, and the models."""

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from feddag.client.personal import CANDIDATES, COMMON, GROUP, HEAD, TUNED
from feddag.client.signature import Signature
from feddag.client.trainer import load_weights
from feddag.encoders import default_model
from feddag.errors import FeddagError, one_line
from feddag.experiment import Experiment
from feddag.heads import absent_classes, without
from feddag.methods import Method, find_method
from feddag.methods.clustered import ClusteredMethod
from feddag.methods.fedavg import FedAvg
from feddag.methods.feddag import FedDAGStar
from feddag.models import DualEncoder, MixtureOfModels, Model, ModelSpec
from feddag.records import ResultRecord, RoundRecord
from feddag.runner.checked import own_code, parse_experiment
from feddag.runner.directory import Checkpoint, RunDirectory
from feddag.runner.placing import Placement, by_signatures, sign_newcomer
from feddag.runner.results import Accuracy
from feddag.runner.serving import SampleFormat, ServedModel, read_format
from feddag.weights import ADAPTED, HELD, Adapted, Choice, ClientId, Layered, Mixture, Own, Weights, kept

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

    def model(self, client: ClientId | None = None, *, cluster: int | None = None, tuned: bool = False) -> ServedModel:
        """The model that this client, or this cluster, ended with: it takes samples as they lie in files.

        `model.scores(x)` gives a score for each of `model.classes`, `model.predict(x)` the names of the likeliest. With
        `tuned`, it is the model that the client chose after the last round (the field `personal`).
        """
        network, saved = self._found(client, cluster, tuned)
        return ServedModel(network, self._samples(saved))

    def network(self, client: ClientId | None = None, *, cluster: int | None = None, tuned: bool = False) -> Network:
        """The same as a bare network, for normalised samples (images with their channels first)."""
        return self._found(client, cluster, tuned)[0]

    def _found(self, client: ClientId | None, cluster: int | None, tuned: bool) -> tuple[Network, Checkpoint]:
        if (client is None) == (cluster is None):
            raise FeddagError("say either which client's model is wanted, or which cluster's")
        if client is not None and not 0 <= client < self.result["clients"]:
            raise FeddagError(f"client = {client} is not one of the {self.result['clients']} clients")
        if tuned and self.experiment.personal == "none":
            raise FeddagError("nobody has a tuned model in this run: its experiment says personal = 'none'")
        if tuned and client is None:
            raise FeddagError("a cluster has no tuned model: say which client's is wanted")
        if client is not None:
            with self._reading(f"no model of client {client}") as (saved, method):
                network = self._of_client(saved, method, client)
                return self._tuned(saved, method, client, network) if tuned else network, saved
        with self._reading(f"no model of cluster {cluster}") as (saved, method):
            return self._of_cluster(saved, method, cluster), saved

    def signature(self, x: Any, y: Any) -> Signature:
        """What a client with these samples would have sent to be grouped: as they lie in files, labels or class names.

        It is made beside the data, as the run's clients made theirs; nothing else of them is needed to `place` it.
        """
        with self._reading("nothing that a newcomer could be compared with") as (saved, method):
            signing, newcomer = by_signatures(method), self.result["clients"]
            spec, form = self._spec(saved.tree), self._samples(saved)
        return sign_newcomer(signing, self.experiment, spec, form, (x, y), newcomer)  # no fault of the directory's

    def place(self, signature: Signature) -> Placement:
        """The group, and its model, for a client that was not there: by a signature of `run.signature`."""
        with self._reading("nothing that a newcomer could be compared with") as (_, method):
            grouping = by_signatures(method).membership.grouping
            try:
                group, confidence = grouping.placed(signature)
            except FeddagError as error:
                raise FeddagError(f"{error}; run.signature(x, y) makes one that can be compared") from None
        return Placement(group, confidence, None if group is None else self.model(cluster=group))

    @contextlib.contextmanager
    def _reading(self, nothing: str) -> Iterator[tuple[Checkpoint, Method]]:
        """The last checkpoint and the method as it was then; what goes wrong inside is the directory's fault."""
        saved = RunDirectory(self.directory).load_checkpoint()
        if saved is None or saved.tree["round"] != self.result["rounds"]:
            raise FeddagError(f"run directory '{self.directory}' has lost its last checkpoint, and with it the models")
        try:
            method = self.experiment.method_class(self.experiment.settings)
            method.load_state_dict(saved.tree["method"])
            method.held = saved.held
            if isinstance(method, FedDAGStar):
                method.membership.use(seed=self.experiment.seed)
            yield saved, method
        except FeddagError:
            raise
        except Exception as error:  # a checkpoint can be whole and still not hold what this method saves
            cause = one_line(f"{type(error).__name__}: {error}", 200)  # said, as it may be a mistake of our own
            raise FeddagError(
                f"run directory '{self.directory}' holds {nothing} that method = '{self.experiment.method}' could use "
                f"({cause})"
            ) from error

    def _samples(self, saved: Checkpoint) -> SampleFormat:
        form = read_format(RunDirectory(self.directory).serving, self._spec(saved.tree))
        if form is None:
            raise FeddagError(
                f"the run in '{self.directory}' is of an older version of feddag and has no serving.json, so that its "
                "models cannot take samples as they are; run.network(client) gives a network for normalised samples"
            )
        return form

    def _of_client(self, saved: Checkpoint, method: Method, client: ClientId) -> Network:
        spec = self._spec(saved.tree)
        served = method.model_of(client)
        if isinstance(served, Mixture):
            members = [built(spec, self._whole(saved, method, client, layers)) for layers in served.models]
            return MixtureOfModels(members, served.shares).eval()
        if isinstance(served, Choice):
            if client not in saved.tree["chosen"]:
                raise FeddagError(f"client = {client} has not chosen among its {len(served.models)} models yet")
            served = served.models[saved.tree["chosen"][client]]
        if isinstance(served, Adapted):
            served = (served.model, Own(ADAPTED))
        return built(spec, self._whole(saved, method, client, served))

    def _whole(self, saved: Checkpoint, method: Method, client: ClientId, served: Weights | Own | Layered) -> Weights:
        """A client's model, from its layers."""
        layers = served if isinstance(served, tuple) else (served,)
        if not saved.tree["holds_states"] and any(isinstance(layer, Own) and layer != HELD for layer in layers):
            raise FeddagError(f"client = {client} keeps its model on its own machine")
        state = saved.states.get(client, (0, {}))[1]
        model: Weights = {}
        for layer in layers:
            if layer == HELD:
                model = self._answering(saved, method, client, model)
            else:
                model = model | (kept(state, layer.name) if isinstance(layer, Own) else layer)
        return model

    def _answering(self, saved: Checkpoint, method: Method, client: ClientId, model: Weights) -> Weights:
        """A model that answers with classes that the client holds.

        On nodes of their own only clients know these for certain: then with all that anybody told in its cluster.
        """
        if (known := saved.tree.get("classes_held")) is not None:
            return without(model, ~known[client])
        held = method.held_by(client) if saved.tree["holds_states"] else method.held_around(client)
        return without(model, absent_classes(model, held)) if held else model

    def _tuned(self, saved: Checkpoint, method: Method, client: ClientId, group: Network) -> Network:
        """What a client chose, put together from what it keeps and what the server has."""
        if not saved.tree["holds_states"]:
            raise FeddagError(f"client = {client} keeps its tuned model on its own machine")
        federated = method if isinstance(method, FedAvg) and method.whole else FedAvg(FedAvg.Settings())
        if federated is not method:
            federated.load_state_dict(saved.tree["common"])
        return tuned_network(self._spec(saved.tree), group, federated, saved.states.get(client, (0, {}))[1])

    def _of_cluster(self, saved: Checkpoint, method: Method, cluster: int | None) -> Network:
        if not isinstance(method, ClusteredMethod):
            raise FeddagError(f"method = '{self.experiment.method}' has no models of clusters; say which client's")
        served = method.groups.served
        if cluster not in served:
            raise FeddagError(f"cluster = {cluster} is not one of the clusters {', '.join(map(str, served))}")
        return built(self._spec(saved.tree), method.used_in(cluster))

    def _spec(self, tree: Mapping[str, Any]) -> ModelSpec:
        """The network that the experiment names; what a checkpoint says about it only has to agree."""
        told = ModelSpec(*tree["model"])
        if not told.shape or math.prod(told.shape) > MOST_FEATURES:
            raise FeddagError(f"the checkpoints in '{self.directory}' are of samples of the shape {told.shape}")
        name = self.experiment.model or default_model(told.shape)
        if self.experiment.model is None and told.name == "mlp" and len(told.shape) < 3:
            name = told.name  # what vectors and series had in an older version
        meant = replace(told, name=name, encoders=self.experiment.encoders)
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


def built(spec: ModelSpec, weights: Weights) -> Model | DualEncoder:
    """The network with these weights; refuses weights of another shape before it takes much memory."""
    if ":" not in spec.name and max(spec.num_classes, math.prod(spec.shape)) > LARGE:
        with torch.device("meta"):  # takes no memory, whatever a checkpoint says; but a while to get ready
            _check_shapes(spec.build(), weights)
    model = spec.build().eval()
    _check_shapes(model, weights)
    load_weights(model, weights)
    return model


def tuned_network(spec: ModelSpec, group: Network, common: FedAvg, state: Weights) -> Network:
    """What a client chose, by what it remembers; the group's model where it has not chosen."""
    shares = kept(state, TUNED).get("shares", torch.tensor([1.0])).tolist()
    members: list[tuple[torch.nn.Module, float]] = []
    for name, share in zip(CANDIDATES, shares, strict=False):
        if not share:
            continue
        own = kept(state, f"{TUNED} {name}")
        if name == GROUP and isinstance(group, MixtureOfModels):
            members += [(member, share * part) for member, part in zip(group.models, group.shares, strict=True)]
        elif name == GROUP:
            members.append((group, share))
        elif name == COMMON:
            members.append((built(spec, common.common() | own), share))
        else:
            members.append((built(spec, {**group.state_dict(), **own} if name == HEAD else own), share))
    if len(members) == 1:
        return cast("Network", members[0][0])
    return MixtureOfModels([member for member, _ in members], [share for _, share in members]).eval()


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
        before = find_method(str(values["method"])).Settings.came_later  # a run says all that its version knew of
        return Experiment(**{**before, **values})
    except FeddagError as error:
        raise FeddagError(f"'{files.experiment}': {error}") from None
