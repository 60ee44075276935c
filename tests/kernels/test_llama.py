"""llama_decode with our operations in ggml's CPU backend, compared with ggml's own: same graphs, same threads, same
weights in place.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernels import build
from tests.trained import DRAFT, MOE
from uma_core.models import default_model_path

# tokens of each model's own text: the perplexity of the smallest one, whose texts are the most random, varies the most
N_TEXT = {"target": 1024, "draft": 2048, "moe": 1024}
pytestmark = pytest.mark.model


@dataclass(frozen=True)
class Scenario:
    name: str
    size: float  # rms of the logits
    n_rows: int
    ours: float  # rms difference to ggml
    gap: float  # widest gap, in ggml's logits, between the token that ggml prefers and the one that we prefer
    noise: float  # the same two between ggml's batched and single-token computation
    noise_gap: float

    @classmethod
    def from_line(cls, line: str) -> Scenario:
        name, size, n_rows, *differences = line.split()[1:]
        return cls(name, float(size), int(n_rows), *map(float, differences))


@dataclass(frozen=True)
class Report:
    isa: str
    scenarios: list[Scenario]
    counts: list[int]
    perplexity: tuple[float, float]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.llama_program(tmp_path_factory.mktemp("kernels") / "check_llama")


@pytest.fixture(scope="module", params=["target", "draft", "moe"])
def report(request: pytest.FixtureRequest, program: Path) -> Report:
    names = {"target": default_model_path(), "draft": DRAFT, "moe": MOE}
    command = [str(program), str(names[request.param]), str(N_TEXT[request.param])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    scenarios = [Scenario.from_line(line) for line in done.stdout.splitlines() if line.startswith("scenario ")]
    _, theirs, ours = lines["perplexity"]
    assert lines["registered"][0] == "0"
    return Report(lines["registered"][1], scenarios, [int(n) for n in lines["counts"]], (float(theirs), float(ours)))


def slack(scenario: Scenario) -> int:
    """With a q8_0 cache, ggml also rounds the queries to q8_0, in both of its ways; ours stay f32."""
    return 4 if scenario.name.startswith("q8_0") else 1


@pytest.fixture
def noise(report: Report) -> float:
    """Return the difference between two ways in which ggml computes the same rows of this model, in units of the
    logits' size.
    """
    assert len(report.scenarios) == 18
    return max(s.noise / s.size for s in report.scenarios)


def test_logits_differ_by_no_more_than_ggmls_own_ways_differ(report, noise):
    assert 0 < noise < 0.1
    for s in report.scenarios:
        assert s.ours <= 2 * slack(s) * noise * s.size, s


def test_where_another_token_is_preferred_the_two_were_as_good_as_equal(report, noise):
    for s in report.scenarios:
        assert s.gap <= 8 * slack(s) * noise * s.size, s


def test_operations_were_computed_here(report, request):
    mul_mat, mul_mat_id, attention = report.counts
    assert mul_mat > 0 and attention > 0
    assert (mul_mat_id > 0) == ("moe" in request.node.callspec.id)


def test_perplexity_stays(report):
    theirs, ours = report.perplexity
    assert abs(ours / theirs - 1) < 3e-3  # over so few tokens; docs/ENGINE.md has the figure over 20,000
