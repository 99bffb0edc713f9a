"""Experiment: one frozen, validated description of one run. Nothing else configures anything."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from feddag.client.device import DeviceKind, find_device
from feddag.client.trainer import LocalSettings, TrainerKind, native_network
from feddag.data.datasets import HELD, Dataset
from feddag.data.datasets import load as load_dataset
from feddag.data.obtain import KNOWN, find
from feddag.data.partitions import PARTITIONS, Partition, PartitionSettings, make_partition, settings_of
from feddag.encoders import DEFAULTS, channels_first, default_model
from feddag.engines.attacks import Attack
from feddag.engines.worker import WorkerConfig
from feddag.errors import FeddagError, nearest, short
from feddag.fields import RENAMED, refusal, toml_value
from feddag.files import read_toml
from feddag.methods import Method, MethodSettings, all_methods, find_method
from feddag.models import ModelSpec
from feddag.own_code import fingerprint, source_fingerprint, takes
from feddag.records import LARGEST

DEFAULT_METHOD = "feddag"
DEFAULT_CLIENTS = 20
NOT_PART_OF_THE_RESULT = {"workers", "device"}
NEUTRAL: dict[str, Any] = {
    **{
        "columns": "",
        "join_round": 0,
        "personal": "none",
        "evaluate_every": 1,
        "robust": "none",
        "least_per_class": 1,
        "samples_per_class": 1000,
        "vector_share": 0.0,
        "delta": 0.5,
    },
    **{"warmup_epochs": 0, "warmup_start": "common", "warmup_balanced": True, "warmup_halves": True},
    **{"angles": "printed", "cut": "auto", "threshold": 0.0, "clusters": 0, "clustering": "agglomerative"},
    **{"homogeneous": 1000.0, "heterogeneous": 0.5},
    **{"style": False, "sketch": 0},
    **{"cut_lambda": 0.01, "cut_gamma": 1.0, "cut_tau": 0.0, "absent": "rarest", "secondary_served": "known"},
}
"""Fields that came later, with the value that means "as before": keys stay what they were."""


class Experiment(BaseModel):
    """What is run, on which data, divided how, trained how. Every field has the same name in TOML, `--set` and here.

    A method's own fields (say fedprox's `mu`) stand beside these. Wrong values raise a FeddagError of one sentence.

    >>> experiment = Experiment(method="fedprox", mu=0.1, rounds=3)
    >>> experiment.settings.mu, experiment.clients
    (0.1, 20)
    >>> Experiment(lr=-1)
    Traceback (most recent call last):
    feddag.errors.FeddagError: lr = -1 is not allowed: it should be greater than 0
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=False, allow_inf_nan=False)

    # what
    method: str = Field(DEFAULT_METHOD, description="the algorithm, or module:Class of your own")
    dataset: str = Field(
        "digits", description="a name from `feddag data list`, an .npz, .csv or .parquet file, a folder"
    )
    columns: str = Field("", description="what columns of a .csv or .parquet are: label=...,client=...")
    partition: str = Field("label-skew", description="how clients get their samples: " + ", ".join(PARTITIONS))
    clients: int | None = Field(None, ge=1, description="number of clients (20; with natural: all that the data name)")
    rounds: int = Field(30, ge=1, description="communication rounds after any warm-up")
    training_flops: int = Field(0, ge=0, description="instead of `rounds`: train for so many FLOPs (0: no)")
    seed: int = Field(0, ge=0, description="everything random follows from it")
    # how clients' data differ
    label_fraction: float = Field(
        PartitionSettings.label_fraction, gt=0, le=1, description="share of the classes that a group of clients holds"
    )
    concentration: float = Field(
        PartitionSettings.concentration, gt=0, description="Dirichlet concentration: the smaller, the more unequal"
    )
    groups: int | None = Field(
        PartitionSettings.groups, ge=1, description="groups of clients (min(5, clients); with pairs: 11)"
    )
    classes_per_client: int = Field(
        PartitionSettings.classes_per_client, ge=1, description="classes of each client (pathological)"
    )
    concepts: int = Field(PartitionSettings.concepts, ge=1, description="ways of labelling (concept-shift)")
    skewed: bool = Field(PartitionSettings.skewed, description="label skew below concept-shift")
    corruptions: int | str = Field(
        PartitionSettings.corruptions, description="how many kinds of corruption, or their names (feature-skew)"
    )
    severity: int = Field(PartitionSettings.severity, ge=1, le=5, description="strength of corruptions")
    mix: str = Field(PartitionSettings.mix, description="per cent of clients of each kind (heterogeneity-mix)")
    mix_kind: Literal["labels", "domains"] = Field(
        PartitionSettings.mix_kind, description="what heterogeneity-mix mixes"
    )
    homogeneous: float = Field(
        PartitionSettings.homogeneous, gt=0, description="Dirichlet concentration of a mix's homogeneous clients"
    )
    heterogeneous: float = Field(
        PartitionSettings.heterogeneous, gt=0, description="Dirichlet concentration of a mix's heterogeneous clients"
    )
    base: Literal["dirichlet", "pathological"] = Field(PartitionSettings.base, description="what lies below sized")
    samples_min: int = Field(PartitionSettings.samples_min, ge=1, description="fewest samples of a client (sized)")
    samples_max: int = Field(PartitionSettings.samples_max, ge=1, description="most samples of a client (sized)")
    fraction: float = Field(
        PartitionSettings.fraction, gt=0, le=1, description="share of the training samples that is used at all"
    )
    test: Literal["classes", "mix", "own"] = Field(
        PartitionSettings.test,
        description="local test set: all test samples of the client's classes, its part of them, or split off its own",
    )
    test_share: float = Field(PartitionSettings.test_share, gt=0, lt=1, description="share split off for test = own")
    validation: float = Field(
        PartitionSettings.validation, ge=0, lt=1, description="share of each client's samples split off for validation"
    )
    evaluate: Literal["test", "validation"] = Field("test", description="which samples accuracy is measured on")
    holdout: float = Field(
        PartitionSettings.holdout, ge=0, lt=1, description="share of clients that join later: after the last round"
    )
    join_round: int = Field(0, ge=0, description="round in which those join and take part from then on (0: after all)")
    drift_round: int = Field(0, ge=0, description="round from which some clients hold other data (0: never)")
    drift_share: float = Field(0.2, gt=0, le=1, description="share of clients that drift, by exchanging what they hold")
    attack: Attack = Field("none", description="how some clients lie, to see what that does")
    attackers: float = Field(0.1, gt=0, lt=1, description="share of clients that lie, at least one")
    # how clients train
    model: str | None = Field(
        None,
        description="mlp, mlp256, cnn1d, lenet5, cnn, fedac-cnn, fedgwc-cnn, resnet9 or module:function (by shape)",
    )
    trainer: TrainerKind = Field("auto", description="auto: native where it can train the model")
    device: DeviceKind = Field("auto", description="where PyTorch trains: auto is cuda where there is one, else cpu")
    participation: float = Field(0.2, gt=0, le=1, description="share of clients in a round")
    epochs: int = Field(LocalSettings.epochs, ge=1, description="local epochs in a round")
    steps: int | None = Field(LocalSettings.steps, ge=1, description="local SGD steps in a round, instead of epochs")
    batch_size: int = Field(LocalSettings.batch_size, ge=1, description="samples in an SGD step")
    lr: float = Field(LocalSettings.lr, gt=0, description="learning rate")
    momentum: float = Field(LocalSettings.momentum, ge=0, lt=1, description="SGD momentum")
    weight_decay: float = Field(LocalSettings.weight_decay, ge=0, description="SGD weight decay")
    personal: Literal["none", "head", "full", "auto"] = Field(
        "none", description="what clients may choose at the end beside the group's model: tuned, alone, common, mixed"
    )
    evaluate_every: int = Field(1, ge=1, description="rounds from one scoring, record and checkpoint to the next")
    finetune: bool = Field(True, description="at the end, also score every model after local epochs on its client")
    workers: int = Field(0, ge=0, description="worker processes (0: one per core); never changes a result")

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**{name: value for name, value in values.items() if not self._is_left_out(name, value)})
        except ValidationError as error:
            raise FeddagError(refusal(error, type(self).model_fields)) from None

    @classmethod
    def _is_left_out(cls, name: str, value: Any) -> bool:
        """Whether a field is as if it had not been given: None, and "none" where the field has no such choice."""
        field = cls.model_fields.get(name)
        return value is None or (value == "none" and field is not None and field.default is None)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name, value in values.items():
            most = LARGEST**4 if name in ("seed", "training_flops") else LARGEST
            if isinstance(value, int) and abs(value) > most:
                raise FeddagError(f"{short(name)} = {short(value)} is not allowed: it is too large a number")
        dataset = values.get("dataset", "digits")
        if isinstance(dataset, Dataset):  # of `feddag.dataset`: named by its content
            given = {"dataset": dataset.name} | ({"partition": "natural"} if dataset.owners else {})
            values = {**given, **values, "dataset": HELD.setdefault(dataset.name, dataset).name}
        elif isinstance(dataset, str) and _is_own(dataset):
            values = values | {"dataset": str(Path(dataset).expanduser().resolve())}  # found again from any folder
        lists = {name: values[name] for name in ("corruptions", "mix") if isinstance(values.get(name), list)}
        return values | {name: ",".join(map(str, items)) for name, items in lists.items()}

    @model_validator(mode="after")
    def _fits_together(self) -> "Experiment":
        if self.clients is None and self.partition != "natural":
            object.__setattr__(self, "clients", DEFAULT_CLIENTS)  # filled in, not set: `with_` may choose again
        if self.partition not in PARTITIONS:
            raise FeddagError(
                f"partition = '{short(self.partition)}' is not a partition; allowed are {', '.join(PARTITIONS)}"
                f"{nearest(self.partition, PARTITIONS)}"
            )
        self._check_method()
        own_fields = {name for method in all_methods().values() for name in method.Settings.model_fields}
        known = {*type(self).model_fields, *own_fields, *self.method_class.Settings.model_fields}
        for name in self.model_extra or {}:
            if name not in known and name in RENAMED:
                raise FeddagError(f"the field '{name}' is now called '{RENAMED[name]}'")
            if name not in known:
                raise FeddagError(f"'{short(name)}' is not a field of an experiment{nearest(name, known)}")
        if self.evaluate == "validation" and self.validation == 0:
            raise FeddagError("evaluate = 'validation' needs validation above 0, and validation = 0.0")
        if self.join_round > self.rounds:
            raise FeddagError(f"join_round = {self.join_round} is after the last round, and rounds = {self.rounds}")
        if self.join_round and not self.holdout:
            raise FeddagError(
                f"join_round = {self.join_round} needs holdout above 0: the share of clients that join then"
            )
        if self.drift_round > self.rounds:
            raise FeddagError(f"drift_round = {self.drift_round} is after the last round, and rounds = {self.rounds}")
        if self.settings.smoothing and not self.method_class.smooths:
            raise FeddagError(
                f"smoothing = {self.settings.smoothing} does nothing with method = '{self.method}': its clients use "
                "the models of the last round"
            )
        return self

    def _check_method(self) -> None:
        """Refuse a class of the user's own that cannot be made or asked for its fields as any other method."""
        kind = self.method_class
        settings: object = kind.Settings
        if not isinstance(settings, type) or not issubclass(settings, MethodSettings):
            raise FeddagError(
                f"method = '{short(self.method)}' cannot be used: its Settings is no feddag.MethodSettings"
            )
        if not takes(kind, None):
            raise FeddagError(
                f"method = '{short(self.method)}' cannot be used: its __init__ has to take settings and no more"
            )

    @property
    def method_class(self) -> type[Method]:
        """The algorithm that `method` names."""
        return find_method(self.method)

    @cached_property
    def settings(self) -> Any:
        """The method's own fields, validated."""
        kind: type[MethodSettings] = self.method_class.Settings
        own = {name: value for name, value in (self.model_extra or {}).items() if name in kind.model_fields}
        try:
            return kind(**own)
        except ValidationError as error:
            raise FeddagError(refusal(error, kind.model_fields)) from None

    @property
    def encoders(self) -> int:
        """How many encoders a model of the method has."""
        return self.method_class.encoders_for(self.settings)

    @property
    def local(self) -> LocalSettings:
        """How clients train."""
        known = dict(self) | {"balanced": self.settings.balanced, "held": self.settings.softmax != "all"}
        return LocalSettings(**{name: known[name] for name in LocalSettings.__dataclass_fields__})

    def worker_config(self, model: ModelSpec) -> WorkerConfig:
        """What workers of this experiment work with. Refuses a trainer or a device that cannot do it here."""
        network = native_network(model, self.trainer, self.device)
        device = "cpu" if network is not None else find_device(self.device)
        return WorkerConfig(model, self.local, self.seed, network, device=device)

    def is_over(self, rounds: int, flops: int) -> bool:
        """Whether so many rounds, and what they took to train, are all that was asked for."""
        if self.training_flops == 0:
            return rounds >= self.rounds
        return flops >= self.training_flops and rounds >= max(1, self.drift_round, self.join_round)

    def load_dataset(self) -> Dataset:
        """The samples that `dataset` names."""
        return load_dataset(self.dataset, self.columns)

    def divide(self, dataset: Dataset) -> Partition:
        """Give the dataset's samples to clients."""
        settings = {name: getattr(self, name) for name in settings_of(self.partition)}
        return make_partition(
            dataset, partition=self.partition, clients=self.clients, seed=self.seed, settings=settings
        )

    def network(self, sample_shape: tuple[int, ...], num_classes: int) -> ModelSpec:
        """The network for samples as they lie in files: images height x width x channels.

        >>> Experiment(method="fedavg").network((8, 8, 1), 10).name
        'mlp'
        """
        shape = channels_first(sample_shape)
        return ModelSpec(self.model or default_model(shape), shape, num_classes, self.encoders)

    def resolved(self) -> dict[str, Any]:
        """Every field that has a say in this run, with its value."""
        unused = {name for other in PARTITIONS for name in settings_of(other)} - set(settings_of(self.partition))
        unused |= {"columns"} if not self.columns else set()
        unused |= {"training_flops"} if self.training_flops == 0 else set()
        unused |= {"drift_round", "drift_share"} if self.drift_round == 0 else set()
        unused |= {"attack", "attackers"} if self.attack == "none" else set()
        own = {name: getattr(self, name) for name in type(self).model_fields if name not in unused}
        return {name: value for name, value in (own | self.settings.model_dump()).items() if value is not None}

    def key(self, revision: int | None = None, form: str | None = None) -> str:
        """What this experiment's result is kept under: equal for equal results, whatever the workers and the device.

        `revision` is that of the method's code, by default today's; `form` the file that an unverified dataset was
        found in, by default the one that is here.
        """
        identity = {name: value for name, value in self.resolved().items() if name not in NOT_PART_OF_THE_RESULT}
        neutral = {**NEUTRAL, **self.method_class.Settings.came_later}
        identity = {name: value for name, value in identity.items() if neutral.get(name, ...) != value}
        identity["revision"] = revision or self.method_class.revision
        if _is_own(self.dataset):
            identity["dataset"] = fingerprint(Path(self.dataset))  # what is in it, not where it lies
        elif self.dataset in KNOWN and not KNOWN[self.dataset].sha256:
            if form is None and (found := find(self.dataset)) is not None:
                form = found.name
            if form is not None:
                identity["dataset_form"] = form  # unverified: it may be the whole set or a selection
        elif self.dataset in HELD:
            identity["dataset"] = self.dataset.rpartition("@")[2]  # what is in it, not what it is called
        if self.model is None and self.dataset not in KNOWN:
            identity["default_models"] = DEFAULTS  # all others are images, whose networks are what they were
        for name in (self.method, self.model or ""):
            if ":" in name:  # code of the user's own has no revision to trust
                identity[name] = source_fingerprint(name)
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def title(self) -> str:
        """A short name for directories and files.

        >>> Experiment().title()
        'digits-label-skew-feddag-s0'
        """
        parts = (Path(self.dataset).stem, self.partition, self.method.replace(":", "."), f"s{self.seed}")
        return "-".join(parts)

    def with_(self, **changes: Any) -> "Experiment":
        """The same experiment but for these fields.

        >>> Experiment(rounds=3).with_(seed=7).rounds
        3
        """
        return Experiment(**(self.model_dump(exclude_unset=True) | changes))

    def to_toml(self) -> str:
        """The text of a file that repeats this experiment."""
        return "".join(f"{name} = {toml_value(value)}\n" for name, value in self.resolved().items())


