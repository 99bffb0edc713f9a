"""Real Flower programs, and everything that happens to them: nothing is lost, and the honest result stays what it is.

Tens of minutes, and it needs Flower: `make test-chaos` runs it. FEDDAG_CHAOS_SEED, FEDDAG_CHAOS_MINUTES (of the storm)
and FEDDAG_CHAOS_LOG are its settings.
"""

import os
import random
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import feddag
from feddag.engines.attacks import draw_attackers
from feddag.files import write_atomically
from feddag.records import RoundRecord
from tests.chaos.conftest import Chronicle
from tests.chaos.federation import ChaosFederation
from tests.chaos.hostile import LIE, SITE
from tests.engines.test_flower_processes import assert_same_as_local

pytestmark = pytest.mark.skipif("FEDDAG_TEST_CHAOS" not in os.environ, reason="make test-chaos runs it")

ROUNDS = 2
HOUR = 3600.0
LATE = -240.0  # seconds: Flower lets in who is up to five minutes late, and a few seconds early
STORM_MINUTES = float(os.environ.get("FEDDAG_CHAOS_MINUTES", "10"))
SPREAD_SEEDS = range(5)

Start = Callable[..., ChaosFederation]


def experiment(method: str = "ditto", clients: int = 3, rounds: int = ROUNDS, **more: Any) -> feddag.Experiment:
    """Small, and every client counts; Ditto's clients keep models of their own on their disks."""
    usual = {"partition": "iid", "participation": 1.0, "finetune": False, "trainer": "torch", "workers": 1, "epochs": 2}
    return feddag.Experiment(**usual | {"method": method, "clients": clients, "rounds": rounds} | more)


@pytest.fixture
def prepare(tmp_path: Path, chronicle: Chronicle) -> Iterator[Start]:
    """A federation that is not started yet; all of it is ended afterwards."""
    started: list[ChaosFederation] = []

    def make(tls: bool = False) -> ChaosFederation:
        started.append(ChaosFederation(tmp_path / "federation", chronicle.say, tls))
        return started[-1]

    yield make
    for here in started:
        here.__exit__(None, None, None)


def accuracy_of(record: RoundRecord, clients: list[int]) -> float:
    """The mean over some clients in a round."""
    scores = dict(zip(record["clients"], record["per_client"], strict=True))
    return statistics.mean(score for client in clients if (score := scores[client]) is not None)


@cache
def undisturbed(chosen: feddag.Experiment, honest: tuple[int, ...]) -> list[float]:
    """The same clients' accuracy where nobody lies and nothing happens, for a few seeds."""
    runs = (feddag.run(chosen.model_copy(update={"seed": seed})) for seed in SPREAD_SEEDS)
    return [accuracy_of(run.history[-1], list(honest)) for run in runs]


def assert_nothing_lost(here: ChaosFederation, chosen: feddag.Experiment) -> list[RoundRecord]:
    """Every round is recorded once, in order, and nobody who answered is unaccounted for."""
    history = here.files.read_history(here.files.read_result())
    assert [record["round"] for record in history] == list(range(1, chosen.rounds + 1))
    return history


def assert_same_bytes(here: ChaosFederation, chosen: feddag.Experiment, book: Chronicle, where: Path) -> None:
    """The whole result is that of an undisturbed run on one machine, to the last bit."""
    history = assert_nothing_lost(here, chosen)
    assert_same_as_local(here.files, chosen, where)
    mean = history[-1]["accuracy"]["mean"]
    book.add(history, here.resumed, mean, f"{mean:.3f}", "same bytes")


def assert_within_spread(here: ChaosFederation, chosen: feddag.Experiment, book: Chronicle, honest: list[int]) -> None:
    """Honest clients are served as well as undisturbed ones: not below two standard deviations under their mean."""
    history = assert_nothing_lost(here, chosen)
    usual = undisturbed(chosen, tuple(honest))
    mean, spread = statistics.mean(usual), statistics.stdev(usual)
    reached = accuracy_of(history[-1], honest)
    book.add(history, here.resumed, reached, f"{mean:.3f} ± {spread:.3f}", "within the spread")
    assert reached >= mean - 2 * spread, (reached, usual)


def at_some_moment(here: ChaosFederation, dice: random.Random) -> None:
    """Wait until some moment in some round; none is over in less."""
    here.await_round(dice.randrange(ROUNDS))
    here.wait(dice.uniform(0, 15))


# Nodes that die, hang and lag, and a server that dies: the same bytes


def test_nodes_killed(prepare: Start, chronicle: Chronicle, dice: random.Random, tmp_path: Path) -> None:
    here, chosen = prepare(), experiment()
    here.begin(chosen)
    at_some_moment(here, dice)
    first, second = dice.sample(range(3), 2)
    here.kill(first)
    here.wait(dice.uniform(0, 30))
    here.kill(second)
    here.finish()
    assert_same_bytes(here, chosen, chronicle, tmp_path / "local")


