"""What a person or a program may write: experiments in TOML, `--set`, node configuration, a run's own JSON."""

import json
import random
import string
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from feddag.cli.common import overrides
from feddag.data.partitions import PARTITIONS
from feddag.deploy.site import Node
from feddag.errors import FeddagError
from feddag.experiment import Experiment, read_experiment
from feddag.files import parse_toml
from feddag.methods import all_methods
from feddag.runner.checked import parse_history, read_result
from feddag.runner.run import prepare
from tests.fuzz.damage import Try, damage
from tests.fuzz.trees import JUNK, changed

VALUES = (
    *('""', '"x"', "-1", "0", "1", "2", "0.5", "-0.5", "1.5", "1e308", "1e-320", "nan", "inf", "-inf", "true", "false"),
    *(
        "9" * 19,
        "9" * 30,
        "9" * 5000,
        "[1, 2]",
        "[]",
        "{}",
        "{a = 1}",
        "1979-05-27",
        "07:32:00",
        "[[1]]",
        "none",
        "None",
    ),
    *('"nosuchmodule:thing"', '"json:loads"', '"collections:Counter"', '"a:b:c"', '":"', '"/dev/zero"', '"/nowhere"'),
    *(
        '"\\u001b[2J"',
        '"' + "a" * 5000 + '"',
        '"~nobody-here/x"',
        '"..."',
        "[" * 3000,
        "a." * 300 + "b = 1",
        "'''",
        '"\\u0000"',
    ),
    *(
        '"median"',
        '"clip"',
        '"sign-flip"',
        '"dirichlet"',
        '"natural"',
        '"concept-shift"',
        '"own"',
        '"validation"',
        '"raw"',
    ),
    *(
        '"fog,snow"',
        '"50,50"',
        '"100"',
        '"1,2,3"',
        '"lenet5"',
        '"resnet9"',
        '"torch"',
        '"native"',
        '"digits"',
        "10",
        "100",
    ),
)


@cache
def field_names() -> tuple[str, ...]:
    own = {name for method in all_methods().values() for name in method.Settings.model_fields}
    return (*Experiment.model_fields, *sorted(own - set(Experiment.model_fields)), "labels", "no_such_field", "")


def some_value(chance: random.Random) -> str:
    if chance.random() < 0.25:
        return str(chance.choice((chance.uniform(-2, 2), chance.randint(-5, 200), 10 ** chance.uniform(-9, 20))))
    return chance.choice(VALUES)


def some_toml(chance: random.Random) -> str:
    """An experiment of some methods' fields with strange values, or with damaged text."""
    method = chance.choice((*all_methods(), *all_methods(), "nobody:Nothing"))
    lines = [f'method = "{method}"'] + [
        f"{chance.choice(field_names())} = {some_value(chance)}" for _ in range(chance.randint(0, 3))
    ]
    text = "\n".join(lines) + "\n"
    if chance.random() < 0.5:
        whole = Experiment(method="feddag").to_toml() if chance.random() < 0.2 else text
        damaged = damage(np.random.default_rng(chance.getrandbits(32)), whole.encode())
        text = damaged.decode(errors="replace")
    return text


def read_text(text: str) -> Experiment:
    """An experiment from the text of a file; what is read also comes out of its own text again."""
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise FeddagError("not valid TOML") from error
    experiment = Experiment(**values)
    again = Experiment(**parse_toml(experiment.to_toml()))
    assert again.resolved() == experiment.resolved() and "\n" not in experiment.title()
    return experiment


def try_toml(chance: random.Random, scratch: Path) -> None:
    read_text(some_toml(chance))


def some_settings(chance: random.Random) -> list[str]:
    made = []
    for _ in range(chance.randint(1, 3)):
        name = chance.choice((*field_names(), "lr", "rounds", "clients"))
        value = (
            some_value(chance)
            if chance.random() < 0.7
            else "".join(chance.choices(string.printable, k=chance.randint(0, 12)))
        )
        made.append(
            chance.choice((f"{name}={value}",) * 8 + (name, f"{name}={value}\nrounds=1", f" {name} = {value} ", value))
        )
    return made


