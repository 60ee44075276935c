"""The machine's devices, from ggml's registry. The registry owns them."""

from __future__ import annotations

from uma_core.engine.lib import lib, text

GPUS = (lib.GGML_BACKEND_DEVICE_TYPE_GPU, lib.GGML_BACKEND_DEVICE_TYPE_IGPU)  # the better kind first

FOR_GPUS = ("CUDA", "ROCm", "Vulkan")  # backends that a build may have on a machine without such a device


def backend_name() -> str:
    """Return the backend's name: that of the first device in ggml's registry that is not the CPU."""
    for i in range(lib.ggml_backend_dev_count()):
        device = lib.ggml_backend_dev_get(i)
        if lib.ggml_backend_dev_type(device) in GPUS:
            return text(lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(device))).lower()
    return "cpu"


def device_names() -> tuple[str, ...]:
    """Return all devices, as ggml's registry lists them."""
    devices = map(lib.ggml_backend_dev_get, range(lib.ggml_backend_dev_count()))
    return tuple(text(lib.ggml_backend_dev_description(device)) for device in devices)


def missing_gpu() -> str:
    """Return the note for `status` if this build is for a GPU and found none; "" otherwise."""
    if backend_name() != "cpu":
        return ""
    registered = map(lib.ggml_backend_reg_get, range(lib.ggml_backend_reg_count()))
    names = [name for each in registered if (name := text(lib.ggml_backend_reg_name(each))) in FOR_GPUS]
    return f"{' and '.join(names)} found no GPU: the CPU computes" if names else ""
