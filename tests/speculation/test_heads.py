"""A model's own prediction heads draft. The files' heads are known to draft the model's next token, or its last one."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest

from native.build import ROOT
from tests.engine.asks import WORDS, is_same, random_ask, run
from tests.engine.drive import tokens_of
from tests.engine.graph.heads import DEEP, WITH_HEADS, one_token_more, some_tokens, with_eagle, with_heads
from tests.engine.graph.models import MODELS, Model, write
from tests.executor.rig import new_executor
from tests.kernels import build
from uma_core.clock import ManualClock, MonotonicClock
from uma_core.config.options import EngineOptions, SpeculationOptions
from uma_core.constraint.compiler import Compiler
from uma_core.engine.api import WANT_IF_ACCEPTED, Batch, Engine
from uma_core.engine.draft import check_draft, estimate_with_draft, for_drafts, open_heads
from uma_core.engine.graph.engine import GraphEngine
from uma_core.engine.llama.engine import LlamaEngine
from uma_core.engine.llama.log import tap
from uma_core.errors import ErrorCode, UmaError
from uma_core.metrics.catalog import new_registry
from uma_core.session.events import Submit
from uma_core.speculation.acceptance import Acceptance
from uma_core.speculation.heads import HeadModel
from uma_core.speculation.settings import Settings
from uma_core.speculation.speculator import Speculator
from uma_core.types import Peer, Priority, Request, TokenId

OPTIONS = EngineOptions(
    threads=1, n_seq=2, n_ctx=1024, n_batch=64, n_ubatch=64, calibrate="off", mtp=True, takes_back=True
)
N_TOKENS = 40
N_ANSWERS = 3
N_GROUPS = 60 if os.environ.get("UMA_FUZZ") == "full" else 1


@pytest.fixture(params=WITH_HEADS)
def model(request: pytest.FixtureRequest) -> Model:
    return WITH_HEADS[request.param]


Kind = type[GraphEngine] | type[LlamaEngine]


class Kept:
    """Files and engines that several tests use. To write a file and open an engine takes longer than most tests."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self._folders: dict[object, Path] = {}
        self._engines: dict[object, Engine] = {}

    def heads(self, model: Model, says_next: bool) -> str:
        key = model.arch, says_next
        if key not in self._folders:
            self._folders[key] = self._new_folder()
            with_heads(model, self._folders[key] / "heads.gguf", says_next)
        return str(self._folders[key] / "heads.gguf")

    def eagle(self, says_next: bool = True, has_own: bool = True) -> Path:
        """Return a folder with a model, target.gguf, and its EAGLE 3 model, eagle.gguf."""
        key = says_next, has_own
        if key not in self._folders:
            self._folders[key] = self._new_folder()
            with_eagle(self._folders[key], says_next, has_own)
        return self._folders[key]

    def engine(self, kind: Kind, path: str, options: EngineOptions) -> Engine:
        """Return an engine whose sequences are empty."""
        engine = self._engines.get((kind, path)) or kind(path, options)
        self._engines[kind, path] = engine
        for seq_id in range(engine.info.n_seq_max):
            engine.kv_truncate(seq_id, 0)
        return engine

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    kept = Kept(lambda: tmp_path_factory.mktemp("heads"))
    yield kept
    kept.close()


Opened = Callable[[Model, bool], tuple[Engine, HeadModel]]


@pytest.fixture(params=[GraphEngine, LlamaEngine])
def opened(request: pytest.FixtureRequest, kept: Kept) -> Iterator[Opened]:
    with ExitStack() as stack:

        def make(model: Model, says_next: bool) -> tuple[Engine, HeadModel]:
            engine = kept.engine(request.param, kept.heads(model, says_next), OPTIONS)
            heads = HeadModel(open_heads(OPTIONS, "", engine), ManualClock(1))  # it is asked, because it takes no time
            return engine, stack.enter_context(closing(heads))

        yield make


