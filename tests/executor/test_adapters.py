"""Requests with LoRA adapters: mixtures in flight, cancels, parking, and a cache that keeps the KV of each set
apart.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.cache.world import wait_for_index
from tests.executor.rig import Rig
from uma_core.cache.settings import CacheSettings
from uma_core.engine.fake.cost import CPU_SHAPE
from uma_core.engine.fake.engine import FakeModel
from uma_core.errors import ErrorCode
from uma_core.executor.admission import Limits
from uma_core.session.events import Final
from uma_core.types import AdapterSet, FinishReason, Priority

LOADED = (("tone", 0.0), ("topic", 0.0))
SETS: tuple[AdapterSet, ...] = ((), (("tone", 1.0),), (("tone", 0.5),), (("tone", 1.0), ("topic", -2.0)))
PROMPT = "a prompt that several requests share, " * 9
CACHE = CacheSettings(is_on=True, ram_bytes=64 << 20)


def rig_of(can_mix: bool, cache: CacheSettings = CACHE, **model: Any) -> Rig:
    rig = Rig(FakeModel(adapters=LOADED, can_mix_adapters=can_mix, **model), Limits(max_sessions=100))
    rig.executor.set_cache(cache)
    return rig


def alone(adapters: AdapterSet, n: int, prompt: str = PROMPT) -> str:
    rig = rig_of(True)
    rig.submit("one", prompt, max_tokens=n, lora=adapters)
    rig.run()
    return rig.text("one")


EXPECTED = {adapters: alone(adapters, 40) for adapters in SETS}


def test_each_set_has_texts_of_its_own() -> None:
    assert len(set(EXPECTED.values())) == len(SETS)


@pytest.mark.parametrize("can_mix", [False, True])
@pytest.mark.parametrize("is_unified", [False, True])
@pytest.mark.parametrize("n_prefill_slots", [0, 2])
def test_a_mixture_in_flight_gives_everybody_the_text_of_their_set(
    can_mix: bool, is_unified: bool, n_prefill_slots: int
) -> None:
    rig = rig_of(can_mix, is_unified=is_unified, n_prefill_slots=n_prefill_slots)
    for i in range(16):
        rig.submit(f"r{i}", PROMPT, conn_id=i, max_tokens=40, priority=Priority(i % 2), lora=SETS[i // 2 % 4])
    rig.run()
    for i in range(16):
        assert rig.text(f"r{i}") == EXPECTED[SETS[i // 2 % 4]]
    assert not rig.executor.meters.violations.value
    rig.check_one_final_each()
    rig.check_all_free()


@pytest.mark.parametrize("can_mix", [False, True])
def test_requests_of_one_set_share_a_decode_call(can_mix: bool) -> None:
    rig = rig_of(can_mix, is_unified=True)
    for i in range(4):
        rig.submit(f"r{i}", "hello", conn_id=i, max_tokens=60, lora=SETS[1] if i % 2 else ())
    sizes = set()
    decode = rig.engine.decode

    def watch(batch: Any, samplers: Any) -> Any:
        sizes.add(batch.n)
        return decode(batch, samplers)

    for _ in range(12):
        rig.tick()
    rig.engine.decode = watch  # type: ignore[method-assign]
    for _ in range(5):
        rig.tick()
    assert sizes == ({4} if can_mix else {2})


def test_kv_of_one_set_is_never_another_sets() -> None:
    rig = rig_of(True)
    for turn in range(3):
        for i, adapters in enumerate(SETS):
            rig.submit(f"{turn} {i}", PROMPT, max_tokens=40, lora=adapters)
            rig.run()
            assert rig.text(f"{turn} {i}") == EXPECTED[adapters]
            (final,) = rig.finals(f"{turn} {i}")
            assert (final.usage["cached_tokens"] > 300) == (turn > 0), "its own set's KV is used again"


def test_files_of_one_set_are_never_another_sets(tmp_path: Path) -> None:
    """A restarted daemon finds the files of each set, and tells sets apart by the content of the adapters' files."""
    cache = CacheSettings(is_on=True, ram_bytes=64 << 20, disk_dir=str(tmp_path), disk_bytes=1 << 30)
    first = rig_of(True, cache)
    for i, adapters in enumerate(SETS[:3]):
        first.submit(f"{i}", PROMPT, max_tokens=40, lora=adapters)
    first.run()
    first.executor.close(10.0)
    assert len(list(tmp_path.iterdir())) >= 3
    again = rig_of(True, cache)
    wait_for_index(again.executor.cache)
    for i, adapters in enumerate(SETS):
        again.submit(f"{i}", PROMPT, max_tokens=40, lora=adapters)
        again.run()
        assert again.text(f"{i}") == EXPECTED[adapters]
        (final,) = again.finals(f"{i}")
        assert (final.usage["cached_tokens"] > 300) == (i < 3)
    other = rig_of(True, cache)
    wait_for_index(other.executor.cache)
    info = other.engine.info
    changed = tuple(each._replace(fingerprint=each.fingerprint + " trained on") for each in info.adapters)
    object.__setattr__(info, "adapters", changed)
    other.submit("changed", PROMPT, max_tokens=40, lora=SETS[1])
    other.run()
    assert other.finals("changed")[0].usage["cached_tokens"] == 0


