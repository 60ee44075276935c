"""Schemas and grammars that try to hang or crash a process. Each is refused with a code or is harmless, in a separate
process.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.forks import server_of

LARK_CHAIN = "'\\n'.join(['start: r0', *[f'r{i}: r{i + 1}' for i in range(9000)], 'r9000: \"a\"'])"
GBNF_CHAIN = (
    "'\\n'.join(['root ::= r0', *[f'r{i} ::= r{i + 1}' + chr(34) + 'a' + chr(34) for i in range(3000)], "
    "'r3000 ::= \"x\"'])"
)
REFS = (
    "{'$ref': '#/$defs/a0', '$defs': {**{f'a{i}': {'items': {'$ref': f'#/$defs/a{i + 1}'}} for i in range(2900)}, "
    "'a2900': {}}}"
)


@pytest.mark.parametrize(
    "source",
    [
        "'regex', '(' * 60000 + 'a' + ')' * 60000",
        "'regex', '(a*)*' * 20000",
        "'regex', '[a-z]?' * 40000",
        "'regex', '((a{1,1000}){1,1000}){1,1000}b'",
        "'regex', '^((a?){30}){30}b$'",
        "'lark', 'start: ' + '(' * 60000 + '\"a\"' + ')' * 60000",
        f"'lark', {LARK_CHAIN}",
        "'lark', 'start: start start | \"a\"'",
        "'lark', 'start: /' + 'a*' * 100000 + '/'",
        "'lark', 'start: T' + chr(10) + 'A: /a*/' + chr(10) + 'T: ' + 'A ' * 100000",
        "'lark', 'start: ' + ' '.join(f'\"w{i}\"' for i in range(27000))",
        "'lark', 'start: %json ' + __import__('json').dumps({'properties': {f'p{i}': {} for i in range(9000)}})",
        f"'lark', 'start: %json ' + __import__('json').dumps({REFS})",
        "'lark', 'start: %json ' + '{\"items\":' * 20000 + '{}' + '}' * 20000",
        f"'gbnf', {GBNF_CHAIN}",
        "'gbnf', 'root ::= ' + '(' * 100000",
        "'gbnf', 'root ::= ' + ' | '.join(f'\"w{i}\" root' for i in range(5000))",
        f"'json_schema', {REFS}",
        "'json_schema', {'patternProperties': {f'^a{i}x.*y{i}$': {} for i in range(300)}}",
        "'json_schema', {'type': 'integer', 'multipleOf': 999983}",
        "'json_schema', {'type': 'string', 'pattern': '(' * 50000 + 'a' + ')' * 50000}",
        "'json_schema', {'type': 'string', 'pattern': '^((a?){30}){30}b$'}",
        "'json_schema', {'allOf': [{'anyOf': [{'properties': {f'k{i}_{j}': {}}, 'type': 'object'} for j in "
        "range(10)]} for i in range(8)]}",
        "'json_schema', {'type': 'object', 'properties': {f'p{i}': {} for i in range(1000)}}",
        "'json_schema', {'type': 'array', 'minItems': 10**9, 'items': {'type': 'string', 'maxLength': 10**9}}",
        "'json_schema', __import__('functools').reduce(lambda inner, _: {'items': inner}, range(900), {})",
        "'json_schema', {'$ref': '#/$defs/a0', '$defs': {**{f'a{i}': {'allOf': [{'$ref': f'#/$defs/a{i + 1}'}] * 2} "
        "for i in range(40)}, 'a40': {}}}",
        "'gbnf', 'root ::= \"a\" root \"b\" | x' + chr(10) + 'x ::= ' + '(' * 60 + '\"\"' + ' {3})' * 60",
        "'gbnf', chr(10).join(['root ::= \"a\" root \"b\" | x0', *[f'x{i} ::= x{i + 1} x{i + 1}' for i in range(40)], "
        "'x40 ::= \"\"'])",
        "'gbnf', 'root ::= \"a\"', (__import__('uma_core.types', fromlist=['Trigger']).Trigger('pattern', "
        "'x' + '(?:' * 25 + '){100}' * 25),)",
    ],
    ids=range(30),
)
def test_it_is_refused_or_harmless(source, tmp_path: Path):
    said = tmp_path / "stderr"
    with said.open("wb") as stderr:
        process = server_of("tests.constraint.hostile").start(
            "tests.constraint.hostile", [f"({source})"], stderr=stderr.fileno(), has_pipes=True
        )
    with process.stdin, process.stdout:
        try:
            status = process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        answer = process.stdout.read().decode().strip()
    assert status == 0, said.read_text()[-500:]
    assert answer in ("harmless", "CONSTRAINT_REFUSED", "CONSTRAINT_FAILED"), answer + said.read_text()[-500:]
