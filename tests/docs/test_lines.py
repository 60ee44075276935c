"""Pages that people write have lines of at most 120 characters, unless a line cannot be broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {
    f"{name}.md" for name in ("BENCHMARKS", "CONFIG", "ERRORS", "FINDINGS", "METRICS", "PROTOCOL", "SCORECARD")
}
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in GENERATED], ids=lambda page: page.name)
def test_lines_of_prose_are_short(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [line for line in text.splitlines() if len(line) > 120 and line[0] not in "|!"] == []
