"""LoRA adapters in our own graph: B (A x), times each row's own scale, is added to a product with W.

Rules: a graph holds the products of all adapters that some row of its batch has; rows without an adapter have scale 0
for it. So any rows can share a call, whatever their sets, and a batch without adapters has the plain graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from uma_core.config.options import EngineOptions
from uma_core.engine.api import Adapter
from uma_core.engine.graph.device import Device
from uma_core.engine.graph.mapped import READ_BYTES
from uma_core.engine.graph.shape import Unsupported
from uma_core.engine.header import Header
from uma_core.engine.lib import ffi, lib
from uma_core.engine.lora import AdapterFile, open_adapters
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import AdapterSet

NODES_PER_PAIR = 8  # two products, a scaling, an addition, and reshapes of experts


class Part(NamedTuple):
    """One adapter's matrices for one tensor of the model."""

    which: int  # number of the adapter
    factor: float  # factor by which a request's scale is multiplied
    a: Any
    b: Any


class Adapters:
    """Owns the adapters' matrices on the device. Call `close` after the graphs over them are gone."""

    def __init__(self, model: Header, options: EngineOptions, device: Device, is_dry: bool) -> None:
        """`is_dry`: read nothing, for graphs that are only laid out.

        Raises: ADAPTER_LOAD_FAILED, INSUFFICIENT_MEMORY.
        """
        self._files: list[AdapterFile] = []
        self._buffers: list[Any] = []
        self._parts: dict[str, list[Part]] = {}  # by tensor name
        self._used: set[str] = set()
        self._files = open_adapters(options, model)
        self.infos: tuple[Adapter, ...] = tuple(file.info for file in self._files)
        self.notes = tuple(note for file in self._files for note in file.notes)
        self._number = {file.name: i for i, file in enumerate(self._files)}
        try:
            for file in self._files:
                self._buffers.append(device.place(file.header.contexts[0], is_dry))
                if not is_dry:
                    _fill(file)
                self._add(file)
        except BaseException:
            self.close()
            raise

    def _add(self, file: AdapterFile) -> None:
        which = self._number[file.name]
        for name, pair in file.pairs.items():
            a, b = (file.header.tensor(place.name) for place in pair)
            self._parts.setdefault(name, []).append(Part(which, file.factor(pair), a, b))

    def of(self, name: str, wanted: Sequence[int]) -> list[Part]:
        """Parts of the wanted adapters for a tensor."""
        self._used.add(name)
        return [part for part in self._parts.get(name, ()) if part.which in wanted]

    def scales(self, adapters: AdapterSet) -> dict[int, float]:
        """Scales by the adapter's number."""
        return {self._number[name]: scale for name, scale in adapters}

    def n_nodes(self, wanted: Iterable[int]) -> int:
        return sum(len(self._files[which].pairs) for which in wanted) * NODES_PER_PAIR

    def check_used(self) -> None:
        """Check, after a whole graph was laid out, that every adapter's tensors were used.

        Raises: Unsupported if the graph lacks a product that an adapter changes.
        """
        unused = sorted(self._parts.keys() - self._used)
        if unused:
            raise Unsupported(f"a LoRA adapter's use of {unused[0]}")

    @property
    def factors(self) -> dict[str, Any]:
        """Matrices that products read, by name."""
        return {
            f"{name}: {half}": getattr(part, half)
            for name, parts in self._parts.items()
            for part in parts
            for half in "ab"
        }

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(range(len(self._files)))

    @property
    def n_bytes(self) -> int:
        return sum(info.n_bytes for info in self.infos)

    def close(self) -> None:
        while self._buffers:
            lib.ggml_backend_buffer_free(self._buffers.pop())
        for file in self._files:
            file.close()


def _fill(file: AdapterFile) -> None:
    """Copy all tensors from the file. Raises: ADAPTER_LOAD_FAILED."""
    try:
        _copy(file)
    except OSError as error:
        raise UmaError(
            ErrorCode.ADAPTER_LOAD_FAILED, f"adapter {file.name}: {error.strerror}", adapter=file.name
        ) from error


def _copy(file: AdapterFile) -> None:
    """Raises: ADAPTER_LOAD_FAILED, OSError."""
    with open(file.header.path, "rb", buffering=0) as source:
        for place in file.header.tensors.values():
            tensor = file.header.tensor(place.name)
            source.seek(place.offset)
            at = 0
            while at < place.n_bytes:
                data = source.read(min(READ_BYTES, place.n_bytes - at))
                if not data:
                    raise UmaError(
                        ErrorCode.ADAPTER_LOAD_FAILED, f"adapter {file.name}: the file got shorter", adapter=file.name
                    )
                lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(data), at, len(data))
                at += len(data)
