"""Our CPU kernels inside ggml's backend (native/ggml-uma): the process has one choice of them, by its options."""

from __future__ import annotations

from uma_core.engine.lib import ffi, lib, text
from uma_core.errors import ErrorCode, UmaError

ALL_KERNELS = 7  # the bit set of native/runtime/uma_runtime.h


def use_kernels(is_wanted: bool, isa: str = "auto") -> str:
    """Switch our CPU kernels on or off for the process, before a model is loaded. Returns their instruction set; ""
    when off.

    ggml's own kernels stay in use if this processor has only our portable ones, or if `isa` asks for these.
    Raises: CONFIG_INVALID for an instruction set that this processor does not have.
    """
    if lib.uma_accel_use(ffi.NULL if isa == "auto" else isa.encode()) != 0:
        raise UmaError(
            ErrorCode.CONFIG_INVALID, f"engine.isa is {isa}, which this processor does not support", option="engine.isa"
        )
    if is_wanted and lib.uma_accel_register() == 0:
        lib.uma_accel_enable(ALL_KERNELS)
        return text(lib.uma_accel_isa())
    lib.uma_accel_enable(0)
    return ""


def isa_notes(isa: str, kernels: str) -> tuple[str, ...]:
    """Note which kernels compute if `engine.isa` is set: only our own kernels obey it."""
    if isa == "auto":
        return ()
    ours = f"our kernels use {kernels}" if kernels else "our kernels are off"
    return (
        f"{ours}, as engine.isa asks; ggml's own operations use the instructions that they were built for "
        f"({text(lib.llama_print_system_info()).strip(' |')})",
    )