def test_nodes_paused(prepare: Start, chronicle: Chronicle, dice: random.Random, tmp_path: Path) -> None:
    """One for less, one for more than the time after which Flower takes it for lost."""
    here, chosen = prepare(), experiment()
    here.begin(chosen)
    at_some_moment(here, dice)
    first, second = dice.sample(range(3), 2)
    here.in_background(lambda: here.pause(first, 20))
    here.in_background(lambda: here.pause(second, 100))
    here.finish()
    assert_same_bytes(here, chosen, chronicle, tmp_path / "local")


def test_a_slow_node(prepare: Start, chronicle: Chronicle, dice: random.Random, tmp_path: Path) -> None:
    here, chosen = prepare(), experiment()
    here.begin(chosen)
    here.await_round(0)
    here.in_background(lambda: here.slow(dice.randrange(3), 0.5))
    here.finish()
    assert_same_bytes(here, chosen, chronicle, tmp_path / "local")


def test_superlink_killed(prepare: Start, chronicle: Chronicle, dice: random.Random, tmp_path: Path) -> None:
    here, chosen = prepare(), experiment()
    here.begin(chosen)
    at_some_moment(here, dice)
    here.kill_superlink()
    here.finish()
    assert here.resumed == 1
    assert_same_bytes(here, chosen, chronicle, tmp_path / "local")


# Clocks that are hours off


@pytest.fixture(scope="session")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What shifts a program's time of day, compiled."""
    compiler, library = shutil.which("cc"), tmp_path_factory.mktemp("clock") / "clock.so"
    if compiler is None:
        pytest.skip("there is no C compiler to build a wrong clock with")
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def give_clock(here: ChaosFederation, client: int, library: Path, seconds: float) -> Callable[[float], None]:
    """Let the time of day of a node be so many seconds ahead; the function returned sets it anew."""
    file = here.folder / f"clock-{client}"

    def turn(seconds: float) -> None:
        write_atomically(file, str(round(seconds)))
        here.log(f"the clock of node {client} is {seconds / HOUR:+.2f} hours off")

    turn(seconds)
    here.environment[f"node-{client}"] = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(file)}
    return turn


def test_clocks_off(prepare: Start, chronicle: Chronicle, dice: random.Random, clock: Path, tmp_path: Path) -> None:
    """One is a little late, which Flower allows; one jumps by hours, is refused, and comes back once it is right."""
    here, chosen = prepare(), experiment()
    late, jumps = dice.sample(range(3), 2)
    give_clock(here, late, clock, LATE)
    turn = give_clock(here, jumps, clock, 0)
    here.begin(chosen)
    at_some_moment(here, dice)
    turn(dice.choice((-30, 5)) * HOUR)
    here.wait(60)
    turn(0)
    here.finish()
    assert_same_bytes(here, chosen, chronicle, tmp_path / "local")


def test_a_clock_off_for_good(prepare: Start, chronicle: Chronicle, clock: Path) -> None:
    """A node that Flower never lets in is not waited for longer than the deadline."""
    here, chosen = prepare(), experiment("fedavg")
    give_clock(here, 2, clock, 5 * HOUR)
    here.begin(chosen, deadline=60, minimum=2)
    here.finish()
    assert here.files.read_history()[-1]["clients"] == [0, 1]
    assert_within_spread(here, chosen, chronicle, [0, 1])


# A full disk


def test_disk_full(prepare: Start, chronicle: Chronicle, dice: random.Random, tmp_path: Path) -> None:
    """The node cannot remember, says so, and goes on from what it has once there is room; nobody else notices."""
    here, chosen = prepare(), experiment("local", rounds=3)
    full, disk = dice.randrange(3), tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        here.configs[full] = {"state": f'"{disk}"'}
        here.begin(chosen)
        here.await_round(1)
        fill(disk / "filler")
        here.log(f"node {full} has no room left")
        here.await_round(2)
        (disk / "filler").unlink()
        here.log(f"node {full} has room again")
        here.finish()
    finally:
        here.__exit__(None, None, None)
        subprocess.run(["umount", disk], check=True)
    calm = feddag.run(chosen).history
    others = [client for client in range(3) if client != full]
    for mine, theirs in zip(here.files.read_history(), calm, strict=True):
        assert accuracy_of(mine, others) == accuracy_of(theirs, others)
    missing = [record["missing"] for record in here.files.read_history()]
    assert missing[0] == {} == missing[2] and missing[1].keys() == {str(full)}
    assert "No space left on device" in missing[1][str(full)]
    own = [accuracy_of(record, [full]) for record in here.files.read_history()]
    assert own[1] == own[0] != own[2]  # it lost a round of training, kept what it had, and went on
    assert_within_spread(here, chosen, chronicle, others)


