"""Packaging: also builds llama.cpp and the bindings, through the build cache.

Everything else is in pyproject.toml.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # pip runs this file from outside the tree

from bindings.compile import build_module  # noqa: E402
from native.build import Native, prepare  # noqa: E402
from native.pin import BuildError  # noqa: E402
from native.progress import Progress  # noqa: E402


class State:
    """Prepares the libraries once, for both commands."""

    progress = Progress()
    native: Native | None = None

    @classmethod
    def prepared(cls) -> Native:
        if cls.native is None:
            try:
                cls.native = prepare(cls.progress)
            except BuildError as error:
                sys.exit(f"uma-serve: {error}")
        return cls.native


class BuildWithLibraries(build_py):
    """Builds the libraries first: they are package data. A former build of the tree leaves no files in the new one."""

    def run(self) -> None:
        State.prepared()
        for package in {name.partition(".")[0] for name in self.packages or ()}:
            shutil.rmtree(Path(self.build_lib) / package, ignore_errors=True)
        super().run()


class BuildBindings(build_ext):
    """Compiles uma_core/_llama with our own flags instead of Python's."""

    def build_extension(self, ext: Extension) -> None:
        native = State.prepared()
        try:
            build_module(native, Path(self.get_ext_fullpath(ext.name)).resolve(), State.progress)
        except BuildError as error:
            sys.exit(f"uma-serve: {error}")


setup(
    ext_modules=[Extension("uma_core._llama", sources=[])],
    cmdclass={"build_py": BuildWithLibraries, "build_ext": BuildBindings},
)
