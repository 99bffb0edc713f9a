"""Clients on nodes far away: each gets its job in one message, and a round goes on without those that do not answer."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from feddag.engines.flower.status import Status
from feddag.engines.flower.transport import Delivery, MessageId, NodeId, Transport
from feddag.engines.flower.wire import Hello, JobId, Message, WireError, read_hello, read_reply, write_job
from feddag.errors import FeddagError
from feddag.federation import Engine, Job, Reply
from feddag.records import Event, EventKind
from feddag.weights import ClientId, Ref, Weights, digest, nbytes

POLLS, SLOWEST_POLL = 20, 3.0  # an answer is found after a twentieth of the time it took, or after three seconds
GREET_AGAIN_SECONDS = 60.0  # after which a greeting counts as lost
TELL_SECONDS = 30.0  # between two lines about clients that have not connected yet
TRIES = 3  # how often a job is sent if its node is lost each time


@dataclass(frozen=True)
class ExchangePolicy:
    """How long to wait for whom. None of it changes what is computed from the answers that arrive."""

    deadline: float = 600.0
    """Seconds that an exchange waits for an answer; a node that is lost and comes back in time is asked again."""
    minimum: int = 1
    """Fewest clients to start with, and fewest usable answers of an exchange; with fewer the run stops."""
    patience: int = 3
    """Rounds that a lost client still counts as a member; after them it has left for good."""
    largest_reply: int = 2**30
    """Bytes; a bigger answer is not read."""
    poll: float = 0.2
    """Seconds between two polls at first; a twentieth of the time an exchange has taken when that is longer."""


def named(clients: Sequence[ClientId], most: int = 10) -> str:
    """Some clients, for a person.

    >>> named([3]), named([1, 2]), named([4, 5, 6], most=2)
    ('client 3', 'clients 1, 2', 'clients 4, 5 and 1 more')
    """
    more = f" and {len(clients) - most} more" if len(clients) > most else ""
    return f"client{'s' * (len(clients) != 1)} {', '.join(map(str, clients[:most]))}{more}"


class FlowerEngine(Engine):
    """Asks clients through a transport.

    Each node says which client it is, from its own configuration. The first node to claim a client is that client for
    as long as it stays connected. With `keys`, it must also have proved to have that client's key.
    """

    holds_states = False

    def __init__(
        self,
        transport: Transport,
        run: str,
        clients: int,
        policy: ExchangePolicy,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        keys: Mapping[ClientId, bytes] | None = None,
        status: Status | None = None,
    ) -> None:
        self._transport, self._run, self._clients, self._policy = transport, run, clients, policy
        self._keys = keys
        self._status = status or Status()
        self._clock, self._sleep = clock, sleep
        self._greeted: dict[MessageId, tuple[NodeId, float]] = {}  # who, and when
        self._hellos: dict[NodeId, Hello] = {}  # what nodes that were not refused said about themselves
        self._nodes: dict[ClientId, NodeId] = {}  # clients within reach
        self._given_up: set[ClientId] = set()  # an exchange waited for them in vain, and the next ones do not wait
        self._refused: set[NodeId] = set()
        self._duplicates: dict[NodeId, ClientId] = {}  # claim a client that another node already is
        self._members: dict[ClientId, int | None] = {}  # the round since which it is out of reach, or None
        self._weights: dict[str, Weights] = {}
        self._events: list[Event] = []

    def gather(self, tell: Callable[[str], None] = lambda text: None) -> None:
        """Wait until every client is connected, or until the deadline if enough of them are.

        Who waits is told whom for, now and then, and which nodes were refused: a typo in a node's configuration would
        otherwise be minutes of silence.
        """
        began = told = self._clock()
        self._status.expected = self._clients
        self._status.enter("gathering")
        known = 0
        while True:
            self._update_nodes()
            now, deadline = self._clock(), self._policy.deadline
            for event in self._events[known:]:
                tell(event.text)
            known = len(self._events)
            if len(self._nodes) == self._clients or now > began + deadline:
                break
            if now > told + TELL_SECONDS:
                absent = sorted(set(range(self._clients)) - set(self._nodes))
                tell(f"waiting for {named(absent)} ({now - began:.0f} of {deadline:g} s)")
                told = now
            self._pause(began)
        if len(self._nodes) < self._policy.minimum:
            raise FeddagError(
                f"{len(self._nodes)} of {self._clients} clients connected within {self._policy.deadline:g} s, "
                f"and minimum = {self._policy.minimum}"
            )
        self._members = dict.fromkeys(self._nodes)
        self._status.enter("server")

    def population(self) -> tuple[ClientId, ...]:
        return tuple(sorted(self._members))

    def put(self, weights: Weights) -> Ref:
        ref = Ref(digest(weights), nbytes(weights))
        self._weights[ref.digest] = weights
        return ref

    def begin_round(self, round: int) -> None:
        self._weights.clear()
        self._update_nodes()
        for client, lost_since in list(self._members.items()):
            if client in self._nodes:
                self._members[client] = None
            elif lost_since is None:
                self._members[client] = round
            elif round - lost_since >= self._policy.patience:
                del self._members[client]
                self._record(
                    "leave", client, f"client {client} was out of reach for {round - lost_since} rounds and has left"
                )
        for client in sorted(set(self._nodes) - set(self._members)):
            self._members[client] = None
            self._record("join", client, f"client {client} joined")

    def perform(self, jobs: Sequence[Job], round: int, exchange: int) -> tuple[list[Reply], dict[ClientId, str]]:
        replies: list[Reply] = []
        missing: dict[ClientId, str] = {}
        open_jobs = {job.client: job for job in jobs}
        job_ids = {client: JobId(self._run, client, round, exchange) for client in open_jobs}
        tries = dict.fromkeys(open_jobs, 0)
        sent: dict[MessageId, tuple[ClientId, NodeId]] = {}
        self._status.enter("waiting", round)
        self._update_nodes()
        began = self._clock()
        while open_jobs:
            asked = {client for client, _ in sent.values()}
            for client in sorted(set(open_jobs) & set(self._nodes) - asked):
                tries[client] += 1
                node = self._nodes[client]
                spoken = self._hellos[node].protocol
                message = write_job(job_ids[client], open_jobs[client], lambda ref: self._weights[ref.digest], spoken)
                sent[self._transport.send(node, message)] = client, node
            for delivery in [*self._receive(list(sent)), *self._stranded(sent)]:
                if delivery.message_id not in sent:
                    continue  # its answer came before its node went
                client, _ = sent.pop(delivery.message_id)
                if delivery.unread:
                    missing[client] = delivery.unread
                elif delivery.reply is None:
                    missing[client] = delivery.lost
                    self._nodes.pop(client, None)
                    self._record("fault", client, f"client {client} in round {round}: {delivery.lost}")
                    if tries[client] < TRIES:
                        continue  # it is asked again if it comes back in time
                else:
                    missing.pop(client, None)
                    try:
                        replies.append(read_reply(delivery.reply, job_ids[client], len(open_jobs[client].steps)))
                        self._status.answered(replies[-1:], {})
                    except WireError as error:
                        missing[client] = str(error)
                del open_jobs[client]
            if self.watch:
                self.watch(len(jobs) - len(open_jobs), len(jobs))
            if not open_jobs.keys() - self._given_up or self._clock() > began + self._policy.deadline:
                break
            self._pause(began)
            self._update_nodes()
        for client, _ in sent.values():
            missing[client] = f"no answer within {self._policy.deadline:g} s"
            self._nodes.pop(client, None)  # until it says hello again, as a hanging node does once it is done
        self._given_up |= set(open_jobs)
        self._status.answered((), missing)
        for client in open_jobs:
            missing.setdefault(client, "out of reach")
            if client not in self._nodes and self._members.get(client) is None:
                self._members[client] = round
        self._status.enter("server")
        return replies, missing

    def events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def states(self) -> dict[ClientId, tuple[int, Weights]]:
        return {}  # on the nodes' own disks

    def restore(self, states: dict[ClientId, tuple[int, Weights]]) -> None:
        """Nothing: a node finds the memory that belongs to a job's round by itself."""

    def close(self) -> None:
        """Nothing: the transport belongs to Flower."""

    def _pause(self, began: float) -> None:
        waited = (self._clock() - began) / POLLS
        self._sleep(min(max(waited, self._policy.poll), max(SLOWEST_POLL, self._policy.poll)))

    def _receive(self, message_ids: Sequence[MessageId]) -> list[Delivery]:
        return self._transport.receive(message_ids, self._policy.largest_reply)

    def _stranded(self, sent: dict[MessageId, tuple[ClientId, NodeId]]) -> list[Delivery]:
        """Messages whose node is gone or has restarted: their answers will never come."""
        connected = set(self._nodes.values())
        return [
            Delivery(message_id, None, "its node was lost")
            for message_id, (_, node) in sent.items()
            if node not in connected
        ]

    def _update_nodes(self) -> None:
        """Notice which nodes came and went; greet those that are not known."""
        connected = self._transport.nodes()
        self._nodes = {client: node for client, node in self._nodes.items() if node in connected}
        recent = self._clock() - GREET_AGAIN_SECONDS
        self._greeted = {
            message_id: (node, moment)
            for message_id, (node, moment) in self._greeted.items()
            if node in connected and moment > recent
        }
        self._hellos = {node: hello for node, hello in self._hellos.items() if node in connected}
        self._refused &= connected
        self._duplicates = {node: client for node, client in self._duplicates.items() if node in connected}
        for node, client in list(self._duplicates.items()):
            if client not in self._nodes:
                self._assign(client, node)
                del self._duplicates[node]
        for delivery in self._receive(list(self._greeted)):
            self._read_hello(self._greeted.pop(delivery.message_id)[0], delivery.reply)
        greeted = {node for node, _ in self._greeted.values()}
        for node in sorted(connected - {*self._nodes.values(), *greeted, *self._refused, *self._duplicates}):
            self._greeted[self._transport.greet(node)] = node, self._clock()
        self._status.see({client: self._hellos[node].version for client, node in self._nodes.items()})

    def _read_hello(self, node: NodeId, message: Message | None) -> None:
        if message is None:
            return  # it is greeted again as long as it is connected
        try:
            hello = read_hello(message)
            client = hello.client
            if client >= self._clients:
                raise WireError(f"says it is client {client}, and clients = {self._clients}")
            if self._keys is not None and self._transport.key(node) != self._keys.get(client, None):
                raise WireError(f"says it is client {client}, and its key is not that client's")
        except WireError as error:
            self._refused.add(node)
            self._status.refuse(str(error))
            self._record("fault", None, f"a node was refused: {error}")
            return
        self._hellos[node] = hello
        if client in self._nodes:
            self._duplicates[node] = client
            text = f"a second node says it is client {client}: it waits until the first one is gone"
            self._record("fault", client, text)
        else:
            self._assign(client, node)

    def _record(self, kind: EventKind, client: ClientId | None, text: str) -> None:
        self._events.append(Event(kind, () if client is None else (client,), text))

    def _assign(self, client: ClientId, node: NodeId) -> None:
        self._nodes[client] = node
        self._given_up.discard(client)
