"""The daemon's configuration: where its values come from, and how two configurations differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from uma_core.config.merge import Inputs, Schema, Sources, merge
from uma_core.config.options import OPTIONS, Config, conflicts
from uma_core.config.presets import PRESETS
from uma_core.policy.pipeline import check_serving

__all__ = ["SCHEMA", "Change", "Inputs", "Sources", "diff", "load"]

# variables that others read: the native build (native/build.py lists them), the command line, clients
BUILD_VARIABLES = frozenset(
    "UMA_" + name for name in ("BACKEND", "BUILD", "BUILD_CACHE", "CMAKE_ARGS", "JOBS", "LLAMA_DIR", "OPENMP", "SDIST")
)
FOREIGN_VARIABLES = BUILD_VARIABLES | {"UMA_CONFIG", "UMA_TRUST_UIDS"}
GATEWAY_PREFIX = "UMA_GATEWAY_"  # of the variables of the HTTP gateway's options


def _conflicts(config: Config) -> Iterator[tuple[str, str]]:
    yield from conflicts(config)
    try:
        check_serving(config.scheduler.stages)
    except ValueError as error:
        yield "scheduler.stages", f"do not make a policy: {error}"


SCHEMA = Schema(
    Config,
    OPTIONS,
    _conflicts,
    "UMA_",
    lambda name: name in FOREIGN_VARIABLES or name.startswith(GATEWAY_PREFIX),
    {name: preset.values for name, preset in PRESETS.items()},
)


class Change(NamedTuple):
    """One difference between two configurations."""

    key: str
    old: Any
    new: Any
    reload: str  # "live", "engine" or "restart"

    @property
    def is_reloadable(self) -> bool:
        return self.reload != "restart"


def load(inputs: Inputs) -> tuple[Config, Sources]:
    """Build the configuration.

    Blocks: reads the file. Raises CONFIG_INVALID, with every problem in `detail.problems`.
    """
    return merge(SCHEMA, inputs)


def diff(old: Config, new: Config) -> list[Change]:
    """List the options that differ, in order of declaration. Pure."""
    both = zip(SCHEMA.items(old), SCHEMA.items(new), strict=True)
    return [Change(opt.key, before, after, opt.reload) for (opt, before), (_, after) in both if before != after]
