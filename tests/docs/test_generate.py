"""The reference pages match the declarations."""

import importlib.util
from pathlib import Path

import pytest

from uma_core.config.options import OPTIONS
from uma_core.errors import ErrorCode
from uma_core.metrics.catalog import METRICS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def in_copy(generate, tmp_path, monkeypatch):
    """Let the generator work on a copy of the pages."""
    for name in generate.PAGES:
        (tmp_path / name).write_bytes((ROOT / "docs" / name).read_bytes())
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    return tmp_path


def test_no_page_is_stale(generate):
    assert generate.stale_pages() == []


def test_check_fails_on_a_stale_page_and_writing_mends_it(generate, in_copy, capsys):
    (in_copy / "ERRORS.md").write_text("old")
    (in_copy / "METRICS.md").unlink()
    assert generate.main(["--check"]) == 1
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["docs/METRICS.md", "docs/ERRORS.md"]
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_prose_around_generated_parts_stays(generate, in_copy):
    page = in_copy / "PROTOCOL.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("<!-- end -->", "damage\n<!-- end -->"), encoding="utf-8")
    generate.main([])
    assert page.read_text(encoding="utf-8") == text


def test_a_missing_marker_is_told(generate, in_copy):
    (in_copy / "PROTOCOL.md").write_text("no markers")
    with pytest.raises(ValueError, match="generated: ops"):
        generate.protocol_page()


def test_every_declaration_has_its_row(generate):
    config, errors, metrics = generate.config_page(), generate.errors_page(), generate.metrics_page()
    assert all(f"| `{opt.key}` |" in config and f"`{opt.env}`" in config for opt in OPTIONS)
    assert all(f"| `{error.code}` | `{error.spec.name}` |" in errors for error in ErrorCode)
    assert all(f"| `uma_{metric.name}` | `{metric.json_name}` |" in metrics for metric in METRICS)


def test_tables_have_one_width(generate):
    for page in (generate.config_page(), generate.errors_page(), generate.metrics_page()):
        widths = {}
        for line in page.splitlines():
            if line.startswith("|"):
                header = widths.setdefault("now", line.replace("\\|", "").count("|"))
                assert line.replace("\\|", "").count("|") == header, line
            else:
                widths.clear()