def fill(path: Path) -> None:
    """Take all the room there is."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


# Liars


def make_liar(here: ChaosFederation, client: int, lie: str) -> None:
    """Let a node run code of its own."""
    site = str(here.folder / "sites" / f"{client}.npz")
    here.environment[f"node-{client}"] = {"PYTHONPATH": str(Path(__file__).parent), LIE: lie, SITE: site}
    here.configs[client] = {"data": '"hostile:site"'}
    here.log(f"node {client} lies: {lie}")


def honest_after(here: ChaosFederation, dice: random.Random, lie: str, chosen: feddag.Experiment) -> list[int]:
    """Run with one liar; returns the others. Whoever else is missing fails the scenario."""
    liar = dice.randrange(4)
    make_liar(here, liar, lie)
    here.begin(chosen, minimum=2)
    here.finish()
    assert {client for record in here.files.read_history() for client in record["missing"]} <= {str(liar)}
    return [client for client in range(4) if client != liar]


def test_reversed_updates(prepare: Start, chronicle: Chronicle, dice: random.Random) -> None:
    """They look like any other answer: the rule deals with them."""
    here, chosen = prepare(), experiment("fedavg", clients=4, rounds=3, robust="geometric-median")
    honest = honest_after(here, dice, "sign-flip", chosen)
    assert not any(record["missing"] for record in here.files.read_history())
    assert_within_spread(here, chosen, chronicle, honest)


def test_forged_answers(prepare: Start, chronicle: Chronicle, dice: random.Random) -> None:
    """Each is left out for a reason of its own."""
    here, chosen = prepare(), experiment("fedavg", clients=4, rounds=3, robust="geometric-median")
    honest = honest_after(here, dice, "forged answers", chosen)
    reasons = [set(record["missing"].values()) for record in here.files.read_history()]
    another = "answered for another round, client or run"
    assert reasons == [{"answered with weights beyond 1e+09"}, {another}, {"a malformed message"}]
    assert_within_spread(here, chosen, chronicle, honest)


def test_hostile_signature(prepare: Start, chronicle: Chronicle, dice: random.Random) -> None:
    """Whoever sends none that can be read is left out of the groups, and the others are grouped."""
    here, chosen = prepare(), experiment("feddag", clients=4, rounds=2, robust="geometric-median")
    honest = honest_after(here, dice, "hostile signature", chosen)
    assert "not a signature" in str(here.files.read_history()[0]["missing"])
    assert_within_spread(here, chosen, chronicle, honest)


# All of it


def test_storm(prepare: Start, chronicle: Chronicle, dice: random.Random, clock: Path) -> None:
    """One liar, one wrong clock, and for some minutes something happens to somebody all the time.

    The lie is that of a simulated attack, so the result is that of the simulation, to the last bit.
    """
    here = prepare()
    chosen = experiment(clients=4, rounds=max(3, round(STORM_MINUTES / 2)), robust="geometric-median")
    [liar] = draw_attackers(chosen.seed, 4, 0.25)
    make_liar(here, liar, "sign-flip")
    turn = give_clock(here, (liar + 1) % 4, clock, LATE)
    here.begin(chosen, minimum=2)
    here.in_background(lambda: storm(here, dice, 60 * STORM_MINUTES, turn))
    here.finish()
    honest = [client for client in range(4) if client != liar]
    assert_within_spread(here, chosen, chronicle, honest)
    if not any(record["missing"] for record in here.files.read_history()):
        lied = feddag.run(chosen.model_copy(update={"attack": "sign-flip", "attackers": 0.25}))
        for mine, simulated in zip(here.files.read_history(), lied.history, strict=True):
            assert mine["per_client"] == simulated["per_client"] and mine["loss"] == simulated["loss"]
        here.log("the same figures in every round as in the simulated attack")


def storm(here: ChaosFederation, dice: random.Random, seconds: float, turn: Callable[[float], None]) -> None:
    """Something happens to somebody again and again."""
    while seconds > 0:
        calm, lasts, node = dice.uniform(15, 60), dice.uniform(5, 60), dice.randrange(4)
        kind = dice.choices(("kill", "superlink", "pause", "slow", "clock"), (3, 1, 3, 2, 1))[0]
        seconds -= calm + lasts
        if here.wait(calm):
            return
        if kind == "kill":
            here.kill(node)
        elif kind == "superlink":
            here.kill_superlink()
        elif kind == "pause":
            here.pause(node, lasts)
        elif kind == "slow":
            here.slow(node, 0.3, lasts)
        else:
            turn(5 * HOUR)
            here.wait(lasts)
            turn(LATE)
    here.log("the storm is over")