def try_set(chance: random.Random, scratch: Path) -> None:
    read_experiment(None, overrides(some_settings(chance)))


def try_experiment(chance: random.Random, scratch: Path) -> None:
    """Values that are allowed one by one, all the way to clients with their samples and a network."""
    method = chance.choice(list(all_methods()))
    values: dict[str, Any] = {"method": method, "clients": chance.choice((1, 2, 5, 10, 40, 1797, 10**5))}
    choices: dict[str, Any] = {
        "partition": tuple(PARTITIONS),
        "groups": (1, 2, 5, 50, 10**6), "classes_per_client": (1, 3, 10, 50), "concepts": (1, 4, 100, 10**6),
        "label_fraction": (1e-9, 0.2, 1.0), "concentration": (1e-9, 1e-3, 1.0, 1e9, 1e300),
        "corruptions": (0, 1, 3, 10**6, "fog,snow", "", ",", "nothing", -1), "severity": (1, 5),
        "mix": ("50,50", "100", "", "0,0", "-1,101", "a", "1e9", "nan,nan", "33,33,34"),
        "mix_kind": ("labels", "domains"),
        "samples_min": (1, 5, 10**9), "samples_max": (1, 50, 10**9), "fraction": (1e-9, 0.01, 1.0),
        "test": ("classes", "own"), "test_share": (1e-9, 0.5, 0.999999), "validation": (0, 1e-9, 0.5, 0.999999),
        "holdout": (0, 1e-9, 0.5, 0.999999), "base": ("dirichlet", "pathological"), "skewed": (True, False),
        "seed": (0, 2**53, 10**60), "model": ("mlp", "lenet5", "cnn", "resnet9", "", "x"),
        "trainer": ("auto", "torch", "native"),
    }  # fmt: skip
    for name in chance.sample(list(choices), chance.randint(1, 5)):
        values[name] = chance.choice(choices[name])
    prepare(Experiment(**values))


def try_node_config(chance: random.Random, scratch: Path) -> None:
    honest = {"client-id": 2, "data": "site.npz", "state": "/var/lib/x", "threads": 1, "least-per-class": 6}
    honest |= {"raw-inputs": False, "most-vectors": 5, "most-seconds": 60, "steps": "Train,Evaluate"}
    given = changed(chance, honest)
    node = Node.of(given if isinstance(given, dict) else honest, {"data": "{client}.npz", "state": chance.choice(JUNK)})
    assert node.client >= 0 and node.threads >= 1 and node.policy.least_per_class >= 0


# A run's own files ---------------------------------------------------------------------------------------------------


@cache
def _whole(name: str) -> tuple[Any, ...]:
    from tests.fuzz.runs import WHOLE, whole_run

    texts = [(whole_run(method) / name).read_text() for method in WHOLE]
    return tuple(
        tuple(map(json.loads, text.splitlines())) if name.endswith("l") else json.loads(text) for text in texts
    )


def try_history(chance: random.Random, scratch: Path) -> None:
    lines = list(chance.choice(_whole("history.jsonl")))
    number = chance.randrange(len(lines))
    lines[number] = changed(chance, lines[number])
    content = "".join(json.dumps(line) + "\n" for line in lines).encode(errors="replace")
    if chance.random() < 0.2:
        content = damage(np.random.default_rng(chance.getrandbits(32)), content)
    parse_history(content, Path("history.jsonl"))


def try_result(chance: random.Random, scratch: Path) -> None:
    content = json.dumps(changed(chance, chance.choice(_whole("result.json")))).encode(errors="replace")
    if chance.random() < 0.2:
        content = damage(np.random.default_rng(chance.getrandbits(32)), content)
    (scratch / "result.json").write_bytes(content)
    read_result(scratch / "result.json")


TEXTS: dict[str, Try] = {
    "toml": try_toml,
    "set": try_set,
    "experiment": try_experiment,
    "node-config": try_node_config,
    "history": try_history,
    "result": try_result,
}
