"""A run directory that somebody else handed over: nothing in it is imported, and nothing outside of it is touched."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import feddag
from feddag.cli import main
from feddag.cli.common import how_to_resume
from feddag.errors import FeddagError
from feddag.files import check_plain, open_plain, read_plain, write_atomically
from feddag.report import read_run, write_report
from feddag.report.live import LivePage, read_state
from feddag.runner.directory import RunDirectory
from feddag.runner.trees import load_tree, save_tree

QUICK = {"clients": 4, "groups": 2, "rounds": 2, "epochs": 1, "workers": 1}
SPY = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\ndef call(*told): pass\n"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has finished; tests copy it."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    feddag.run(feddag.Experiment(method="local", **QUICK), directory)
    return directory


@pytest.fixture
def handed(finished: Path, in_tmp: Path) -> Path:
    """A copy of the run in the current folder, beside a module that leaves a mark when it is imported."""
    shutil.copytree(finished, in_tmp / "run")
    (in_tmp / "spy.py").write_text(SPY)
    sys.modules.pop("spy", None)
    return in_tmp / "run"


@pytest.fixture
def unfinished(handed: Path) -> Path:
    """The same, but stopped before its result was written."""
    (handed / "result.json").unlink()
    return handed


def rewrite(path: Path, name: str, value: str) -> None:
    """Set a field of an experiment.toml."""
    kept = [line for line in path.read_text().splitlines() if not line.startswith(f"{name} = ")]
    path.write_text("\n".join([*kept, f'{name} = "{value}"', ""]))


def refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the program complains about, in one line and with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["feddag", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    complaint = capsys.readouterr().err
    assert ended.value.code == 2 and complaint.count("\n") == 1, complaint
    return complaint


@contextlib.contextmanager
def nothing_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the spy nor anything by the name that a file gives."""

    def looked_up(name: str) -> None:
        raise AssertionError(f"{name} was looked up")

    with monkeypatch.context() as patch:
        patch.setattr("pkgutil.resolve_name", looked_up)
        yield
    assert not Path("imported").exists() and "spy" not in sys.modules


@pytest.mark.parametrize(
    ("field", "name"),
    [("method", "subprocess:call"), ("method", "spy:call"), ("model", "os:system"), ("model", "spy:call")],
)
def test_code_that_a_run_brings_is_imported_only_where_it_is_trusted(
    handed: Path, field: str, name: str, monkeypatch, capsys
) -> None:
    rewrite(handed / "experiment.toml", field, name)
    with nothing_imported(monkeypatch):
        with pytest.raises(FeddagError, match=f"does not come with feddag .{field} = '{name}'.*trust=True"):
            feddag.load(handed)
        (handed / "result.json").unlink()
        assert "--trust" in refused(["run", "--resume", "run"], monkeypatch, capsys)
        assert "--trust" in refused(["flower", "up", "--resume", "run"], monkeypatch, capsys)
        for command in ("show", "report"):
            monkeypatch.setattr(sys, "argv", ["feddag", command, "run"])
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code
        live = LivePage(handed)
        assert all(live.answer(path) for path in ("/", "/state.json", "/document.json"))
        live.server.server_close()
    assert "--trust" not in refused(["run", "--resume", "run", "--trust"], monkeypatch, capsys)  # refused otherwise


def test_own_code_that_is_trusted_is_used(in_tmp: Path, monkeypatch, capsys) -> None:
    (in_tmp / "trusted_method.py").write_text(
        "from feddag.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = 'mine'\n"
    )
    experiment = feddag.Experiment(method="trusted_method:Mine", **QUICK)
    feddag.run(experiment, "run")
    assert feddag.load("run", trust=True).model(0) is not None
    with pytest.raises(FeddagError, match="trust=True"):
        feddag.load("run")


