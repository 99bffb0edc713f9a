"""One file per algorithm. A method is found by being here; nothing else lists it.

A method of your own is named `module:Class` and needs no change in this package.
"""

import importlib
import inspect
import pkgutil
from functools import cache

from feddag.errors import FeddagError, nearest, short
from feddag.methods.base import Method, MethodSettings
from feddag.own_code import resolve

__all__ = ["Method", "MethodSettings", "all_methods", "find_method", "method_label"]


@cache
def all_methods() -> dict[str, type[Method]]:
    """Every method in this folder, by name.

    >>> "fedavg" in all_methods()
    True
    """
    found: dict[str, type[Method]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for item in vars(module).values():
            if isinstance(item, type) and issubclass(item, Method) and "name" in vars(item):
                found[item.name] = item
    return dict(sorted(found.items()))


def find_method(name: str) -> type[Method]:
    """The method of that name, or of `module:Class`."""
    if ":" in name:
        found: object = resolve("method", name)
        if not (isinstance(found, type) and issubclass(found, Method)):
            raise FeddagError(f"method = '{short(name)}' is not a subclass of feddag.Method")
        if inspect.isabstract(found):
            missing = ", ".join(sorted(found.__abstractmethods__))
            raise FeddagError(f"method = '{short(name)}' cannot be used: it does not define {missing}")
        return found
    methods = all_methods()
    if name not in methods:
        raise FeddagError(
            f"method = '{short(name)}' is not a method; allowed are {', '.join(methods)} or module:Class"
            f"{nearest(name, methods)}"
        )
    return methods[name]


def method_label(name: str) -> str:
    """What a method is called where a person reads it: one of the user's own by the name that it gives itself.

    >>> method_label("fedavg"), method_label("feddag.methods.fedavg:FedAvg")
    ('fedavg', 'fedavg')
    """
    if ":" not in name:
        return name
    kind = find_method(name)
    own = vars(kind).get("name")  # not that of the method it was made from
    return own if isinstance(own, str) else kind.__name__
