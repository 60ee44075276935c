"""`uma-ctl embed` and `rerank` against real daemons on random encoders."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.ctl.commands import run
from tests.daemon.encoders import encoder
from tests.daemon.support import DaemonProcess
from tests.engine.encoders import N_EMBD
from tests.folders import short_folder

pytestmark = [pytest.mark.daemon]
TEXTS = ["the shell", "a cat and a dog", "tree"]


@pytest.fixture(scope="module", params=["bert", "bert-rank"])
def daemons(request: pytest.FixtureRequest) -> Iterator[DaemonProcess]:
    with short_folder() as folder, encoder(folder, request.param) as daemon:
        yield daemon


def ctl(daemon: DaemonProcess, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run("uma_ctl", "--socket", daemon.path, *args, input=stdin)


@pytest.mark.parametrize("daemons", ["bert"], indirect=True)
def test_vectors_of_arguments_files_and_standard_input(daemons: DaemonProcess, tmp_path: Path) -> None:
    expected = np.array(daemons.ask("embed", input=TEXTS)["embeddings"])
    (tmp_path / "f").write_text("\n".join(TEXTS) + "\n")
    for found in (
        ctl(daemons, "embed", *TEXTS),
        ctl(daemons, "embed", "--file", str(tmp_path / "f"), "--lines"),
        ctl(daemons, "embed", "--lines", stdin="\n".join(TEXTS)),
    ):
        assert found.returncode == 0, found.stderr
        np.testing.assert_allclose(
            [json.loads(line) for line in found.stdout.splitlines()], expected, rtol=1e-4, atol=1e-5
        )
    whole = ctl(daemons, "embed", "--json", "the shell", "--dimensions", "8", "--no-normalize")
    reply = json.loads(whole.stdout)
    assert len(reply["embeddings"][0]) == 8 and reply["usage"]["prompt_tokens"] > 0
    rows = json.loads(ctl(daemons, "embed", "the shell", "--pooling", "none").stdout)
    assert all(len(row) == N_EMBD for row in rows) and len(rows) > 1


@pytest.mark.parametrize("daemons", ["bert"], indirect=True)
def test_what_goes_wrong_has_an_exit_status(daemons: DaemonProcess) -> None:
    assert ctl(daemons, "embed", "a", "--pooling", "max").returncode == 1
    assert ctl(daemons, "embed", "a", "--dimensions", "0").returncode == 1
    assert ctl(daemons, "embed", "").returncode == 1
    assert "there is no input" in ctl(daemons, "embed").stderr
    assert "there is no input" in ctl(daemons, "rerank", "query").stderr
    refused = ctl(daemons, "embed", "the " * 300)
    assert refused.returncode == 2 and "prompt_too_large" in refused.stderr
    assert ctl(daemons, "embed", "the " * 300, "--truncate").returncode == 0
    assert ctl(daemons, "rerank", "a", "b").returncode == 2


@pytest.mark.parametrize("daemons", ["bert-rank"], indirect=True)
def test_documents_in_order(daemons: DaemonProcess) -> None:
    expected = daemons.ask("rerank", query="the query", documents=TEXTS)["results"]
    found = ctl(daemons, "rerank", "the query", *TEXTS)
    assert found.returncode == 0, found.stderr
    rows = [line.split("\t") for line in found.stdout.splitlines()]
    assert [int(row[1]) for row in rows] == [result["index"] for result in expected]
    assert [row[2] for row in rows] == [TEXTS[result["index"]] for result in expected]
    best = json.loads(
        ctl(daemons, "rerank", "--json", "the query", "--lines", "--top-n", "1", stdin="\n".join(TEXTS)).stdout
    )
    assert best["results"] == expected[:1]


@pytest.mark.parametrize("words", [("embed",), ("rerank", "query")])
def test_a_file_that_is_no_text_is_wrong_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "latin"
    file.write_bytes(b"caf\xe9")
    done = run("uma_ctl", *words, "-f", str(file))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert str(file) in done.stderr and "utf-8" in done.stderr
