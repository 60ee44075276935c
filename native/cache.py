"""A build cache outside the tree: entries appear whole or not at all, and every file of an entry is checked before use.

Layout: <root>/<kind>/<key>/{manifest.json, ...files}. One lock file per key keeps two builds apart.
Rules: `produce` writes into a scratch folder beside the entry; a rename publishes it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from native.pin import BuildError, sha256_file

MANIFEST = "manifest.json"
FORMAT = 1  # increase this when the layout of an entry changes


DEPRECATED = (
    "uma-serve: UMA_CACHE_DIR is deprecated as the build cache's folder, because it is also the daemon's option "
    "cache.disk_dir; set UMA_BUILD_CACHE"
)


def cache_root() -> Path:
    """UMA_BUILD_CACHE, else the platform's cache folder.

    In this release UMA_CACHE_DIR still names the folder if UMA_BUILD_CACHE is not set.
    """
    given = os.environ.get("UMA_BUILD_CACHE")
    if not given and os.environ.get("UMA_CACHE_DIR"):
        given = os.environ["UMA_CACHE_DIR"]
        _deprecate()
    if given:
        return Path(given).expanduser().resolve()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "uma-serve"
    folder = os.environ.get("XDG_CACHE_HOME", "")
    # XDG Base Directory Specification: a relative path does not count
    return (Path(folder) if os.path.isabs(folder) else Path.home() / ".cache") / "uma-serve"


@functools.cache
def _deprecate() -> None:
    """Print the warning, but only once."""
    print(DEPRECATED, file=sys.stderr)


def make_key(facts: dict[str, object]) -> str:
    """Return a key for everything that changes the result. Equal facts give equal keys in every process."""
    text = json.dumps({"format": FORMAT, **facts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def verify_entry(entry: Path) -> str:
    """Return "" for an intact entry, else what is wrong with it."""
    try:
        files = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))["files"]
        expected = dict(files.items())
    except FileNotFoundError:
        return "its manifest is missing"
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return "its manifest cannot be read"
    found = {str(p.relative_to(entry)) for p in entry.rglob("*") if p.is_file()} - {MANIFEST}
    if found != set(expected):
        return f"files differ from its manifest: {', '.join(sorted(found ^ set(expected))[:5])}"
    for name, sha in expected.items():
        if sha256_file(entry / name) != sha:
            return f"{name} is damaged"
    return ""


def get_or_build(
    root: Path, kind: str, facts: dict[str, object], produce: Callable[[Path], None], note: Callable[[str], None]
) -> Path:
    """Return the entry for `facts`; call `produce(scratch)` if there is no intact one.

    Blocks: while another process builds the same key. Raises: whatever `produce` raises (nothing is published then),
    BuildError when the cache folder cannot be written.
    """
    folder, key = root / kind, make_key(facts)
    entry = folder / key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"{key}.lock").open("a")
    except OSError as error:
        message = f"the build cache {folder} is not writable ({error.strerror}); set UMA_BUILD_CACHE to another folder"
        raise BuildError(message) from error
    with lock, _held(lock.fileno(), note):
        if entry.exists():
            wrong = verify_entry(entry)
            if not wrong:
                os.utime(entry)  # `prune` keeps the entries used last
                return entry
            note(f"the cached {kind} build is unusable ({wrong}); building it again")
            shutil.rmtree(entry)
        for leftover in folder.glob(f".{key}-*"):  # left by a build that was killed: we hold its lock
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=folder))
        try:
            produce(scratch)
            _write_manifest(scratch, facts)
            os.replace(scratch, entry)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return entry


@contextmanager
def work_beside(entry: Path) -> Iterator[Path]:
    """A temporary folder for `produce`. If the build is killed, the next build removes it."""
    with tempfile.TemporaryDirectory(prefix=f"{entry.name}-", dir=entry.parent) as work:
        yield Path(work)


def prune(root: Path, kind: str, n_keep: int) -> None:
    """Remove all entries except the `n_keep` used last. Entries that another process has locked stay."""
    folder = root / kind
    entries = [p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")] if folder.is_dir() else []
    for entry in sorted(entries, key=lambda p: p.stat().st_mtime, reverse=True)[n_keep:]:
        with (folder / f"{entry.name}.lock").open("a") as lock:
            try:
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(entry, ignore_errors=True)


def _write_manifest(folder: Path, facts: dict[str, object]) -> None:
    files = {str(p.relative_to(folder)): sha256_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    with (folder / MANIFEST).open("w", encoding="utf-8") as stream:
        json.dump({"facts": facts, "files": files}, stream, indent=1, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def _held(fd: int, note: Callable[[str], None]) -> Iterator[None]:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        note("another build of the same kind is running; waiting for it")
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