@pytest.mark.parametrize("name", ["subprocess:call", "spy:call", "cnn", "", "mlpp"])
def test_a_checkpoint_does_not_choose_the_network(handed: Path, name: str, monkeypatch) -> None:
    [newest] = (handed / "checkpoints").glob("*2.safetensors")
    tree = load_tree(newest)
    save_tree(newest, tree | {"model": (name, *tree["model"][1:])})
    with nothing_imported(monkeypatch), pytest.raises(FeddagError, match="are of another network than"):
        feddag.load(handed).model(0)


@pytest.mark.parametrize(
    "said",
    [
        *(((1, -8, 8), 10, 1), ((1, 8, 8), 0, 1), ((1, 8, 8), 10, 3), ((1, 8, 8), 10, 2), ((1, 8.5, 8), 10, 1)),
        *(((), 10, 1), ((1, 2**30, 2**30), 10, 1), ((2**30,) * 9, 2**30, 1), ((1, 8, 8), 2**30, 1), ("188", 10, 1)),
    ],
)
def test_the_size_of_a_network_is_that_of_its_weights(handed: Path, said: tuple[object, ...]) -> None:
    for path in (handed / "checkpoints").glob("*.safetensors"):
        save_tree(path, load_tree(path) | {"model": ("mlp", *said)})
    with pytest.raises(FeddagError, match=f"'{handed}") as caught:
        feddag.load(handed).model(0)
    assert "\n" not in str(caught.value)


FILES = (
    *("experiment.toml", "result.json", "serving.json", "history.jsonl"),
    *("grouping.safetensors", "partition.npz", ".lock"),
)
FOLDERS = ("checkpoints", "states", "held")


def look_at(directory: Path) -> None:
    """Everything that only reads."""
    read_run(directory)
    read_state(directory)
    feddag.load(directory).model(0)


