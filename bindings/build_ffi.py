"""The cffi definition of `uma_core._llama`: llama.cpp's cdef, our own (native/*/uma_*.h), and the values that the drift
check compares at import.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import cffi

from bindings.generate import CORE_HEADERS
from native.build import HEADERS_DIR, ROOT, Native
from native.pin import BuildError, sha256_file

MODULE = "uma_core._llama"
TOPICS = ("runtime", "sampling", "speculation", "llama", "graph")  # each header may use the ones before it
OWN_HEADERS = tuple(ROOT / "native" / topic / f"uma_{topic}.h" for topic in TOPICS)
_MARKED = re.compile(r"/\* cdef begin \*/(.*?)/\* cdef end \*/", re.DOTALL)
BAKED = ("llama_version", "ggml_version", "ggml_commit", "backend", "headers", "structs", "enums")


def own_cdef(paths: Sequence[Path] = OWN_HEADERS) -> str:
    """Return the marked parts of our headers, in their order. Raises: BuildError if a header has no marked part."""
    parts: list[str] = []
    for path in paths:
        marked = _MARKED.findall(path.read_text(encoding="utf-8"))
        if not marked:
            raise BuildError(f"{path.name} has no part between /* cdef begin */ and /* cdef end */")
        parts += (part.strip() for part in marked)
    return "\n".join(parts) + "\n"


def type_names(cdef_text: str, *kinds: str) -> list[str]:
    """Return cffi's names of the types of these kinds (struct, union, enum) that have a body."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", cdef_text, flags=re.DOTALL)
    kind = "|".join(kinds)
    tagged = [f"{k} {name}" for k, name in re.findall(rf"\b({kind})\s+(\w+)\s*\{{", text)]
    return tagged + re.findall(rf"\btypedef\s+(?:{kind})\s*\{{[^{{}}]*\}}\s*(\w+)", text)


def enum_table(cdef_text: str) -> str:
    """Return `type:NAME=value,...;...` for every enum, with the values from the headers' text. At import the
    drift check compares them with the compiler's values.
    """
    reader = cffi.FFI()
    reader.cdef(cdef_text)
    rows = []
    for name in type_names(cdef_text, "enum"):
        members = reader.typeof(name).relements
        rows.append(f"{name}:" + ",".join(f"{member}={value}" for member, value in members.items()))
    return ";".join(rows)


def headers_digest() -> str:
    return hashlib.sha256("".join(sha256_file(HEADERS_DIR / name) for name in CORE_HEADERS).encode()).hexdigest()


def baked_values(native: Native, cdef_text: str) -> dict[str, str]:
    """Return the strings that the compiled module carries as `uma_built_<name>`. `cdef_text`: the whole cdef, including
    our own part.
    """
    values = (native.llama_version, native.ggml_version, native.ggml_commit, native.backend, headers_digest())
    tables = (";".join(type_names(cdef_text, "struct", "union")), enum_table(cdef_text))
    return dict(zip(BAKED, (*values, *tables), strict=True))


def make_ffi(
    cdef_text: str, baked: dict[str, str], headers: tuple[str, ...], own: str = "", module: str = MODULE
) -> cffi.FFI:
    """Put together the module's definition. `own` is the cdef of our C helpers; our headers are included with it."""
    ffi = cffi.FFI()
    ffi.cdef(cdef_text)
    ffi.cdef("".join(f"static const char *const uma_built_{name};\n" for name in baked))
    includes = [f'#include "{name}"' for name in headers]
    if own:
        ffi.cdef(own)
        includes += [f'#include "{topic}/uma_{topic}.h"' for topic in TOPICS]
    lines = [f"static const char uma_built_{name}[] =\n{c_string(value)};" for name, value in baked.items()]
    ffi.set_source(module, "\n".join(includes + lines) + "\n")
    return ffi


def c_string(text: str, width: int = 100) -> str:
    """Return a C string literal, cut into pieces that every compiler accepts."""
    pieces = [text[i : i + width] for i in range(0, len(text), width)] or [""]
    return "\n".join('  "' + piece.replace("\\", "\\\\").replace('"', '\\"') + '"' for piece in pieces)