def read_experiment(path: Path | None, overrides: Mapping[str, Any]) -> Experiment:
    """An experiment from a TOML file (or from defaults alone), with some fields set anew.

    A file may serve several methods and hold fields of each; what is set anew is meant for this one.
    """
    experiment = Experiment(**{**(read_toml(path) if path else {}), **overrides})
    for name in overrides:
        if name not in {*Experiment.model_fields, *experiment.method_class.Settings.model_fields}:
            raise FeddagError(f"'{short(name)}' is not a field of method = '{experiment.method}'")
    return experiment


def read_experiments(
    path: Path | None, overrides: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int]
) -> list[Experiment]:
    """The same experiment for each method and seed. A field that only some of the methods know is for those."""
    own = {name: set(find_method(name).Settings.model_fields) for name in methods}
    values = {**(read_toml(path) if path else {}), **overrides}
    experiments = []
    for method in methods:
        others = set().union(*own.values()) - own[method] - set(Experiment.model_fields)
        mine = {name: value for name, value in values.items() if name not in others}
        experiments += [Experiment(**{**mine, "method": method, "seed": seed}) for seed in seeds]
    return experiments


def _is_own(dataset: str) -> bool:
    try:
        return dataset not in KNOWN and Path(dataset).expanduser().exists()
    except OSError:  # a name that no file can have
        return False
    except RuntimeError:
        raise FeddagError(f"dataset = '{short(dataset)}' is in the home of somebody who is not known here") from None
