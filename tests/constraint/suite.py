"""The JSON Schema Test Suite (draft 2020-12), as in the source distribution of the `jsonschema` package.

`python -m tests.constraint.suite jsonschema-4.26.0.tar.gz` writes tests/data/json-schema-test-suite.json again.
"""

from __future__ import annotations

import functools
import json
import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).parent.parent / "data" / "json-schema-test-suite.json"
FOLDER = "/json/tests/draft2020-12/"


class Case(NamedTuple):
    file: str
    what: str
    schema: Any
    instances: list[tuple[Any, bool]]  # each with whether it is valid


@functools.cache
def cases() -> list[Case]:
    files = json.loads(PATH.read_text())["files"]
    return [Case(name, what, schema, instances) for name, groups in files.items() for what, schema, instances in groups]


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
