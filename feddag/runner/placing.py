"""A client that was not there when groups were found: what it signs, where it belongs, which model it gets."""

from dataclasses import dataclass
from typing import Any

from feddag.client.signature import Signature
from feddag.data.clients import of_one_client
from feddag.engines.worker import Done, Work, Worker
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.federation import Job
from feddag.methods import Method
from feddag.methods.feddag import FedDAGStar
from feddag.models import ModelSpec
from feddag.runner.serving import SampleFormat, ServedModel, as_samples, class_numbers
from feddag.weights import ClientId, Ref, Weights


@dataclass(frozen=True, eq=False)
class Placement:
    """Where a newcomer belongs."""

    group: int | None
    """None: it is unlike every group."""
    confidence: float
    """1 - its distance to that group / its distance to the next: 0 where both are as near, 1 where only one is; 0
    where it is unlike every group."""
    model: ServedModel | None
    """The group's model."""


def by_signatures(method: Method) -> FedDAGStar:
    """The same method, if it is one that groups clients by their signatures."""
    if not isinstance(method, FedDAGStar):
        raise FeddagError(
            f"method = '{method.name}' does not group clients by signatures, so that none can be placed by one; "
            "feddag and its variants do"
        )
    return method


def sign_newcomer(
    method: FedDAGStar,
    experiment: Experiment,
    spec: ModelSpec,
    form: SampleFormat,
    samples: tuple[Any, Any],
    client: ClientId,
) -> Signature:
    """What a client with these samples would have sent to be grouped, after the same warm-up if there was one."""
    x, y = as_samples(samples[0], form.sample_shape), class_numbers(samples[1], form.classes)
    if len(x) != len(y) or not len(y):
        raise FeddagError(f"each sample needs a label, and there are {len(x)} samples and {len(y)} labels")
    data = of_one_client(client, (x, x[:0]), (y, y[:0]), form.mean, form.std, len(form.classes))
    start = spec.initial_weights(experiment.seed, method.warmup_start(client))

    def fetch(ref: Ref) -> Weights:
        return start

    step = method.signing(Ref("start", 0))
    done = Worker(data, experiment.worker_config(spec), fetch).do(
        Work(Job(client, step), {}, (experiment.rounds + 1, 0))
    )
    assert isinstance(done, Done)
    if problem := step.problem(done.results[0]):
        raise FeddagError(f"no signature can be made of these samples: {problem}")
    return Signature.from_tensors(done.results[0].arrays)
