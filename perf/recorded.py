"""Recorded texts: prompts and their answers, for measuring speculation.

`python -m perf.recorded` regenerates `recorded.json` from a checkout with its history. Edits show lines before and
after commits. Agents, extractions and summaries are composed from the repository's own files in the form in which
assistants write; prose is the repository's pages.
"""

from __future__ import annotations

import difflib
import json
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FILE = Path(__file__).with_name("recorded.json")
WORKLOADS = ("edit", "agent", "json", "summary", "prose")
N_EACH = 16
N_TURNS = 20  # of the agent
# the form that extractions must have: a JSON Schema, as programs send it with such a prompt
SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "option": {"type": "string"},
            "values": {"type": "array", "items": {"type": "string"}},
            "help": {"type": "string"},
        },
        "required": ["option", "values", "help"],
        "additionalProperties": False,
    },
}
WINDOW = 40  # lines of a file that an edit shows
BEFORE = 4  # unchanged lines before the first changed one


class Recorded(NamedTuple):
    workload: str
    prompt: str
    answer: str


def recorded() -> list[Recorded]:
    return [Recorded(*each) for each in json.loads(FILE.read_text())]


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout


def _edits() -> list[Recorded]:
    out = []
    for line in _git("log", "--no-merges", "--format=%H %s", "-400", "--", "*.py").splitlines():
        commit, _, subject = line.partition(" ")
        paths = _git(
            "diff-tree", "--no-commit-id", "--name-only", "-r", "--diff-filter=M", commit, "--", "*.py"
        ).split()
        if not paths or len(paths) > 40:
            continue
        path = paths[len(subject) % len(paths)]
        old, new = (_git("show", f"{at}:{path}").splitlines() for at in (f"{commit}^", commit))
        blocks = [b for b in difflib.SequenceMatcher(None, old, new, False).get_opcodes() if b[0] != "equal"]
        changes = [b for b in blocks if 1 <= b[4] - b[3] <= 12]
        if not changes:
            continue
        _, i0, _, j0, _ = changes[0]
        before = "\n".join(old[max(0, i0 - BEFORE) : i0 + WINDOW])
        after = "\n".join(new[max(0, j0 - BEFORE) : j0 + WINDOW])
        if 600 < len(after) < 3000:
            out.append(
                Recorded("edit", f"In {path}: {subject}.\n\n{before}\n\nThe same lines after the change:\n\n", after)
            )
        if len(out) == N_EACH:
            break
    return out


def _agent() -> list[Recorded]:
    """Make one conversation; each turn's prompt is the end of everything before it."""
    out, said = [], "You have the tools read_file, search and replace. Task: give every constant its unit.\n"
    files = sorted(ROOT.glob("uma_core/policy/**/*.py"))
    for turn in range(N_TURNS):
        path = files[turn // 2 % len(files)]
        name = path.relative_to(ROOT)
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        shown = lines[10 + turn : 30 + turn] or lines[:20]
        if turn % 2 == 0:
            call = {"tool": "read_file", "path": str(name), "start": 10 + turn, "lines": 20}
            answer = f"I look at {name} next.\n<tool_call>{json.dumps(call)}</tool_call>\n"
            result = "\n".join(shown)
        else:
            old = "\n".join(lines[9 + turn : 13 + turn])
            call = {"tool": "replace", "path": str(name), "old": old, "new": old + "  # ns"}
            answer = f"The line lacks its unit.\n<tool_call>{json.dumps(call)}</tool_call>\n"
            result = f"replaced 1 occurrence in {name}"
        out.append(Recorded("agent", said[-2000:], answer))
        said += f"{answer}<tool_response>{result}</tool_response>\n"
    return out


def _tables() -> list[Recorded]:
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "CONFIG.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    out = []
    for i in range(N_EACH):
        part = rows[5 * i : 5 * i + 5]
        prompt = "\n".join(" | ".join(row) for row in part)
        answer = json.dumps([{"option": r[0], "values": r[1:-1], "help": r[-1]} for r in part], indent=1)
        out.append(Recorded("json", f"Extract the options as JSON.\n\n{prompt}\n\n", answer))
    return out


def _sentences(name: str) -> list[str]:
    text = re.sub(r"```.*?```|^[|#].*?$", "", (ROOT / "docs" / name).read_text(), flags=re.S | re.M)
    return [s.strip() for s in re.split(r"(?<=[.:])\s+", " ".join(text.split())) if 40 < len(s) < 240]


def _part(name: str, which: int, n: int) -> list[str]:
    sentences = _sentences(name)
    begin = which * max(1, (len(sentences) - n) // 4)
    return sentences[begin : begin + n]


def _summaries() -> list[Recorded]:
    words = ("The page begins with this:", "What follows is more important:", "A reader should remember one thing,")
    pages = ("MEMORY.md", "SCHEDULER.md", "RELIABILITY.md", "FINDINGS.md")
    out = []
    for i in range(N_EACH):
        sentences = _part(pages[i % len(pages)], i // len(pages), 12)
        quoted = [f'{words[k]} "{sentences[3 * k + 1]}"' for k in range(3)]
        out.append(Recorded("summary", " ".join(sentences) + "\n\nSummarise, with quotes.\n\n", "\n".join(quoted)))
    return out


def _prose() -> list[Recorded]:
    pages = ("SYSTEM_DESIGN.md", "POLICY.md", "ENGINE.md", "GATEWAY.md")
    out = []
    for i in range(N_EACH):
        sentences = _part(pages[i % len(pages)], i // len(pages), 10)
        out.append(Recorded("prose", " ".join(sentences[:3]) + " ", " ".join(sentences[3:])))
    return out


if __name__ == "__main__":
    made = [*_edits(), *_agent(), *_tables(), *_summaries(), *_prose()]
    FILE.write_text(json.dumps(made, indent=0, ensure_ascii=False) + "\n")
    print(f"{FILE}: {len(made)} texts, {FILE.stat().st_size} bytes")