@pytest.mark.parametrize("kind", [GraphEngine, LlamaEngine])
def test_heads_without_free_cells_draft_nothing_for_a_while(kind: Kind, kept: Kept) -> None:
    options = replace(OPTIONS, n_ctx=256, kv_mode="unified")
    engine = kind(kept.heads(WITH_HEADS["glm4moe"], True), options)
    heads = HeadModel(open_heads(options, "", engine), ManualClock(1))
    tokens, states = np.zeros(64, np.int32), np.zeros((64, heads.heads.n_embd), np.float32)
    for pos0 in range(0, 256, 64):
        assert heads.compute(0, tokens, pos0, states) >= 0
    assert heads.compute(1, tokens, 0, states) < 0 and not heads.is_broken
    heads.truncate(0, 64)
    assert heads.compute(1, tokens, 0, states) >= 0
    heads.close()
    engine.close()


def test_the_files_pages_are_in_memory_once(tmp_path: Path) -> None:
    """The graph engine's weights are copies. Of the heads' own mapping, only the parts that they read are in memory."""
    path = with_heads(DEEP, tmp_path / "heads.gguf", True)
    options = replace(OPTIONS, load_mode="none")
    engine = GraphEngine(path, options)
    heads = HeadModel(open_heads(options, "", engine), ManualClock(1))
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        pytest.skip("the system does not tell what is in memory")
    at = next(i for i, line in enumerate(lines) if line.endswith(path))
    n_resident = next(int(line.split()[1]) << 10 for line in lines[at:] if line.startswith("Rss:"))
    heads.close()
    engine.close()
    assert 0 < n_resident < os.path.getsize(path) / 4


class Answer(NamedTuple):
    tokens: list[TokenId]
    n_drafted: int
    n_held: int


def answer(engine: Engine, prompt: list[TokenId], speculator: Speculator | None, **fields: Any) -> Answer:
    """Return the answer to a background request, whose drafts need no room in a chat's gaps."""
    clock = MonotonicClock()
    executor = new_executor(engine, speculator=speculator, clock=clock)
    executor._learn = lambda state, plan: None  # type: ignore[method-assign] # whether drafts pay is not left to chance
    request = Request("r", ignore_eos=True, priority=Priority.BACKGROUND, **{"max_tokens": N_TOKENS, **fields})
    executor.submit(Submit(1, Peer(1, 1, 1), request, prompt, clock.now_ns()))
    (session,) = executor.table
    while len(executor.table):
        executor.tick()
    meters = executor.meters
    counts = (int(counter["draft"].value) for counter in (meters.drafted, meters.accepted_drafts))
    executor.close(1.0)
    for seq_id in range(engine.info.n_seq_max):
        engine.kv_truncate(seq_id, 0)
    return Answer(list(session.generated), *counts)


def compared(engine: Engine, heads: HeadModel, n_prompt: int) -> tuple[int, int]:
    """Return how many tokens the heads drafted, and how many of them were accepted. The answers must be the same
    without drafts.
    """
    speculator = Speculator(Settings("draft"), True, model=heads)
    n_drafted = n_held = 0
    for seed in range(N_ANSWERS):
        prompt = [int(token) for token in tokens_of(engine, n_prompt, seed)]
        plain, fast = answer(engine, prompt, None), answer(engine, prompt, speculator)
        assert fast.tokens == plain.tokens
        n_drafted, n_held = n_drafted + fast.n_drafted, n_held + fast.n_held
    return n_drafted, n_held


@pytest.mark.parametrize("n_prompt", [1, 5, 150])
def test_heads_draft_what_the_model_says(opened: Opened, model: Model, n_prompt: int) -> None:
    n_drafted, n_held = compared(*opened(model, True), n_prompt)
    assert n_drafted > N_ANSWERS
    assert n_held > 0.9 * n_drafted


def test_drafts_that_do_not_hold_change_nothing(opened: Opened, model: Model) -> None:
    n_drafted, n_held = compared(*opened(model, False), 30)
    assert n_drafted > N_ANSWERS
    assert n_held < 0.3 * n_drafted


