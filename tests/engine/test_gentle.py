"""Short turns of work: the pauses come and go with the shared byte, and end with the block."""

from __future__ import annotations

import mmap

import pytest

from uma_core.engine import gentle as module
from uma_core.engine.gentle import gently


class Seen:
    """The native functions, as they are called."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def uma_gentle_begin(self, byte: object, run_ns: int, pause_ns: int) -> None:
        self.calls.append(("begin", byte[0], run_ns, pause_ns))  # type: ignore[index]

    def uma_gentle_end(self) -> None:
        self.calls.append(("end",))


def test_pauses_end_with_the_block_even_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    monkeypatch.setattr(module, "lib", seen)
    shared = mmap.mmap(-1, 1)
    shared[0] = 1
    with pytest.raises(KeyError), gently(shared):
        assert seen.calls == [("begin", 1, module.RUN_NS, module.PAUSE_NS)]
        raise KeyError
    assert seen.calls[-1] == ("end",)


def test_a_turn_is_a_tenth_of_the_time() -> None:
    assert module.RUN_NS * 10 == module.RUN_NS + module.PAUSE_NS
