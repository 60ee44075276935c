"""Which of the processor's kernels compute, and what `status` says about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from uma_core.engine.kernels import isa_notes, use_kernels
from uma_core.engine.lib import lib
from uma_core.errors import ErrorCode, UmaError


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    yield
    use_kernels(True)


def test_they_are_named_if_they_are_on() -> None:
    name = use_kernels(True)
    assert bool(name) == bool(lib.uma_accel_register() == 0)
    assert use_kernels(False) == ""


def test_an_instruction_set_that_the_processor_lacks_is_refused_by_its_option() -> None:
    with pytest.raises(UmaError, match=r"engine\.isa is none-such, which this processor does not support") as caught:
        use_kernels(True, "none-such")
    assert caught.value.error is ErrorCode.CONFIG_INVALID and caught.value.detail["option"] == "engine.isa"


def test_a_note_tells_what_obeys_the_option() -> None:
    assert isa_notes("auto", "avx2") == ()
    (note,) = isa_notes("generic", "avx2")
    assert note.startswith("our kernels use avx2, as engine.isa asks; ggml's own operations")
    assert isa_notes("generic", "")[0].startswith("our kernels are off")
