"""The tensors of a GGUF by name. The shape of each is checked when a caller gets it.

Subclasses decide where their data is.
"""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.joined import Part
from uma_core.engine.graph.shape import Unsupported
from uma_core.engine.header import Header
from uma_core.engine.lib import ffi, lib


class Weights:
    """`used` are the names that were asked for. Call `close` only after every graph that reads them is gone."""

    n_bytes: int  # their bytes in memory
    source: str  # how they got there, for `status`

    def __init__(self, header: Header) -> None:
        self.used: set[str] = set()
        self.factors: dict[str, Any] = {}  # copies that products read
        self._header = header

    def get(self, name: str) -> Any:
        """The tensor of that name. Raises: Unsupported if the file has none."""
        tensor = self.find(name)
        if not tensor:
            raise Unsupported(f"a file without {name}")
        return tensor

    def find(self, name: str) -> Any:
        """The tensor, or NULL."""
        self.used.add(name)
        return self._header.tensor(name)

    def vector(self, name: str, n: int) -> Any:
        """A tensor of n floats. Raises: Unsupported; a wrong shape would end the process inside ggml."""
        return self._checked(name, (n, 1, 1), lib.GGML_TYPE_F32)

    def matrix(self, name: str, n_in: int, n_out: int, n: int = 1) -> Any:
        """n matrices of n_out rows. Raises: Unsupported."""
        return self._checked(name, (n_in, n_out, n), None)

    def factor(self, name: str, n_in: int, n_out: int, n: int = 1) -> Any:
        """n matrices that only products read. Raises: Unsupported."""
        matrix = self.factors[name] = self._laid_out(name, self.matrix(name, n_in, n_out, n))
        return matrix

    def _laid_out(self, name: str, matrix: Any) -> Any:
        """The copy that products read instead, if there is one."""
        return matrix

    def repacked(self) -> memoryview | None:
        """The memory of the copies that products read, if there are any."""
        return None

    def part(self, name: str) -> Part | None:
        """The joined matrix of which the matrix of that name (without its suffix) is a part."""
        return None

    def _checked(self, name: str, ne: tuple[int, int, int], kind: int | None) -> Any:
        tensor = self.get(name)
        if tuple(ffi.unpack(tensor.ne, 4)) != (*ne, 1) or kind not in (None, tensor.type):
            raise Unsupported(f"{name} of this shape or type")
        return tensor

    def unused(self) -> list[str]:
        """Return the tensors that nothing has used: the model has something that its graph lacks."""
        return sorted(self._header.tensors.keys() - self.used)

    def close(self) -> None:
        """Free the data. Idempotent."""
        raise NotImplementedError
