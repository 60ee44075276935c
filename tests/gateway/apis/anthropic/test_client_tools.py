"""Anthropic's tools without a schema, held against the types of its Python package."""

from __future__ import annotations

import typing

import pytest
from anthropic.types.beta import BetaMemoryTool20250818Command, BetaToolUnionParam

from tests.gateway.apis.anthropic.test_request import HELLO, read
from uma_gateway.apis.anthropic.client_tools import TOOLS

OF_CLIENTS = ("bash_", "text_editor_", "memory_")


def names_of_types():
    """Return the types of tools that the package knows, with the name that each tool has."""
    hints = [typing.get_type_hints(tool) for tool in typing.get_args(BetaToolUnionParam)]
    return {typing.get_args(hint["type"])[0]: typing.get_args(hint.get("name")) for hint in hints if "type" in hint}


def test_every_version_is_known():
    known = {kind for kind in map(str, names_of_types()) if kind.startswith(OF_CLIENTS)}
    assert known and known <= TOOLS.keys()


@pytest.mark.parametrize("kind", TOOLS)
def test_the_model_sees_a_tool_whose_schema_the_client_does_not_send(kind):
    tool = {"type": kind, "name": "run"}
    (function,) = (shown["function"] for shown in read(tools=[tool], tool_choice={"type": "any"}).tools)
    assert function["name"] == "run" and function["description"]
    assert set(function["parameters"]["required"]) <= function["parameters"]["properties"].keys()


def test_the_memory_has_the_commands_of_the_package_s_types():
    commands = typing.get_args(typing.get_args(BetaMemoryTool20250818Command)[0])
    fields = {name for command in commands for name in command.model_fields}
    properties = TOOLS["memory_20250818"][1]["properties"]
    assert properties.keys() == fields
    assert set(properties["command"]["enum"]) == {
        typing.get_args(command.model_fields["command"].annotation)[0] for command in commands
    }


def test_tools_that_answer_with_pictures_are_not_shown():
    computer = {"type": "computer_20251124", "name": "computer", "display_width_px": 9, "display_height_px": 9}
    chat = read(tools=[computer, {"type": "bash_20250124", "name": "bash"}], messages=HELLO)
    assert [tool["function"]["name"] for tool in chat.tools] == ["bash"]