@pytest.mark.fuzz
@pytest.mark.parametrize("says_next", [True, False])
def test_random_requests_are_answered_the_same(opened: Opened, model: Model, says_next: bool) -> None:
    """Requests are cancelled, sampled, constrained and preempted, and share prompts."""
    engine, heads = opened(model, says_next)
    rng, compiler = random.Random(f"{model.arch} {says_next}"), Compiler(new_registry())
    for group in range(N_GROUPS):
        shared = " ".join(rng.choices(WORDS, k=20)) + " "
        asks = {f"r{group}.{i}": random_ask(rng, engine, shared) for i in range(6)}
        plain, _ = run(engine, asks, compiler, None)
        fast, _ = run(engine, asks, compiler, Speculator(Settings("draft"), True, model=heads))
        assert plain.keys() == fast.keys()
        different = [name for name in plain if not is_same(name, plain, fast)]
        assert not different or (not engine.info.is_deterministic and len(different) < len(plain) / 2)


def test_a_row_reads_the_state_of_the_position_before_it(opened: Opened, model: Model) -> None:
    engine, heads = opened(model, False)
    tokens = tokens_of(engine, 20)
    source = heads.open(tokens, Acceptance(Acceptance()))
    assert source is not None
    batch = Batch(engine.info.n_batch)
    batch.extend(tokens, 0, 0, True)
    said = engine.decode(batch, [None]).tokens[0]
    states = engine.hidden()
    assert states.shape == (1, 128)
    source.see(19, states)
    source.run([said], 1, 2**62)
    assert source.draft([said]).tokens == (said,), "these heads repeat what the state before the last token said"


def test_states_are_those_of_their_rows(opened: Opened, model: Model) -> None:
    """The sequences have different numbers of rows in a call, which an engine may compute in another order."""
    engine, _ = opened(model, True)
    tokens = tokens_of(engine, 4)
    batch = Batch(engine.info.n_batch)
    alone = []
    for token in tokens:
        batch.clear()
        batch.add(int(token), 0, 0, True)
        engine.decode(batch, [None])
        alone.append(engine.hidden()[0])
        engine.kv_truncate(0, 0)
    batch.clear()
    batch.add(int(tokens[0]), 0, 0, True)
    batch.verify(tokens[1:3].tolist(), 1, 0, WANT_IF_ACCEPTED)
    batch.add(int(tokens[3]), 0, 1, True)
    engine.decode(batch, [None] * 4)
    states = engine.hidden()
    assert states.shape == (4, 128)
    assert np.abs(states - np.array(alone)).max() < 0.001, "no layer of this model adds anything"


def test_texts_longer_than_what_is_kept_are_drafted_for(opened: Opened, model: Model) -> None:
    engine, heads = opened(model, True)
    source = heads.open(tokens_of(engine, 20), Acceptance(Acceptance()))
    assert source is not None
    states = np.ones((8, 128), np.float32)
    source.see(4, states)  # a cached prefix has no states
    source.see(14, states[:6])  # after a gap, only the later states count
    source.run([3], 2, 2**62)
    assert len(source.draft([3]).tokens) == 2
    source.run([3, 4, 5], 2, 2**62)
    assert source.draft([3, 4, 5]).tokens == (), "states of the last tokens are not there"


def test_drafting_goes_on_when_the_context_was_shifted(opened: Opened, model: Model) -> None:
    engine, heads = opened(model, True)
    prompt = [int(token) for token in tokens_of(engine, 400)]
    n_before = engine.info.n_ctx_seq - len(prompt)
    answers = {
        n: answer(engine, prompt, Speculator(Settings("draft"), True, model=heads), max_tokens=n, overflow="shift")
        for n in (n_before, n_before + 2 * N_TOKENS)
    }
    (before, n_drafted, n_held), (longer, n_more, n_more_held) = answers.values()
    assert longer == answer(engine, prompt, None, max_tokens=len(longer), overflow="shift").tokens
    assert longer[:n_before] == before and len(longer) == n_before + 2 * N_TOKENS
    assert n_more_held - n_held > N_TOKENS / 2
    assert n_more_held - n_held > 0.9 * (n_more - n_drafted)


def eagle_options(folder: Path) -> tuple[str, str, EngineOptions]:
    target, path = str(folder / "target.gguf"), str(folder / "eagle.gguf")
    return target, path, for_drafts(replace(OPTIONS, mtp=False, model=target), SpeculationOptions(draft_model=path))


Paired = Callable[[bool, bool], tuple[Engine, HeadModel]]


