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
from feddag.records import RoundRecord
from tests.chaos.conftest import Chronicle
from tests.chaos.federation import ChaosFederation
from tests.chaos.hostile import LIE, SITE
from tests.engines.test_flower_processes import assert_same_as_local

pytestmark = pytest.mark.skipif("FEDDAG_TEST_CHAOS" not in os.environ, reason="make test-chaos runs it")

ROUNDS = 3
HOUR = 3600
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


def at_some_moment(here: ChaosFederation, dice: random.Random, seconds: float = 20.0) -> None:
    """Wait until some moment in some round but the last."""
    here.await_round(dice.randrange(ROUNDS - 1))
    here.wait(dice.uniform(0, seconds))


# Nodes that die, hang and lag, and a server that dies: the same bytes


def test_nothing_happens(prepare: Start, chronicle: Chronicle, tmp_path: Path) -> None:
    here, chosen = prepare(), experiment()
    here.begin(chosen)
    here.finish()
    assert_same_bytes(here, chosen, chronicle, tmp_path / "local")


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


@pytest.mark.parametrize("seconds", [20, 100], ids=["paused for 20 s", "paused for 100 s"])
def test_a_node_paused(
    prepare: Start, chronicle: Chronicle, dice: random.Random, tmp_path: Path, seconds: float
) -> None:
    """For less, and for more than the time after which Flower takes it for lost."""
    here, chosen = prepare(), experiment()
    here.begin(chosen)
    at_some_moment(here, dice)
    here.in_background(lambda: here.pause(dice.randrange(3), seconds))
    here.finish()
    assert_same_bytes(here, chosen, chronicle, tmp_path / "local")


def test_a_slow_node(prepare: Start, chronicle: Chronicle, dice: random.Random, tmp_path: Path) -> None:
    here, chosen = prepare(), experiment()
    here.begin(chosen)
    here.in_background(lambda: here.slow(dice.randrange(3), 0.25))
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


def test_a_node_gone_for_good(prepare: Start, chronicle: Chronicle, dice: random.Random) -> None:
    here, chosen = prepare(), experiment("fedavg", clients=4)
    here.begin(chosen, deadline=120, minimum=2)
    here.await_round(1)
    gone = dice.randrange(4)
    here.kill(gone, for_good=True)
    here.finish()
    missing = {client for record in here.files.read_history() for client in record["missing"]}
    assert missing == {str(gone)}
    assert_within_spread(here, chosen, chronicle, [client for client in range(4) if client != gone])


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


def with_clock(library: Path, hours: float) -> dict[str, str]:
    """The environment of a program whose time of day is so many hours ahead."""
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(round(hours * HOUR))}


def test_clocks_off(prepare: Start, chronicle: Chronicle, clock: Path, tmp_path: Path) -> None:
    here, chosen = prepare(), experiment()
    here.environment = {"node-0": with_clock(clock, 5), "node-1": with_clock(clock, -30)}
    here.log("node 0 is 5 hours ahead, node 1 is 30 hours behind")
    here.begin(chosen)
    here.finish()
    assert_same_bytes(here, chosen, chronicle, tmp_path / "local")


def test_a_clock_off_with_keys(prepare: Start, chronicle: Chronicle, clock: Path) -> None:
    """Flower signs times: a node with a wrong clock is not let in, and the others go on without it."""
    here, chosen = prepare(tls=True), experiment("fedavg")
    here.environment = {"node-2": with_clock(clock, 5)}
    here.log("node 2 is 5 hours ahead, and nodes prove who they are")
    here.begin(chosen, deadline=60, minimum=2)
    here.finish()
    assert here.files.read_history()[-1]["clients"] == [0, 1]
    assert_within_spread(here, chosen, chronicle, [0, 1])


# A full disk


def test_disk_full(prepare: Start, chronicle: Chronicle, dice: random.Random, tmp_path: Path) -> None:
    """The node cannot remember, says so, and goes on from what it has once there is room; nobody else notices."""
    here, chosen = prepare(), experiment("local", rounds=4)
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
        here.await_round(3)
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
    assert missing[0] == {} == missing[3] and missing[2].keys() == {str(full)}
    assert "No space left on device" in missing[2][str(full)]
    assert_within_spread(here, chosen, chronicle, [0, 1, 2])


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


@pytest.mark.parametrize(
    ("lie", "method"),
    [
        ("sign-flip", "fedavg"),
        ("huge weights", "fedavg"),
        ("forged replies", "fedavg"),
        ("malformed replies", "fedavg"),
        ("hostile signature", "feddag"),
    ],
    ids=lambda value: value if value not in ("fedavg", "feddag") else "",
)
def test_a_liar(prepare: Start, chronicle: Chronicle, dice: random.Random, lie: str, method: str) -> None:
    here = prepare()
    chosen = experiment(method, clients=4, rounds=4, robust="geometric-median")
    liar = dice.randrange(4)
    make_liar(here, liar, lie)
    here.begin(chosen, minimum=2)
    here.finish()
    missing = [record["missing"] for record in here.files.read_history()]
    if lie == "sign-flip":
        assert not any(missing)  # it looks like an answer, and the rule deals with it
    else:
        assert all(record.keys() <= {str(liar)} for record in missing) and any(missing)
    assert_within_spread(here, chosen, chronicle, [client for client in range(4) if client != liar])


# All of it


def test_storm(prepare: Start, chronicle: Chronicle, dice: random.Random, clock: Path) -> None:
    """One liar, one wrong clock, and for some minutes something happens to somebody all the time.

    The lie is that of a simulated attack, so the result is that of the simulation, to the last bit.
    """
    here = prepare()
    chosen = experiment(clients=4, rounds=max(3, round(0.8 * STORM_MINUTES)), robust="geometric-median")
    [liar] = draw_attackers(chosen.seed, 4, 0.25)
    make_liar(here, liar, "sign-flip")
    here.environment[f"node-{(liar + 1) % 4}"] = with_clock(clock, 5)
    here.log(f"node {(liar + 1) % 4} is 5 hours ahead")
    here.begin(chosen, minimum=2)
    here.in_background(lambda: storm(here, dice, 60 * STORM_MINUTES))
    here.finish()
    honest = [client for client in range(4) if client != liar]
    assert_within_spread(here, chosen, chronicle, honest)
    if not any(record["missing"] for record in here.files.read_history()):
        lied = feddag.run(chosen.model_copy(update={"attack": "sign-flip", "attackers": 0.25}))
        for mine, simulated in zip(here.files.read_history(), lied.history, strict=True):
            assert mine["per_client"] == simulated["per_client"] and mine["loss"] == simulated["loss"]
        here.log("the same figures in every round as in the simulated attack")


def storm(here: ChaosFederation, dice: random.Random, seconds: float) -> None:
    """Something happens to somebody again and again."""
    kinds = ["kill", "pause", "slow", "superlink"]
    while seconds > 0:
        calm = dice.uniform(15, 60)
        seconds -= calm
        if here.wait(calm):
            return
        kind, node = dice.choices(kinds, (3, 3, 2, 1))[0], dice.randrange(4)
        lasts = dice.uniform(5, 60)
        if kind == "kill":
            here.kill(node)
        elif kind == "superlink":
            here.kill_superlink()
        else:
            here.pause(node, lasts) if kind == "pause" else here.slow(node, 0.3, lasts)
            seconds -= lasts
    here.log("the storm is over")
