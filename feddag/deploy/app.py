"""The Flower app: a few small files that a person can read, and `flwr run` accepts."""

import json
import shutil
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from feddag._version import __version__
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.files import write_atomically
from feddag.models import ModelSpec
from feddag.own_code import source_files
from feddag.runner.serving import SampleFormat

PACKAGE = "federation"
EXPERIMENT = "experiment.toml"
TASK = "task.toml"


@dataclass(frozen=True)
class Task(SampleFormat):
    """What all nodes must agree on beside the experiment: what a sample looks like and which classes there are."""

    @classmethod
    def read(cls, folder: Path) -> "Task":
        """From the app's task.toml."""
        try:
            content = tomllib.loads((folder / TASK).read_text(encoding="utf-8"))
            return cls(**{name: tuple(content[name]) for name in cls.__dataclass_fields__})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FeddagError(f"'{folder / TASK}' is not a task file: {error}") from None

    def to_toml(self) -> str:
        """The text of task.toml."""
        return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in asdict(self).items())

    def model(self, experiment: Experiment) -> ModelSpec:
        """The network for this task."""
        return experiment.network(self.sample_shape, len(self.classes))


SERVER_APP = '''"""The server's side: asks the nodes, one message each, and keeps the run directory."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from feddag.deploy.server import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run experiment.toml from its first round to its last."""
    serve(grid, context.run_config, Path(__file__).parent)
'''

CLIENT_APP = '''"""A node's side: works with the data that its own configuration names. Samples never leave it."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from feddag.deploy import node

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Say which client this node is."""
    return node.hello(message, context)


@app.train("work")
def work(message: Message, context: Context) -> Message:
    """Do a job and send arrays and numbers back."""
    return node.work(message, context, Path(__file__).parent)
'''

PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "feddag-federation"
version = "1.0.0"
description = "{title}, run by feddag {version}"
license = "Apache-2.0"
# feddag itself is installed on every machine beforehand: an app is small, and nodes install nothing at run time
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "feddag"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
out = "{out}"        # the run directory, on the server's machine
resume = false       # continue the unfinished run in it
deadline = 600       # seconds that an exchange waits for a client
minimum = {minimum}          # fewest clients that must be there and answer; with fewer the run stops, to be resumed
patience = 3         # rounds after which a client that is out of reach counts as having left
keys = ""            # a folder of public keys named after their clients (site-0.pub): nobody else can be that client
largest-reply = 1024 # megabytes; a bigger answer is not read
data = ""            # only for Flower's simulation: where client {{client}} finds its samples
state = ""           # only for Flower's simulation: where clients keep their memory
"""


def write_app(folder: Path, experiment: Experiment, out: str = "") -> Task:
    """Write a Flower app for an experiment. Its dataset only shows what samples look like; that of one site will do."""
    if folder.exists() and any(folder.iterdir()):
        raise FeddagError(f"directory '{folder}' is not empty; give a new one")
    task = Task.of(experiment.load_dataset())
    task.model(experiment).build()  # what cannot work is refused here and not on the nodes
    own_names = [name.partition(":")[0] for name in (experiment.method, experiment.model or "") if ":" in name]
    own_files = {target: path for module in own_names for target, path in _own_files(module).items()}
    minimum = max(1, (experiment.clients or 1) // 2)
    pyproject = PYPROJECT.format(
        title=experiment.title(), version=__version__, package=PACKAGE, out=out or "feddag-run", minimum=minimum
    )
    package = folder / PACKAGE
    write_atomically(folder / "pyproject.toml", pyproject)
    write_atomically(package / "__init__.py", "")
    write_atomically(package / "server.py", SERVER_APP)
    write_atomically(package / "client.py", CLIENT_APP)
    write_atomically(package / EXPERIMENT, experiment.to_toml())
    write_atomically(package / TASK, task.to_toml())
    for target, path in own_files.items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / target)
    return task


def _own_files(module: str) -> dict[Path, Path]:
    """The files of a method or model of the user's own, under the paths by which a node imports them from the app."""
    if module.partition(".")[0] == "feddag":
        return {}  # every node has it
    files = {}
    folders = set()
    for name, path in source_files(module).items():
        parts = name.split(".")
        target = Path(*parts, "__init__.py") if path.name == "__init__.py" else Path(*parts[:-1], f"{parts[-1]}.py")
        files[target] = path
        folders.add(path.parents[len(target.parts) - 1])
    otherwise = "install it on every node and write the app by hand"
    if not files:
        raise FeddagError(f"module '{module}' is not a Python file that can travel with the app; {otherwise}")
    if len(folders) > 1:
        places = ", ".join(f"'{folder}'" for folder in sorted(folders))
        raise FeddagError(
            f"module '{module}' imports your own code from {places}; keep it in one folder, or {otherwise}"
        )
    if any(target.parts[0] in (PACKAGE, f"{PACKAGE}.py") for target in files):
        raise FeddagError(f"module '{module}' needs a module '{PACKAGE}', and the app has its own; rename yours")
    return files
