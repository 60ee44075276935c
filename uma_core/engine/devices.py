"""What ggml's registry says of the machine's devices. The registry owns them."""

from __future__ import annotations

from uma_core.engine.lib import lib, text

GPUS = (lib.GGML_BACKEND_DEVICE_TYPE_GPU, lib.GGML_BACKEND_DEVICE_TYPE_IGPU)  # the better kind first


def backend_name() -> str:
    """The first device that is not the CPU names the backend, as ggml's registry lists them."""
    for i in range(lib.ggml_backend_dev_count()):
        device = lib.ggml_backend_dev_get(i)
        if lib.ggml_backend_dev_type(device) in GPUS:
            return text(lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(device))).lower()
    return "cpu"


def device_names() -> tuple[str, ...]:
    """All devices, as ggml's registry lists them."""
    devices = map(lib.ggml_backend_dev_get, range(lib.ggml_backend_dev_count()))
    return tuple(text(lib.ggml_backend_dev_description(device)) for device in devices)
