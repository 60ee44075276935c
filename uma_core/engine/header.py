"""What a GGUF says of itself, through gguf.h: scalar metadata, and where each tensor lies in the file."""

from __future__ import annotations

from typing import Any, NamedTuple

from uma_core.engine.lib import ffi, lib, text
from uma_core.engine.llama_log import tap
from uma_core.errors import ErrorCode, UmaError

Scalar = int | float | bool | str


def check_file(path: str) -> None:
    """Refuse what is plainly no GGUF before the loader touches it.

    Raises: MODEL_LOAD_FAILED.
    """
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: {error.strerror}", path=path) from error
    if magic != b"GGUF":
        raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: not a GGUF file", path=path)


def refusal(path: str, mark: int) -> UmaError:
    """Why llama.cpp did not load the file, in its own words since the log line `mark`: for want of memory, or because of the file."""
    error = ErrorCode.INSUFFICIENT_MEMORY if lib.uma_guard_is_short() else ErrorCode.MODEL_LOAD_FAILED
    return UmaError(error, f"{path}: {words_of_failure(mark)}", path=path)


def words_of_failure(mark: int) -> str:
    """What llama.cpp says of a call that failed on this thread."""
    return tap.errors(mark) or text(lib.uma_guard_message()) or "llama.cpp refused it"


class TensorPlace(NamedTuple):
    """One tensor of the file. `ne` is ggml's order: ne[0] is the row's length."""

    name: str
    type: int
    ne: tuple[int, int, int, int]
    offset: int  # from the file's begin
    n_bytes: int


class Header:
    """Owns a gguf_context and the ggml_context of its tensors, which have no data. `close` frees both."""

    def __init__(self, path: str) -> None:
        """Raises: MODEL_LOAD_FAILED."""
        check_file(path)
        self.path = path
        context = ffi.new("struct ggml_context **")
        mark = tap.pump()
        params = ffi.new("struct gguf_init_params *", {"no_alloc": True, "ctx": context})
        self.handle = lib.gguf_init_from_file(path.encode(), params[0])
        if not self.handle:
            raise refusal(path, mark)
        self.context = context[0]
        self.meta = self._read_meta()
        self.tensors = self._read_tensors()
        for name in self.tensors:
            if not lib.ggml_get_tensor(self.context, name.encode()):  # bytes that are no text
                self.close()
                raise UmaError(ErrorCode.MODEL_LOAD_FAILED, f"{path}: a tensor without a legible name", path=path)

    def _read_meta(self) -> dict[str, Scalar]:
        out: dict[str, Scalar] = {}
        for i in range(int(lib.gguf_get_n_kv(self.handle))):
            read = _READERS.get(lib.gguf_get_kv_type(self.handle, i))
            if read is not None:
                out[text(lib.gguf_get_key(self.handle, i))] = read(self.handle, i)
        return out

    def _read_tensors(self) -> dict[str, TensorPlace]:
        handle, base = self.handle, int(lib.gguf_get_data_offset(self.handle))
        places = {}
        for i in range(int(lib.gguf_get_n_tensors(handle))):
            name = text(lib.gguf_get_tensor_name(handle, i))
            ne = tuple(ffi.unpack(lib.gguf_get_tensor_ne(handle, i), 4))
            offset = base + int(lib.gguf_get_tensor_offset(handle, i))
            places[name] = TensorPlace(name, int(lib.gguf_get_tensor_type(handle, i)), ne, offset, int(lib.gguf_get_tensor_size(handle, i)))
        return places

    @property
    def arch(self) -> str:
        return str(self.meta.get("general.architecture", "unknown"))

    def of_arch(self) -> dict[str, Scalar]:
        """The architecture's own metadata, without its prefix."""
        prefix = self.arch + "."
        return {key.removeprefix(prefix): value for key, value in self.meta.items() if key.startswith(prefix)}

    def arrays(self) -> list[str]:
        """Keys of metadata that is an array."""
        keys = range(int(lib.gguf_get_n_kv(self.handle)))
        return [text(lib.gguf_get_key(self.handle, i)) for i in keys if lib.gguf_get_kv_type(self.handle, i) == lib.GGUF_TYPE_ARRAY]

    def close(self) -> None:
        if self.handle:
            lib.gguf_free(self.handle)
            lib.ggml_free(self.context)
            self.handle = None


_READERS: dict[int, Any] = {
    lib.GGUF_TYPE_UINT8: lib.gguf_get_val_u8,
    lib.GGUF_TYPE_INT8: lib.gguf_get_val_i8,
    lib.GGUF_TYPE_UINT16: lib.gguf_get_val_u16,
    lib.GGUF_TYPE_INT16: lib.gguf_get_val_i16,
    lib.GGUF_TYPE_UINT32: lib.gguf_get_val_u32,
    lib.GGUF_TYPE_INT32: lib.gguf_get_val_i32,
    lib.GGUF_TYPE_UINT64: lib.gguf_get_val_u64,
    lib.GGUF_TYPE_INT64: lib.gguf_get_val_i64,
    lib.GGUF_TYPE_FLOAT32: lib.gguf_get_val_f32,
    lib.GGUF_TYPE_FLOAT64: lib.gguf_get_val_f64,
    lib.GGUF_TYPE_BOOL: lambda handle, i: bool(lib.gguf_get_val_bool(handle, i)),
    lib.GGUF_TYPE_STRING: lambda handle, i: text(lib.gguf_get_val_str(handle, i)),
}