@pytest.fixture(params=[GraphEngine, LlamaEngine])
def paired(request: pytest.FixtureRequest, kept: Kept) -> Iterator[Paired]:
    """Return a model and its EAGLE 3 model."""

    def make(says_next: bool, has_own: bool) -> tuple[Engine, HeadModel]:
        target, path, options = eagle_options(kept.eagle(says_next, has_own))
        engine = kept.engine(request.param, target, options)
        heads = HeadModel(open_heads(options, path, engine), ManualClock(1))
        return engine, stack.enter_context(closing(heads))

    with ExitStack() as stack:
        yield make


@pytest.mark.parametrize(("name", "gives"), [("gpt-oss", True), ("gemma4", True), ("qwen2", False), ("phi3", False)])
def test_layers_inputs_are_kept_where_llama_cpp_gives_them(name: str, gives: bool, tmp_path: Path) -> None:
    """To ask llama.cpp for them elsewhere would end the process. The graph engine gives them for all these models."""
    path = write(MODELS[name], tmp_path / "target.gguf")
    options = replace(OPTIONS, mtp=False, hidden_layers=(0, 1))
    states = {}
    for kind in (GraphEngine, LlamaEngine):
        with closing(kind(path, options)) as engine:
            batch = Batch(engine.info.n_batch)
            batch.extend(tokens_of(engine, 1), 0, 0, True)
            assert engine.decode(batch, [None]).tokens
            if engine.info.capabilities.keeps_hidden:
                states[kind] = engine.hidden()
    assert states[GraphEngine].shape == (1, 256)
    assert (LlamaEngine in states) is gives
    assert not gives or np.abs(states[LlamaEngine] - states[GraphEngine]).max() < 0.001


@pytest.mark.parametrize("n_prompt", [2, 100])
def test_an_eagle_model_drafts_what_the_model_says(paired: Paired, n_prompt: int) -> None:
    """Only its first draft each time: the second one follows from the state that it made itself, which has no more
    information.
    """
    n_drafted, n_held = compared(*paired(True, True), n_prompt)
    assert n_drafted > N_ANSWERS
    assert n_held > 0.4 * n_drafted


@pytest.mark.parametrize("has_own", [True, False])
def test_wrong_drafts_of_an_eagle_model_change_nothing(paired: Paired, has_own: bool) -> None:
    n_drafted, n_held = compared(*paired(False, has_own), 30)
    assert n_drafted > N_ANSWERS
    assert n_held < 0.3 * n_drafted


