"""Repacked weights kept in a file, so that the next start with the same model reads them as they are
(`engine.repack_cache`).

Rules: a file that is damaged, cut short or of another layout is never used, and is written again. Loading continues
whatever the disk does. A file that another user could have written, or that is not a regular file, is left alone.

Layout of a file: magic (8), version (u32), bytes of the header (u32), sha256 of the header (32), header (JSON), zeros
up to a multiple of 4 KiB, the memory of the repacked weights. Integers are little-endian. The header says of which
weights and for which kernels the file is, where each matrix lies, and the CRC-32 of each 8 MiB.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from uma_core import measured
from uma_core.engine.graph.parallel import in_parallel, read_into, will_need
from uma_core.engine.graph.repacked import Repacked
from uma_core.engine.header import Header
from uma_core.engine.lib import lib, text
from uma_core.errors import ErrorCode
from uma_core.kept_files import is_left_over, is_ours, open_ours, replacing

log = logging.getLogger(__name__)

MAGIC = b"UMAREPAK"
VERSION = 1
SUFFIX = ".umaweights"
TEMPORARY = SUFFIX + ".tmp"
PIECE_BYTES = 8 << 20  # each piece has a checksum
ALIGNMENT = 4096
MOST_HEADER = 64 << 20
_FIXED = struct.Struct("<8sII32s")

Done = Callable[[int], None]  # gets the number of bytes that were read or written; may raise


class Damaged(ValueError):
    """The bytes are not a complete file of ours. The text names the cause in a few words."""


class Key(NamedTuple):
    """What a file was made for. Another model, kernel or version of the layout has another name."""

    fingerprint: str
    isa: str
    layout: int
    stamp: str  # sizes and times of the model's files, because a fingerprint reads only samples of the weights

    @property
    def family(self) -> str:
        """The part of the name that files of other layouts share with this one."""
        return f"{self.fingerprint}-{self.isa}-v"

    @property
    def of_layout(self) -> str:
        return f"{self.family}{self.layout}-"

    @property
    def file_name(self) -> str:
        return f"{self.of_layout}{self.stamp}{SUFFIX}"


def key_of(header: Header, fingerprint: str) -> Key:
    """Raises: OSError."""
    facts = [os.stat(path) for path in header.paths]
    stamp = hashlib.sha256(repr([(f.st_size, f.st_mtime_ns) for f in facts]).encode()).hexdigest()[:16]
    return Key(fingerprint, text(lib.uma_accel_isa()), int(lib.uma_accel_repacked_version()), stamp)


def folder() -> Path:
    """Return the folder of the files. It need not exist. Raises: FileNotFoundError for a user without a home folder."""
    return measured.home() / "weights"


class Span(NamedTuple):
    """A piece of the repacked memory."""

    number: int
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class RepackCache:
    """The file of one model."""

    folder: Path
    key: Key
    most_bytes: int  # limit of all files in the folder; the least recently used are removed first

    @property
    def path(self) -> Path:
        return self.folder / self.key.file_name

    def read(self, repacked: Repacked, n_threads: int, done: Done) -> bool:
        """Fill the memory from the file. False: no file can be used, and the memory may hold anything. Blocks."""
        try:
            fd = open_ours(str(self.path))
        except FileNotFoundError:
            return False
        except OSError as error:
            _warn(f"{self.path}: {error.strerror}: not used")
            return False
        if fd is None:
            _warn(f"{self.path} is not a regular file of this user alone: left as it is, not used")
            return False
        try:
            _fill(fd, self.key, repacked, n_threads, done)
            with contextlib.suppress(OSError):
                os.utime(fd)  # the order of removal
                self.tidy(os.fstat(fd).st_size)
            return True
        except Damaged as cause:
            _warn(f"{self.path} is {cause}: removed, the weights are repacked")
            self._remove(self.path.name, "")
        except OSError as error:
            _warn(f"reading {self.path}: {error.strerror}: not used")
        finally:
            os.close(fd)
        return False

    def write(self, repacked: Repacked, n_threads: int, done: Done) -> bool:
        """Write the memory to the file. False: the log has a warning. Blocks until the disk has the file."""
        view = repacked.view()
        spans = list(_spans(len(view)))
        at = len(_head(self.key, repacked, [0] * len(spans)))  # where the weights begin
        if at + len(view) > self.most_bytes:
            _warn(f"the repacked weights take {len(view) >> 20} MiB, more than engine.repack_cache_mb: not kept")
            return False
        sums = [0] * len(spans)

        def put(span: Span) -> int:
            piece = view[span.offset : span.offset + span.n_bytes]
            sums[span.number] = zlib.crc32(piece)
            _write_all(fd, piece, at + span.offset)
            return span.n_bytes

        try:
            if self._is_taken():
                return False
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            self.tidy(at + len(view))
            with replacing(str(self.path)) as fd:
                _reserve(fd, at + len(view))
                in_parallel(put, spans, n_threads, done)
                _write_all(fd, memoryview(_head(self.key, repacked, sums)), 0)
            return True
        except OSError as error:
            _warn(f"keeping the repacked weights in {self.folder}: {error.strerror}: not kept")
            return False

    def _is_taken(self) -> bool:
        """Whether something that is not ours has the name."""
        try:
            return not is_ours(os.lstat(self.path))
        except FileNotFoundError:
            return False

    def tidy(self, n_more: int) -> None:
        """Remove files that no start can use again, then the least recently used until `n_more` bytes fit the limit.

        Raises: OSError.
        """
        kept: list[tuple[float, int, str]] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    facts = entry.stat(follow_symlinks=False)
                    if not is_ours(facts):
                        continue
                    if entry.name.endswith(TEMPORARY):
                        if is_left_over(entry.path, facts):
                            self._remove(entry.name, "unfinished")
                    elif entry.name.endswith(SUFFIX):
                        if entry.name.startswith(self.key.family) and not entry.name.startswith(self.key.of_layout):
                            self._remove(entry.name, "another layout")
                        elif entry.name != self.key.file_name:
                            kept.append((facts.st_mtime, facts.st_size, entry.name))
        n_bytes = n_more + sum(size for _, size, _ in kept)
        for _, size, name in sorted(kept):
            if n_bytes <= self.most_bytes:
                break
            self._remove(name, "room")
            n_bytes -= size

    def _remove(self, name: str, cause: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.folder / name)
            if cause:
                log.info("%s was removed: %s", name, cause)


def _fill(fd: int, key: Key, repacked: Repacked, n_threads: int, done: Done) -> None:
    """Raises: Damaged, OSError."""
    view = repacked.view()
    spans = list(_spans(len(view)))
    sums, at = _read_head(fd, key, repacked, len(spans))
    if os.fstat(fd).st_size != at + len(view):
        raise Damaged("truncated")

    def drawn() -> Iterator[Span]:
        for span in spans:
            will_need(fd, at + span.offset, span.n_bytes)
            yield span

    def get(span: Span) -> int:
        piece = view[span.offset : span.offset + span.n_bytes]
        if not read_into(fd, piece, at + span.offset):
            raise Damaged("truncated")
        if zlib.crc32(piece) != sums[span.number]:
            raise Damaged("damaged")
        return span.n_bytes

    in_parallel(get, drawn(), n_threads, done)


def _spans(n_bytes: int) -> Iterator[Span]:
    for number, offset in enumerate(range(0, n_bytes, PIECE_BYTES)):
        yield Span(number, offset, min(PIECE_BYTES, n_bytes - offset))


def _facts(key: Key, repacked: Repacked) -> dict[str, Any]:
    """Facts that must be the same for the bytes to mean the same."""
    return {"key": list(key), "bytes": len(repacked.view()), "tensors": [list(place) for place in repacked.places()]}


def _head(key: Key, repacked: Repacked, sums: list[int]) -> bytes:
    """Make a file's beginning. Its length does not depend on the sums."""
    header = json.dumps({**_facts(key, repacked), "crc32": [f"{value:08x}" for value in sums]}).encode()
    head = _FIXED.pack(MAGIC, VERSION, len(header), hashlib.sha256(header).digest()) + header
    return head + bytes(-len(head) % ALIGNMENT)


