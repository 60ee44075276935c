"""Gets llama.cpp's source: from a given file, from the cache, or with the package client; then unpacks what the build
needs.

Rules: nothing is unpacked before its sha256 is checked; nothing is written outside the destination.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from native.pin import BuildError, Pin, sha256_file
from native.progress import Progress

# what CMake and the chat library's build read; the rest of the archive (models, tools, web UI) is 10 times as large
_NEEDED = (
    "CMakeLists.txt",
    "LICENSE",
    "licenses/",
    "cmake/",
    "src/",
    "include/",
    "ggml/",
    "vendor/",
    "common/",
    "models/templates/",
)


def sdist_path(pin: Pin, cache: Path) -> Path:
    return cache / "sdist" / f"{pin.package.replace('-', '_')}-{pin.version}.tar.gz"


def fetch_sdist(pin: Pin, cache: Path, progress: Progress) -> Path:
    """Return a source archive, downloading it at most once. The file that UMA_SDIST names is not checked here, because
    it may be the output of `pack`: `extract` checks its content.

    Blocks: on the network when the cache is cold and UMA_SDIST is not set.
    Raises: BuildError if the archive cannot be obtained or its hash is wrong.
    """
    given = os.environ.get("UMA_SDIST")
    if given:
        path = Path(given).expanduser()
        path = path / sdist_path(pin, cache).name if path.is_dir() else path
        if not path.is_file():
            raise BuildError(f"UMA_SDIST: no file {path}")
        return path
    kept = sdist_path(pin, cache)
    if kept.is_file():
        if sha256_file(kept) == pin.sha256:
            return kept
        progress.note(f"the cached {kept.name} is damaged; fetching it again")
        kept.unlink()
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=kept.parent) as scratch:
        found = download(pin, Path(scratch), progress)
        verify_sha256(found, pin.sha256, f"the downloaded {found.name}")
        os.replace(found, kept)
    return kept


def verify_sha256(path: Path, expected: str, what: str) -> None:
    actual = sha256_file(path)
    if actual != expected:
        raise BuildError(f"{what} is not the pinned file: sha256 {actual}, native/PIN says {expected}")


def download(pin: Pin, folder: Path, progress: Progress) -> Path:
    """Ask the package client for the source distribution. Its metadata step takes about half a minute."""
    progress.note(f"fetching {pin.package} {pin.version} (llama.cpp {pin.short_commit}), about a minute")
    requirement = f"{pin.package}=={pin.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", pin.package, "--dest", str(folder), requirement]
    env = client_environment(dict(os.environ))
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode and "No module named pip" in done.stderr:  # an isolated build that has pip only on PYTHONPATH
        env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    found = sorted(folder.glob("*.tar.gz"))
    if done.returncode or not found:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise BuildError(
            f"could not download {requirement}: connect this machine to a package index once, or set UMA_SDIST to the "
            f"file {sdist_path(pin, folder).name}, downloaded elsewhere.\n{tail}"
        )
    return found[0]


def client_environment(env: dict[str, str]) -> dict[str, str]:
    """The environment without the variables that an outer pip set for its build of this package: an inner pip would
    take them for its own.
    """
    outer = ("PYTHONPATH", "PYTHONNOUSERSITE", "PIP_BUILD_TRACKER")
    return {
        key: value
        for key, value in env.items()
        if key not in outer and not key.startswith(("_PYPROJECT_HOOKS_", "PEP517_"))
    }


def extract(sdist: Path, pin: Pin, folder: Path) -> Path:
    """Unpack the needed part of llama.cpp into `folder`; return its root. All its files are checked against native/PIN.

    Raises: BuildError on a member that would leave `folder`, when a file differs, or when this is not an archive.
    """
    try:
        _unpack(sdist, pin, folder)
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        why = str(error).splitlines()[0].rstrip(":")  # the other lines say what each kind of archive expects
        raise BuildError(f"{sdist} cannot be unpacked: {why}") from error
    if tree_digest(folder) != pin.source_sha256:
        raise BuildError(
            f"{sdist} does not hold the pinned source: files below {pin.source_root} differ from native/PIN"
        )
    return folder


def tree_digest(folder: Path) -> str:
    """One hash over names and contents of all files, whatever their order on disk."""
    digest = hashlib.sha256()
    for name in sorted(str(p.relative_to(folder).as_posix()) for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{name} {sha256_file(folder / name)}\n".encode())
    return digest.hexdigest()


def pack(sdist: Path, pin: Pin, target: Path) -> None:
    """Write the part of a source archive that the build reads: a small file for UMA_SDIST on a machine without
    network.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source = extract(sdist, pin, Path(scratch))
        with tarfile.open(target, "w:gz") as archive:
            archive.add(source, arcname=f"{pin.package}-{pin.version}/{pin.source_root}")


def _unpack(sdist: Path, pin: Pin, folder: Path) -> None:
    with tarfile.open(sdist, "r:*") as archive:
        for member in archive:
            inside = _inside_source_root(member.name, pin)
            if inside is None or not (member.isfile() or member.isdir()):
                continue
            target = folder / inside
            if ".." in PurePosixPath(member.name).parts or member.name.startswith("/"):
                raise BuildError(f"{sdist.name} holds an unsafe path: {member.name}")
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            source = archive.extractfile(member)
            assert source is not None
            with source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)


def _inside_source_root(name: str, pin: Pin) -> str | None:
    """Path below llama.cpp's root if the build needs the member, else None. The archive has one top folder."""
    _, _, below = name.partition("/")
    if not below.startswith(pin.source_root + "/"):
        return None
    inside = below[len(pin.source_root) + 1 :]
    return inside if inside.startswith(_NEEDED) else None


def install_headers(source: Path, pin: Pin, headers_dir: Path) -> None:
    """Copy the pinned headers, verified, into `headers_dir` (inner ones below `inner/`). Unchanged files are not
    touched.

    Raises: BuildError when a header is missing or differs from native/PIN.
    """
    for name, expected in pin.headers.items():
        path = source / name
        if not path.is_file():
            raise BuildError(f"the source lacks {name}")
        verify_sha256(path, expected, name)
        target = header_target(name, pin, headers_dir)
        if not target.is_file() or sha256_file(target) != expected:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def header_target(name: str, pin: Pin, headers_dir: Path) -> Path:
    base = Path(name).name
    return headers_dir / base if base in pin.public_headers else headers_dir / "inner" / base
