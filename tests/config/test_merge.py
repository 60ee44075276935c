"""Options of any program, from flags, variables and files. Those of the daemon: test_load.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from uma_core.config.merge import Inputs, Schema, merge, read_yaml, read_yaml_list
from uma_core.config.schema import option, options_of
from uma_core.errors import ErrorCode, UmaError


@dataclass(frozen=True)
class Part:
    most: int = option(8, "most", min=0, max=99)
    few: int = option(4, "few", min=0, max=99, cap="part.most")
    name: str = option("", "name")


@dataclass(frozen=True)
class Config:
    part: Part = field(default_factory=Part)


def conflicts(config: Config) -> Iterator[tuple[str, str]]:
    if config.part.name == "both" and config.part.most == 9:
        yield "part.name", "does not fit"


SCHEMA = Schema(Config, tuple(options_of("part", Part, "X_")), conflicts, "X_", lambda name: name == "X_FOREIGN")


def merged(flags: Any = (), environ: Any = (), path: str = "") -> tuple[Part, Any]:
    config, sources = merge(SCHEMA, Inputs(dict(flags), dict(environ), path))
    return config.part, sources


def refusal(**inputs: Any) -> str:
    with pytest.raises(UmaError) as caught:
        merged(**inputs)
    assert caught.value.error is ErrorCode.CONFIG_INVALID
    return caught.value.message


def test_flag_beats_variable_beats_file_beats_default(write) -> None:
    path = write("part: {most: 10, few: 1, name: file}\n")
    part, sources = merged({"part.most": "30"}, {"X_MOST": "20", "X_FEW": "2"}, path)
    assert part == Part(30, 2, "file")
    assert sources.origins["part.few"] == "variable X_FEW"
    assert sources.origins["part.name"] == f"file {path}"


def test_a_default_follows_its_cap_and_a_value_does_not() -> None:
    assert merged({"part.most": "2"})[0].few == 2
    assert "part.few must be at most part.most (2), not 3" in refusal(flags={"part.most": "2", "part.few": "3"})


def test_values_that_do_not_fit_together_are_refused() -> None:
    assert "part.name does not fit" in refusal(flags={"part.name": "both", "part.most": "9"})


def test_only_the_program_s_own_unknown_variables_are_named() -> None:
    (warning,) = merged(environ={"X_MOSR": "1", "X_FOREIGN": "1", "Y_MOST": "1"})[1].warnings
    assert "X_MOSR" in warning and "X_MOST" in warning


def test_both_spellings_of_an_option_are_one(write) -> None:
    assert merged(path=write("part.most: 7\n"))[0].most == 7
    assert "part.most appears twice" in refusal(path=write("part.most: 7\npart: {most: 8}\n"))


def test_a_file_holds_what_is_expected(write) -> None:
    assert (read_yaml(write("")), read_yaml_list(write(""))) == ({}, [])
    assert read_yaml_list(write("- 1:30\n- 1e-05\n")) == ["1:30", 1e-05]
    for read, text in ((read_yaml, "- a\n"), (read_yaml_list, "a: b\n"), (read_yaml, "a: b\na: c\n")):
        with pytest.raises(UmaError):
            read(write(text))