def _read_head(fd: int, key: Key, repacked: Repacked, n_sums: int) -> tuple[list[int], int]:
    """Return the checksums, and the offset of the weights. Raises: Damaged, OSError."""
    fixed = bytearray(_FIXED.size)
    if not read_into(fd, memoryview(fixed), 0):
        raise Damaged("truncated")
    magic, version, n, digest = _FIXED.unpack(fixed)
    if magic != MAGIC or version != VERSION or n > MOST_HEADER:
        raise Damaged("no file of this version")
    header = bytearray(n)
    if not read_into(fd, memoryview(header), _FIXED.size):
        raise Damaged("truncated")
    if hashlib.sha256(header).digest() != digest:
        raise Damaged("damaged")
    try:
        fields = json.loads(header)
        sums = [int(value, 16) for value in fields.pop("crc32")]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise Damaged("damaged") from error
    if fields != _facts(key, repacked) or len(sums) != n_sums:
        raise Damaged("of other weights or another layout")
    size = _FIXED.size + n
    return sums, size + -size % ALIGNMENT


def _reserve(fd: int, n_bytes: int) -> None:
    """Find out at once if the disk has no room. Raises: OSError."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, n_bytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems that cannot reserve
            raise


def _write_all(fd: int, view: memoryview, offset: int) -> None:
    while len(view):
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n


def _warn(message: str) -> None:
    log.warning("%s %s: %s", ErrorCode.CACHE_IO.code, ErrorCode.CACHE_IO.spec.name, message)