@pytest.mark.parametrize("name", [*FILES, "checkpoints/round-000002.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "link", "folder"])
def test_only_plain_files_are_read(handed: Path, name: str, kind: str) -> None:
    outside = handed.parent / "outside"
    shutil.copy(handed / name, outside)
    (handed / name).unlink()
    if kind == "pipe":
        os.mkfifo(handed / name)
    elif kind == "folder":
        (handed / name).mkdir()
    else:
        (handed / name).symlink_to("/dev/zero" if kind == "device" else outside)
    with pytest.raises(FeddagError, match="is not a plain file"):
        look_at(handed)


@pytest.mark.parametrize("name", [*FILES[:-1], "checkpoints/round-000002.safetensors"])
def test_the_size_of_a_file_is_limited_before_it_is_read(handed: Path, name: str) -> None:
    os.truncate(handed / name, 2**40)  # takes no room on the disk
    with pytest.raises(FeddagError, match="is too large: allowed are"):
        look_at(handed)


@pytest.mark.parametrize("name", [".lock", "history.jsonl"])
@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_nothing_is_written_through_a_link(unfinished: Path, name: str, kind: str, monkeypatch, capsys) -> None:
    victim = unfinished.parent / "victim"
    victim.write_bytes((unfinished / name).read_bytes() + b"mine")
    (unfinished / name).unlink()
    before = victim.read_bytes()
    (unfinished / name).symlink_to(victim) if kind == "symbolic" else (unfinished / name).hardlink_to(victim)
    assert "in its place" in refused(["run", "--resume", "run"], monkeypatch, capsys)
    assert victim.read_bytes() == before


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_a_link_is_refused(unfinished: Path, name: str, monkeypatch, capsys) -> None:
    outside = unfinished.parent / "outside"
    if (unfinished / name).exists():
        (unfinished / name).rename(outside)
    outside.mkdir(exist_ok=True)
    (outside / "round-000009.safetensors").write_text("mine")
    (unfinished / name).symlink_to(outside)
    before = sorted(path.name for path in outside.iterdir())
    assert "is a link" in refused(["run", "--resume", "run"], monkeypatch, capsys)
    assert sorted(path.name for path in outside.iterdir()) == before


def test_a_new_run_does_not_follow_links_either(in_tmp: Path) -> None:
    for name in ("experiment.toml", "partition.npz", "grouping.safetensors", "serving.json", "result.json"):
        (in_tmp / f"victim-{name}").write_text("mine")
        (in_tmp / "run").mkdir(exist_ok=True)
        (in_tmp / "run" / name).symlink_to(in_tmp / f"victim-{name}")
    (in_tmp / "run/result.json").unlink()  # with it, the run would have finished
    feddag.run(feddag.Experiment(method="fedavg", **QUICK), "run", resume=True)
    assert {path.read_text() for path in in_tmp.glob("victim-*")} == {"mine"}
    assert not any(path.is_symlink() for path in (in_tmp / "run").iterdir())


def test_a_run_directory_may_itself_be_a_link(in_tmp: Path) -> None:
    """As to a larger disk: whoever names it on the command line knows where it leads."""
    (in_tmp / "disk").mkdir()
    (in_tmp / "run").symlink_to(in_tmp / "disk")
    feddag.run(feddag.Experiment(method="fedavg", **QUICK), "run")
    assert feddag.load("run").model(0) is not None and write_report(Path("run")).exists()


def test_how_to_go_on_names_all_that_is_needed(in_tmp: Path) -> None:
    (in_tmp / "going_on.py").write_text("from feddag.methods.fedavg import FedAvg\nclass Mine(FedAvg): name = 'mine'\n")
    own = feddag.Experiment(method="going_on:Mine")
    assert how_to_resume("feddag run", Path("my run"), own) == "feddag run --resume 'my run' --trust"
    assert how_to_resume("feddag run", Path("r"), feddag.Experiment()) == "feddag run --resume r"


def test_a_planted_temporary_file_is_not_used(tmp_path: Path, monkeypatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (f".a.txt.{os.getpid()}.tmp", ".feddag-00.tmp"):
        (tmp_path / name).symlink_to(victim)
    write_atomically(tmp_path / "a.txt", "new")
    assert ((tmp_path / "a.txt").read_text(), victim.read_text()) == ("new", "mine")
    monkeypatch.setattr("secrets.token_hex", lambda size: "00")
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "a.txt", "newer")
    assert ((tmp_path / "a.txt").read_text(), victim.read_text()) == ("new", "mine")


def test_a_socket_a_device_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FeddagError, match="is not a plain file"):
        read_plain(Path("/dev/zero"), 10, links=True)
    with pytest.raises(FeddagError, match="is not a plain file"):
        open_plain(tmp_path, os.O_RDWR)
    with pytest.raises(FileNotFoundError):
        check_plain(tmp_path / "none", 10)
    (tmp_path / "a").write_text("x" * 11)
    with pytest.raises(FeddagError, match="is too large"):
        read_plain(tmp_path / "a", 10)
    assert read_plain(tmp_path / "a", 11) == b"x" * 11


def test_a_copy_holds_no_links_and_no_pipes(handed: Path) -> None:
    secret = handed.parent / "secret"
    secret.write_text("mine")
    (handed / "notes").symlink_to(secret)
    os.mkfifo(handed / "pipe")
    feddag.load(handed).save(handed.parent / "copy")
    assert not {"notes", "pipe", ".lock"} & {path.name for path in (handed.parent / "copy").iterdir()}
    assert feddag.load(handed.parent / "copy").model(0) is not None


def test_what_a_killed_process_left_half_written_is_swept_up(unfinished: Path) -> None:
    left = [unfinished / ".feddag-0123.tmp", unfinished / "checkpoints/.feddag-4567.tmp"]
    for path in left:
        path.write_text("half")
    with RunDirectory(unfinished).locked():
        assert not any(path.exists() for path in left)


def test_the_page_is_written_beside_a_link_and_not_through_it(handed: Path) -> None:
    victim = handed.parent / "victim"
    victim.write_text("mine")
    (handed / "report.html").symlink_to(victim)
    write_report(handed)
    assert victim.read_text() == "mine"
