"""The JSON Schema Test Suite (draft 2020-12), as in the source distribution of the `jsonschema` package.

`python -m tests.constraint.suite jsonschema-4.26.0.tar.gz` writes tests/data/json-schema-test-suite.json again.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.constraint import driving
from uma_core.constraint.compiler import Compiler
from uma_core.constraint.vocabulary import Text
from uma_core.errors import ErrorCode, UmaError

PATH = Path(__file__).parent.parent / "data" / "json-schema-test-suite.json"
FOLDER = "/json/tests/draft2020-12/"


class Case(NamedTuple):
    file: str
    what: str
    schema: Any
    instances: list[tuple[Any, bool]]  # each with whether it is valid

    @property
    def is_beyond_re(self) -> bool:
        """Whether its patterns mean something else to the validator: Python's `re` lacks \\p and \\c and has Unicode's
        classes.
        """
        return re.search(r"\\[pPcWDsS]", str(self.schema)) is not None


@functools.cache
def cases() -> list[Case]:
    files = json.loads(PATH.read_text())["files"]
    return [Case(name, what, schema, instances) for name, groups in files.items() for what, schema, instances in groups]


@functools.lru_cache(maxsize=4)  # several tests ask, and it compiles 416 schemas
def accepted(compiler: Compiler, text: Text) -> list[Case]:
    """Return the cases whose schema can be enforced. All other schemas are refused, with the keyword."""
    found = []
    for case in cases():
        try:
            compiler.compile(text, driving.schema(case.schema))
        except UmaError as error:
            assert error.error is ErrorCode.CONSTRAINT_REFUSED and error.detail["field"] == "constraint.json_schema"
        else:
            found.append(case)
    return found


def check_answer(text: str, case: Case) -> None:
    """Check that a complete answer is JSON, and valid as far as the validator knows."""
    value = driving.parse(text)
    if not case.is_beyond_re:
        driving.check_valid(value, case.schema)


def extract(archive: Path) -> dict[str, Any]:
    files: dict[str, Any] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            _, found, name = member.name.partition(FOLDER)
            if found and name.endswith(".json") and not name.startswith("optional/format/"):
                source = tar.extractfile(member)
                assert source is not None
                groups = json.load(source)
                files[name] = [
                    [g["description"], g["schema"], [[t["data"], t["valid"]] for t in g["tests"]]] for g in groups
                ]
    return {
        "from": f"{archive.name}, json/ (MIT, Copyright (c) 2012 Julian Berman)",
        "files": dict(sorted(files.items())),
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(extract(Path(sys.argv[1])), separators=(",", ":")) + "\n")
