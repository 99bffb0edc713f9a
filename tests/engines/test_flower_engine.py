"""Who is asked, and what becomes of nodes that die, hang, answer nonsense, come late or leave; in made-up time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
import torch

from feddag.client.step import Result
from feddag.client.train import Train
from feddag.deploy.node import known_steps
from feddag.engines.flower.engine import ExchangePolicy, FlowerEngine
from feddag.engines.flower.transport import Delivery
from feddag.engines.flower.wire import (
    JobId,
    Message,
    ReceivedJob,
    read_job,
    write_hello,
    write_refusal,
    write_reply,
)
from feddag.errors import FeddagError
from feddag.federation import Federation, Job, Reply
from feddag.models import ModelSpec
from feddag.weights import Weights

MODEL = ModelSpec("mlp", (1, 2, 2), 2)
STEPS = known_steps("fedavg")
NEVER = float("inf")

Behaviour = Callable[[ReceivedJob], tuple[float, Message | str]]
"""After how many seconds a node answers a job, and with what: a message, or how its answer gets lost."""


def weights_plus(job: ReceivedJob, amount: float) -> Weights:
    [sent] = job.weights.values()
    return {name: tensor + amount for name, tensor in sent.items()}


def trained(job: ReceivedJob, amount: float = 1.0, samples: int = 10) -> Message:
    reply = Reply(job.id.client, [Result(weights_plus(job, amount))], samples)
    return write_reply(job.id, reply)


def good(job: ReceivedJob) -> tuple[float, Message | str]:
    return 1.0, trained(job, job.id.client + 1)


def texts(engine: FlowerEngine) -> list[str]:
    return [event.text for event in engine.events()]


@dataclass
class Fake:
    """A transport in made-up time. A node is its client and its behaviour."""

    nodes_by_id: dict[str, tuple[int | Message, Behaviour]]
    now: float = 0.0
    keys: dict[str, bytes] = field(default_factory=dict)
    inbox: dict[str, tuple[float, str, Message | str]] = field(default_factory=dict)
    received: list[JobId] = field(default_factory=list)
    plans: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for plan in [plan for plan in self.plans if plan[0] <= self.now]:
            self.plans.remove(plan)
            plan[1]()

    def nodes(self) -> set[str]:
        return set(self.nodes_by_id)

    def key(self, node: str) -> bytes:
        return self.keys.get(node, b"")

    def greet(self, node: str) -> str:
        client, _ = self.nodes_by_id[node]
        answer = write_hello(client) if isinstance(client, int) else client
        return self._post(node, 0.5, answer)

    def send(self, node: str, message: Message) -> str:
        job = read_job(message, STEPS)
        self.received.append(job.id)
        return self._post(node, *self.nodes_by_id[node][1](job))

    def receive(self, message_ids: Iterable[str], largest: int) -> list[Delivery]:
        here = [m for m in message_ids if self.inbox[m][0] <= self.now and self.inbox[m][1] in self.nodes_by_id]
        return [self._delivery(m, self.inbox[m][2], largest) for m in here]

    def _delivery(self, message_id: str, content: Message | str, largest: int) -> Delivery:
        if isinstance(content, str):
            return Delivery(message_id, None, content)
        if content.nbytes > largest:
            return Delivery(
                message_id, None, unread=f"answered with {content.nbytes} bytes, and largest_reply = {largest}"
            )
        return Delivery(message_id, content)

    def _post(self, node: str, delay: float, content: Message | str) -> str:
        name = f"message-{len(self.inbox)}"
        self.inbox[name] = (self.now + delay, node, content)
        return name


def federation(
    *behaviours: Behaviour, clients: int | None = None, minimum: int = 0, **policy: float
) -> tuple[Fake, FlowerEngine, Federation]:
    fake = Fake({f"node-{client}": (client, behaviour) for client, behaviour in enumerate(behaviours)})
    settings = ExchangePolicy(**{"deadline": 60.0} | policy)  # type: ignore[arg-type]
    engine = FlowerEngine(fake, "run1", clients or len(behaviours), settings, lambda: fake.now, fake.sleep)
    engine.gather()
    return fake, engine, Federation(engine, MODEL, 0, 1.0, minimum=minimum)


def ask(federation: Federation, round: int = 1):
    federation.begin_round(round)
    model = federation.put(federation.initial_weights())
    return federation.ask(Job(client, Train(model)) for client in federation.clients)


def amounts(federation: Federation, replies) -> dict[int, float]:
    start = federation.initial_weights()["head.bias"]
    return {reply.client: round(float((reply.weights["head.bias"] - start)[0]), 4) for reply in replies}


def test_every_client_gets_its_own_message_and_replies_come_in_client_order() -> None:
    slow_first: list[Behaviour] = [
        lambda job: (3.0, trained(job, 1.0)),
        lambda job: (2.0, trained(job, 2.0)),
        lambda job: (1.0, trained(job, 3.0)),
    ]
    fake, _, here = federation(*slow_first)
    replies = ask(here)
    assert [reply.client for reply in replies] == [0, 1, 2]
    assert amounts(here, replies) == {0: 1.0, 1: 2.0, 2: 3.0}
    assert fake.received == [JobId("run1", client, 1, 1) for client in range(3)]
    assert replies.missing == {}


def test_a_client_is_who_its_node_says_it_is() -> None:
    fake = Fake({"node-a": (1, good), "node-b": (0, good)})
    engine = FlowerEngine(fake, "run1", 2, ExchangePolicy(), lambda: fake.now, fake.sleep)
    engine.gather()
    here = Federation(engine, MODEL, 0, 1.0)
    assert amounts(here, ask(here)) == {0: 1.0, 1: 2.0}


def test_a_hanging_node_costs_one_deadline_and_is_back_when_it_says_hello() -> None:
    hanging = iter([(100.0, "late"), (1.0, None)])

    def hang(job: ReceivedJob) -> tuple[float, Message | str]:
        delay, _ = next(hanging)
        return delay, trained(job)

    fake, _, here = federation(good, hang)
    replies = ask(here)
    assert list(amounts(here, replies)) == [0]
    assert replies.missing == {1: "no answer within 60 s"} == here.missing
    began = fake.now
    assert list(amounts(here, ask(here, 2))) == [0, 1]  # in this made-up world it answers a new hello at once
    assert fake.now - began < 10


def test_a_node_that_stays_silent_is_not_waited_for_again() -> None:
    fake, _, here = federation(good, lambda job: (NEVER, "never"))
    ask(here)
    fake.nodes_by_id["node-1"] = (Message("mute"), good)  # and its hello makes no sense any more
    began = fake.now
    replies = ask(here, 2)
    assert list(amounts(here, replies)) == [0] and replies.missing == {1: "out of reach"}
    assert fake.now - began < 5


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda job: trained(job, float("nan")), "not finite"),
        (lambda job: write_reply(job.id, Reply(1, [Result({"w": torch.zeros(3)})], 5)), "wrong name, shape"),
        (
            lambda job: write_reply(
                job.id,
                Reply(1, [Result({n: t[..., :1] for n, t in weights_plus(job, 1).items()})], 5),
            ),
            "wrong name, shape",
        ),
        (
            lambda job: write_reply(
                job.id, Reply(1, [Result({n: t.double() for n, t in weights_plus(job, 1).items()})], 5)
            ),
            "wrong name, shape",
        ),
        (
            lambda job: write_reply(job.id, Reply(1, [Result(dict(list(weights_plus(job, 1).items())[1:]))], 5)),
            "wrong name, shape",
        ),
        (lambda job: write_reply(job.id, Reply(1, [Result({})], 5)), "wrong name, shape"),
        (lambda job: write_reply(JobId("run1", 1, 0, 1), Reply(1, [Result()], 5)), "another round"),
        (lambda job: write_reply(JobId("run1", 0, 1, 1), Reply(0, [Result()], 5)), "another round, client"),
        (lambda job: write_reply(job.id, Reply(1, [], 5)), "different number of results"),
        (lambda job: Message("nonsense"), "malformed"),
        (lambda job: Message(trained(job).text + " " * 20_000), "bytes, and largest_reply"),
        (lambda job: write_refusal(job.id, "no data"), "said: no data"),
    ],
)
def test_a_bad_answer_is_left_out_with_its_reason(answer: Callable[[ReceivedJob], Message], reason: str) -> None:
    fake, _, here = federation(good, lambda job: (1.0, answer(job)), good, largest_reply=20_000)
    replies = ask(here)
    assert amounts(here, replies) == {0: 1.0, 2: 3.0}
    assert list(replies.missing) == [1] and reason in replies.missing[1]
    assert len(fake.received) == 3  # asking again would bring the same


@dataclass(frozen=True)
class TrainHead(Train):
    parts: tuple[str, ...] = ("head",)


@pytest.mark.parametrize(("names", "whole"), [(["head.weight", "head.bias"], True), (["head.bias"], False)])
def test_a_step_that_sends_a_part_must_send_all_of_it(monkeypatch, names: list[str], whole: bool) -> None:
    monkeypatch.setitem(STEPS, f"{__name__}:TrainHead", TrainHead)

    def part(job: ReceivedJob) -> tuple[float, Message | str]:
        head = {name: weights_plus(job, 1)[name] for name in names}
        return 1.0, write_reply(job.id, Reply(0, [Result(head)], 5))

    _, _, here = federation(part)
    here.begin_round(1)
    replies = here.ask([Job(0, TrainHead(here.put(here.initial_weights())))])
    assert (len(replies) == 1) == whole == (not replies.missing)


def test_a_lost_node_that_returns_in_time_is_asked_again_and_nothing_is_missing() -> None:
    fake, engine, here = federation(good, lambda job: (NEVER, "never"))

    def die() -> None:
        del fake.nodes_by_id["node-1"]

    def return_anew() -> None:
        fake.nodes_by_id["node-1@later"] = (1, good)

    fake.plans = [(fake.now + 5, die), (fake.now + 30, return_anew)]
    replies = ask(here)
    assert amounts(here, replies) == {0: 1.0, 1: 2.0} and replies.missing == {}
    assert fake.received.count(JobId("run1", 1, 1, 1)) == 2
    assert texts(engine) == ["client 1 in round 1: its node was lost"]


def test_a_node_that_is_lost_between_two_exchanges_is_waited_for_too() -> None:
    fake, _, here = federation(good, good)
    ask(here)
    del fake.nodes_by_id["node-1"]
    fake.plans = [(fake.now + 30, lambda: fake.nodes_by_id.update({"node-1@later": (1, good)}))]
    assert amounts(here, ask(here, 2)) == {0: 1.0, 1: 2.0}


def test_a_program_that_always_dies_over_a_job_is_given_up() -> None:
    fake, engine, here = federation(good, lambda job: (1.0, "its program ended unexpectedly"), deadline=1000)
    replies = ask(here)
    assert replies.missing == {1: "its program ended unexpectedly"}
    assert len(fake.received) == 1 + 3
    assert len(engine.events()) == 3


def test_a_lost_client_stays_a_member_for_a_while_and_then_has_left_for_good() -> None:
    fake, engine, here = federation(good, good, patience=2)
    ask(here)
    del fake.nodes_by_id["node-1"]
    members = []
    for number in (2, 3, 4):
        ask(here, number)
        members.append(here.clients)
    assert members == [(0, 1), (0, 1), (0,)]
    assert texts(engine) == ["client 1 was out of reach for 2 rounds and has left"]
    fake.nodes_by_id["node-1"] = (1, good)
    ask(here, 5)  # it is greeted, and takes part from the next round on
    ask(here, 6)
    assert here.clients == (0, 1)
    assert texts(engine) == ["client 1 joined"]


def test_a_late_client_is_a_newcomer_of_the_next_round() -> None:
    fake, engine, here = federation(good, clients=2, deadline=5)
    fake.nodes_by_id["late"] = (1, good)
    assert list(amounts(here, ask(here))) == [0]
    assert list(amounts(here, ask(here, 2))) == [0, 1]
    assert texts(engine) == ["client 1 joined"]


def test_a_second_node_of_the_same_client_waits_until_the_first_is_gone() -> None:
    fake, engine, here = federation(good, good)
    fake.nodes_by_id["intruder"] = (1, lambda job: (1.0, trained(job, 100.0)))
    ask(here)
    assert amounts(here, ask(here, 2)) == {0: 1.0, 1: 2.0}
    assert texts(engine) == ["a second node says it is client 1: it waits until the first one is gone"]
    del fake.nodes_by_id["node-1"]
    assert amounts(here, ask(here, 3)) == {0: 1.0, 1: 100.0}


def test_nodes_that_are_nobody_are_refused() -> None:
    fake, engine, here = federation(good)
    fake.nodes_by_id |= {
        "nobody": (Message("?"), good),
        "too-many": (1, good),
        "cannot": (write_refusal(None, "no"), good),
    }
    ask(here)
    ask(here, 2)
    assert here.clients == (0,)
    assert sorted(texts(engine)) == [
        "a node was refused: a malformed message",
        "a node was refused: said: no",
        "a node was refused: says it is client 1, and clients = 1",
    ]


def test_a_greeting_that_is_lost_is_repeated() -> None:
    fake = Fake({"node-0": (0, good)})
    answers, fake.greet = fake.greet, lambda node: fake._post(node, NEVER, "")  # type: ignore[method-assign]
    fake.plans.append((30.0, lambda: setattr(fake, "greet", answers)))
    engine = FlowerEngine(fake, "run1", 1, ExchangePolicy(deadline=600), lambda: fake.now, fake.sleep)
    engine.gather()
    assert engine.population() == (0,) and 60 <= fake.now < 70


def test_an_older_node_gets_jobs_in_its_own_protocol() -> None:
    spoken = []

    def older(job: ReceivedJob) -> tuple[float, Message | str]:
        spoken.append(job.protocol)
        reply = Reply(job.id.client, [Result(weights_plus(job, 2.0))], 10)
        return 1.0, write_reply(job.id, reply, job.protocol)

    fake, _, here = federation(good, older)
    fake.nodes_by_id["node-1"] = (write_hello(1, protocol=2), older)  # as it says when it is greeted again
    fake.nodes_by_id["restarted"] = fake.nodes_by_id.pop("node-1")
    ask(here)
    assert amounts(here, ask(here, 2)) == {0: 1.0, 1: 2.0}
    assert spoken[-1] == 2


def test_too_few_clients_do_not_start() -> None:
    fake = Fake({"node-0": (0, good)})
    engine = FlowerEngine(fake, "run1", 3, ExchangePolicy(deadline=10, minimum=2), lambda: fake.now, fake.sleep)
    with pytest.raises(FeddagError, match="1 of 3 clients connected within 10 s, and minimum = 2"):
        engine.gather()


def test_whoever_waits_is_told_for_whom_and_which_nodes_were_refused() -> None:
    fake = Fake({"node-0": (0, good), "typo": (7, good)})
    engine = FlowerEngine(fake, "run1", 3, ExchangePolicy(deadline=70), lambda: fake.now, fake.sleep)
    said: list[str] = []
    engine.gather(said.append)
    assert said[0] == "a node was refused: says it is client 7, and clients = 3"
    assert [text.partition(" (")[0] for text in said[1:]] == ["waiting for clients 1, 2"] * 2
    assert said[1].endswith(" of 70 s)") and texts(engine) == said[:1]  # the history has it as well


def test_too_few_usable_answers_stop_the_run() -> None:
    _, _, here = federation(good, good, lambda job: (1.0, trained(job, float("nan"))), minimum=3)
    with pytest.raises(FeddagError, match="round 1: 2 of 3 clients gave a usable answer, and minimum = 3"):
        ask(here)


def test_a_node_with_another_key_cannot_be_that_client() -> None:
    fake = Fake({"node-0": (0, good), "thief": (1, good), "node-1": (1, good), "nobody": (2, good)})
    fake.keys = {"node-0": b"zero", "node-1": b"one", "thief": b"zero", "nobody": b"two"}
    policy = ExchangePolicy(deadline=10, minimum=1)
    keys = {0: b"zero", 1: b"one"}
    engine = FlowerEngine(fake, "run1", 3, policy, lambda: fake.now, fake.sleep, keys=keys)
    engine.gather()
    assert engine.population() == (0, 1)
    refused = [event.text for event in engine.events() if event.kind == "fault"]
    assert sorted(refused) == [
        "a node was refused: says it is client 1, and its key is not that client's",
        "a node was refused: says it is client 2, and its key is not that client's",
    ]
    replies = ask(Federation(engine, MODEL, 0, 1.0))
    assert [reply.client for reply in replies] == [0, 1]


def test_keys_are_read_by_the_number_in_their_names(tmp_path) -> None:
    pytest.importorskip("cryptography")
    from feddag.deploy.keys import read_client_keys, write_node_key

    with pytest.raises(FeddagError, match="holds no public key"):
        read_client_keys(tmp_path)
    for name in ("site-0", "site-12", "stranger"):
        write_node_key(tmp_path / name)
    keys = read_client_keys(tmp_path)
    assert set(keys) == {0, 12} and all(key.startswith(b"-----BEGIN PUBLIC KEY-----") for key in keys.values())
    (tmp_path / "site-3.pub").write_text("ssh-rsa nonsense")
    with pytest.raises(FeddagError, match=r"site-3\.pub' is not a public key"):
        read_client_keys(tmp_path)
