"""Builds the native trainer, one module per instruction set; without a compiler the package installs without it."""

import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

INSTRUCTION_SETS: dict[str, list[str]] = {"portable": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    INSTRUCTION_SETS["avx2"] = ["-mavx2", "-mfma"]
    INSTRUCTION_SETS["avx512"] = ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]

FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]


def extensions() -> list[Extension]:
    try:
        import pybind11
    except ImportError:
        print("pybind11 is missing: installing without the native trainer", file=sys.stderr)
        return []
    sanitize = os.environ.get("FEDDAG_SANITIZE")
    checks = [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g", "-O1"] if sanitize else ["-g0"]
    return [
        Extension(
            f"feddag.native._{name}",
            ["feddag/native/src/module.cpp"],
            depends=sorted(str(path) for path in Path("feddag/native/src").glob("*.hpp")),
            include_dirs=[pybind11.get_include()],
            define_macros=[("FEDDAG_MODULE", f"_{name}")],
            extra_compile_args=[*FLAGS, *flags, *checks],
            extra_link_args=checks[:1] if sanitize else [],
            language="c++",
            optional=True,
        )
        for name, flags in INSTRUCTION_SETS.items()
    ]


class BuildEach(build_ext):
    """The modules share one source file, so each is compiled in a folder of its own."""

    def build_extension(self, ext: Extension) -> None:
        shared, self.build_temp = self.build_temp, str(Path(self.build_temp) / ext.name)
        try:
            super().build_extension(ext)
        finally:
            self.build_temp = shared


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildEach})