def test_a_parked_session_comes_back_with_its_set() -> None:
    rig = rig_of(False, n_seq_max=2)
    for i in range(2):
        rig.submit(f"b{i}", PROMPT, conn_id=i, max_tokens=40, priority=Priority.BACKGROUND, lora=SETS[i + 1])
    for _ in range(20):
        rig.tick()
    for i in range(4):
        rig.submit(f"c{i}", PROMPT, conn_id=10 + i, max_tokens=40, priority=Priority.INTERACTIVE, lora=SETS[i])
    rig.run()
    assert rig.executor.meters.preemptions.value > 0
    assert [rig.text(f"b{i}") for i in range(2)] == [EXPECTED[SETS[1]], EXPECTED[SETS[2]]]
    assert [rig.text(f"c{i}") for i in range(4)] == [EXPECTED[each] for each in SETS]


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100 if os.environ.get("UMA_FUZZ") == "full" else 8))
def test_random_mixtures(seed: int) -> None:
    """Arrivals, cancels and parking at any moment. An answer that ends has the text of its set, or a beginning of
    it.
    """
    draw = random.Random(seed)
    rig = Rig(
        FakeModel(n_seq_max=draw.choice([1, 2, 4]), is_unified=draw.random() < 0.5,
        n_prefill_slots=draw.choice([0, 1, 2]), adapters=LOADED,
                  can_mix_adapters=draw.random() < 0.3), Limits(max_sessions=100), cost=CPU_SHAPE,
    )  # fmt: skip
    rig.executor.set_cache(CACHE if draw.random() < 0.7 else CacheSettings(is_on=False))
    sets: dict[str, AdapterSet] = {}
    for i in range(24):
        sets[f"r{i}"] = draw.choice(SETS)
        more = {"cache_prompt": draw.random() < 0.8, "priority": draw.choice([None, *Priority]), "n": 1}
        rig.submit(f"r{i}", PROMPT, conn_id=i, max_tokens=draw.randint(1, 40), lora=sets[f"r{i}"], **more)
        for _ in range(draw.randint(0, 12)):
            rig.tick()
        if draw.random() < 0.3:
            rig.executor.cancel(draw.randint(0, i), f"r{draw.randint(0, i)}")
    rig.run()
    for name, adapters in sets.items():
        (final,) = rig.finals(name)
        assert final.reason in (FinishReason.LENGTH, FinishReason.CANCELLED)
        assert EXPECTED[adapters].startswith(rig.text(name))
    assert not rig.executor.meters.violations.value
    rig.check_all_free()


def test_a_cancelled_request_leaves_its_sequence_to_requests_without_adapters() -> None:
    rig = rig_of(False, n_seq_max=1)
    rig.submit("a", PROMPT, max_tokens=40, lora=SETS[3])
    for _ in range(8):
        rig.tick()
    rig.executor.cancel(1, "a")
    rig.submit("b", PROMPT, max_tokens=40, lora=())
    rig.run()
    assert rig.text("b") == EXPECTED[()]


def test_a_request_that_does_not_say_gets_the_configured_scales() -> None:
    rig = Rig(FakeModel(adapters=(("tone", 0.5), ("topic", 0.0))))
    rig.submit("unsaid", PROMPT, max_tokens=40)
    rig.submit("none", PROMPT, max_tokens=40, lora=())
    rig.run()
    assert rig.text("unsaid") == EXPECTED[(("tone", 0.5),)]
    assert rig.text("none") == EXPECTED[()]


def test_an_adapter_that_is_not_there_is_refused_with_the_nearest_name() -> None:
    rig = rig_of(True)
    rig.submit("a", lora=(("tonne", 1.0),))
    rig.run()
    (refusal,) = rig.refusals()
    assert refusal.error.error is ErrorCode.BAD_REQUEST
    assert refusal.error.detail["field"] == "lora" and "tone" in refusal.error.message
    assert not any(isinstance(event, Final) for event in rig.seen)


def test_scales_without_end_leave_nothing_behind() -> None:
    rig = rig_of(True, n_seq_max=1)
    for i in range(1, 200):
        rig.submit(f"{i}", "hello", max_tokens=2, lora=(("tone", i / 100),))
        rig.run()
    assert len(rig.executor.cache.trees) < 10
