"""Makes a folder of the tree equal to a folder of the cache, without touching files that are already equal."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from native.pin import sha256_file


def mirror(source: Path | None, target: Path, keep: tuple[str, ...] = ()) -> None:
    """Make `target` hold exactly the files of `source`; unchanged files are not touched, so nothing is recompiled
    for them.
    """
    wanted = {str(p.relative_to(source)): p for p in sorted(source.rglob("*")) if p.is_file()} if source else {}
    target.mkdir(parents=True, exist_ok=True)
    for present in [p for p in target.rglob("*") if p.is_file() or p.is_symlink()]:
        name = str(present.relative_to(target))
        if name not in wanted and name not in keep:
            present.unlink()
    for name, path in wanted.items():
        copy = target / name
        if copy.is_file() and not copy.is_symlink() and sha256_file(copy) == sha256_file(path):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        scratch = copy.with_name(f".{copy.name}.new")  # a process that has the old library mapped keeps its file
        shutil.copyfile(path, scratch)
        scratch.chmod(path.stat().st_mode & 0o777)
        os.replace(scratch, copy)