DRAFTS_WITHOUT_MEMORY = """
import ctypes, sys
import numpy as np
from pathlib import Path
from tests.speculation.test_heads import eagle_options
from uma_core.engine.draft import open_heads
from uma_core.engine.graph.engine import GraphEngine
from uma_core.speculation.heads import HeadModel
from uma_core.clock import ManualClock
is_short = ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[1]), "is_short")
target, path, options = eagle_options(Path(sys.argv[2]))
engine = GraphEngine(target, options)
heads = open_heads(options, path, engine)
model = HeadModel(heads, ManualClock(1))
is_short.value = 1
token = model.compute(0, np.zeros(3, np.int32), 0, np.zeros((3, 3 * heads.n_embd), np.float32))
is_short.value = 0
assert token == -1 and model.is_broken
assert heads.read(0, np.zeros(1, np.int32), 0, np.zeros((1, heads.n_embd), np.float32))[0] != 0
model.release(0)
model.close()
engine.close()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a library is preloaded by its name on Linux only")
def test_an_eagle_model_without_memory_ends_only_drafting(kept: Kept, tmp_path: Path) -> None:
    library = tmp_path / "no_memory.so"
    build.link([*build.host().cxx, "-shared", "-fPIC", str(Path(__file__).parent / "no_memory.cpp")], library)
    command = [sys.executable, "-c", DRAFTS_WITHOUT_MEMORY, str(library), str(kept.eagle())]
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr


def test_an_eagle_model_reads_every_text_on_and_on(paired: Paired, caplog: pytest.LogCaptureFixture) -> None:
    """Drafting would end for good if it could not read a text. The texts of all sequences are read, in several calls
    each.
    """
    _, model = paired(True, True)
    heads = model.heads
    states = np.zeros((3, 3 * heads.n_embd), np.float32)
    for pos in (0, 3, 6):
        for seq_id in range(heads.n_seq):
            assert heads.read(seq_id, np.zeros(3, np.int32), pos, states)[0] == 0
    tap.pump()
    assert "not marked as outputs" not in caplog.text


@pytest.mark.parametrize("tokens", [[0, 5, 7], [0, -1, 7], [3, 320, 4]])
def test_an_eagle_model_of_some_tokens_drafts_those(paired: Paired, kept: Kept, tokens: list[int]) -> None:
    """A token that does not exist would end the process when it is drafted."""
    engine, _ = paired(True, True)
    path = some_tokens(kept.eagle(), tokens)
    options = replace(OPTIONS, mtp=False, model=str(kept.eagle() / "target.gguf"))
    if min(tokens) < 0 or max(tokens) >= engine.n_vocab:
        with pytest.raises(UmaError, match="list of tokens"):
            open_heads(options, path, engine)
        return
    heads = open_heads(options, path, engine)
    rc, token = heads.read(0, np.array([1], np.int32), 1, np.ones((1, heads.n_embd), np.float32))
    heads.close()
    assert rc == 0 and token in tokens


def test_a_token_that_only_the_eagle_model_has_is_not_drafted(paired: Paired, kept: Kept) -> None:
    """The call that verifies it would fail, and with it the answers of all streams in that call."""
    engine, _ = paired(True, True)
    path = one_token_more(kept.eagle())
    options = replace(OPTIONS, mtp=False, model=str(kept.eagle() / "target.gguf"))
    heads = HeadModel(open_heads(options, path, engine), ManualClock(1))
    source = heads.open(tokens_of(engine, 4), Acceptance(Acceptance()))
    assert source is not None
    source.see(0, np.ones((4, 3 * heads.heads.n_embd), np.float32))
    source.run([3], 2, 2**62)
    drafted = source.draft([3]).tokens
    heads.close()
    assert not heads.is_broken and all(token < engine.n_vocab for token in drafted)


@pytest.mark.parametrize(("part", "value"), [(3, 0), (3, 1 << 40), (3, 1 << 60), (4, gguf.GGMLQuantizationType.F64)])
def test_a_damaged_list_of_tokens_is_refused(kept: Kept, part: int, value: int) -> None:
    """The header states the number of tokens (3) and their type (4)."""
    path = some_tokens(kept.eagle(), [0, 5, 7])
    reader = gguf.GGUFReader(path, "r+")
    field = next(tensor.field for tensor in reader.tensors if tensor.name == "d2t")
    field.parts[part][0] = value
    reader.data.flush()
    with pytest.raises(UmaError, match="list of tokens") as refused:
        check_draft(replace(OPTIONS, mtp=False, model=str(kept.eagle() / "target.gguf")), path)
    assert refused.value.error is ErrorCode.CONFIG_INVALID


@pytest.mark.parametrize("change", [{"block_count": 1}, {"embedding_length": 64}])
def test_an_eagle_model_of_another_model_is_refused(kept: Kept, tmp_path: Path, change: dict[str, int]) -> None:
    target, path = shutil.copy(kept.eagle() / "target.gguf", tmp_path), str(kept.eagle() / "eagle.gguf")
    reader = gguf.GGUFReader(target, "r+")
    for key, value in change.items():
        reader.fields[f"llama.{key}"].parts[-1][0] = value
    reader.data.flush()
    with pytest.raises(UmaError) as refused:
        options = replace(OPTIONS, engine="graph", mtp=False, model=target)
        estimate_with_draft(options, SpeculationOptions(draft_model=path))
    assert refused.value.error is ErrorCode.CONFIG_INVALID
    assert "cannot draft for this model" in refused.value.message


def test_a_file_without_heads_is_refused(tmp_path: Path) -> None:
    path = write(MODELS["llama"], tmp_path / "plain.gguf")
    with closing(GraphEngine(path, replace(OPTIONS, mtp=False))) as engine, pytest.raises(UmaError) as refused:
        open_heads(OPTIONS, "", engine)
    assert refused.value.error is ErrorCode.CONFIG_INVALID
    assert "no prediction heads" in refused.value.message
