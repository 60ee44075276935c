"""The disk's thread: files that it writes can be read back, damaged files are removed, and no failure reaches a
request.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cache.trouble import failing, make_read_only
from uma_core.cache import disk as disk_module
from uma_core.cache import files
from uma_core.cache.disk import BACK_OFF_NS, PENDING_MOST, Blob, DiskTier, Found
from uma_core.clock import ManualClock
from uma_core.kept_files import hold

MODEL = "0123456789abcdef"
PAYLOAD = bytes(range(256)) * 20


def blob(seed: int = 0, model: str = MODEL, payload: bytes = PAYLOAD) -> Blob:
    return Blob(model, 1000, 2, np.arange(seed, seed + 7, dtype=np.int32), payload)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(1)
        self.folder = folder
        self.disk = DiskTier(str(folder), MODEL, self.clock, lambda: None)

    def wait(self, start: Callable[[Callable[[object], None]], object]) -> object:
        """Start a job and poll until it is answered."""
        answers: list[object] = []
        start(answers.append)
        while not answers:
            time.sleep(0.0005)  # gives the disk's thread the interpreter
            self.disk.poll()
        return answers[0]

    def write(self, what: Blob) -> object:
        return self.wait(lambda then: self.disk.write(what, then) or then(None))

    def index(self) -> dict[str, Found]:
        found = self.wait(self.disk.index)
        assert isinstance(found, list)
        return {each.name: each for each in found}

    def read(self, name: str) -> bytes | None:
        ticket = self.disk.read(name)
        assert ticket.done.wait(10)
        return ticket.payload


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "cache")
    yield made
    assert made.disk.close(10)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_what_is_written_comes_back(bench: Bench) -> None:
    assert bench.write(blob()) is True
    (found,) = bench.index().values()
    assert found.head is not None and found.head.tokens.tolist() == list(range(7)) and found.head.start == 2
    assert found.name == blob().name and found.n_bytes > len(PAYLOAD)
    assert bench.read(found.name) == PAYLOAD
    path = bench.folder / found.name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(bench.folder.stat().st_mode) == 0o700


def test_another_process_finds_it(bench: Bench) -> None:
    bench.write(blob(1))
    bench.write(blob(2))
    other = Bench(bench.folder)
    assert set(other.index()) == {blob(1).name, blob(2).name}
    assert other.read(blob(2).name) == PAYLOAD
    assert other.disk.close(10)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[:-1],
    "cut in the header": lambda data: data[: files.FIXED_BYTES + 5],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"x",
    "foreign": lambda data: b"GGUF" + data[4:],
    "of another version": lambda data: data[:8] + b"\x63" + data[9:],
    "flipped in the header": lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_files_are_ignored_and_removed(bench: Bench, how: str, caplog: pytest.LogCaptureFixture) -> None:
    for seed in (1, 2, 3):
        bench.write(blob(seed))
    for seed in (1, 2):
        path = bench.folder / blob(seed).name
        path.write_bytes(DAMAGE[how](path.read_bytes()))
    assert set(bench.index()) == {blob(3).name}
    assert [p.name for p in bench.folder.iterdir()] == [blob(3).name]
    (warning,) = warnings(caplog)  # one warning, though there were two files
    assert "E_IO_002" in warning and "removed" in warning


def test_a_flipped_bit_of_the_payload_is_seen_when_it_is_read(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.write(blob())
    path = bench.folder / blob().name
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    path.write_bytes(bytes(data))
    assert set(bench.index()) == {blob().name}
    assert bench.read(blob().name) is None
    assert not path.exists() and len(warnings(caplog)) == 1


def test_a_file_cut_after_the_index_was_made(bench: Bench) -> None:
    bench.write(blob())
    path = bench.folder / blob().name
    os.truncate(path, path.stat().st_size - 10)
    assert bench.read(blob().name) is None and not path.exists()


def test_a_file_that_vanished(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert bench.read("nothing" + files.SUFFIX) is None
    (warning,) = warnings(caplog)
    assert warning.endswith("nothing" + files.SUFFIX + " was removed by another program")
    assert bench.write(blob()) is True  # the thread is still alive


def test_a_file_under_a_wrong_name_is_removed(bench: Bench) -> None:
    bench.write(blob(1))
    (bench.folder / blob(1).name).rename(bench.folder / blob(2).name)
    assert bench.index() == {}
    assert list(bench.folder.iterdir()) == []


def test_other_models_files_stay_and_strangers_are_left_alone(bench: Bench) -> None:
    bench.write(blob(1, model="f" * 16))
    (bench.folder / "notes.txt").write_text("mine")
    left_over = bench.folder / ("x" + files.SUFFIX + ".tmp")
    left_over.write_bytes(b"half")
    os.utime(left_over, (0, 0))
    found = bench.index()
    assert [each.head for each in found.values()] == [None]
    assert sorted(p.name for p in bench.folder.iterdir()) == sorted(["notes.txt", blob(1, model="f" * 16).name])


def test_two_daemons_over_one_directory(bench: Bench) -> None:
    other = Bench(bench.folder)
    writing = bench.folder / ("x.1-1" + files.SUFFIX + ".tmp")
    bench.write(blob(1))
    with writing.open("wb", buffering=0) as file:
        hold(file.fileno())
        file.write(b"not all yet")
        assert set(other.index()) == {blob(1).name} and writing.exists()  # the other process still writes
    assert set(other.index()) == {blob(1).name} and not writing.exists()  # the other process was killed
    assert other.write(blob(1)) is True and bench.read(blob(1).name) == PAYLOAD
    assert other.disk.close(10)


def swapped(bench: Bench) -> tuple[Path, Path]:
    """The files of two tenants, exchanged after the directory was searched."""
    mine, theirs = blob(1), blob(1)._replace(tenant=1001, payload=b"theirs" * 100)
    for each in (mine, theirs):
        bench.write(each)
    assert set(bench.index()) == {mine.name, theirs.name}
    paths = bench.folder / mine.name, bench.folder / theirs.name
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    return paths


def test_another_tenants_file_in_the_place_of_ones_own_is_not_given_out(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for path in swapped(bench):
        assert bench.read(path.name) is None and not path.exists()
    assert any("misnamed" in warning for warning in warnings(caplog))


def test_another_models_file_in_the_place_of_ones_own_is_not_given_out(bench: Bench) -> None:
    bench.write(blob(1))
    bench.write(blob(1, model="f" * 16))
    os.replace(bench.folder / blob(1, model="f" * 16).name, bench.folder / blob(1).name)
    assert bench.read(blob(1).name) is None


def forged(fields: str) -> bytes:
    """A file with this text as its header, and the checksum that belongs to it."""
    header = fields.encode()
    return (
        files._FIXED.pack(files.MAGIC, files.VERSION, len(header), hashlib.sha256(header).digest()) + header + PAYLOAD
    )


PLAIN: dict[str, object] = {
    "model": MODEL,
    "uid": 1,
    "start": 0,
    "tokens": "AAAAAA==",
    "bytes": len(PAYLOAD),
    "sha256": "0" * 64,
}
FORGERIES = {
    "infinite": '{"model": "m", "uid": Infinity, "start": 0, "tokens": "AAAAAA==", "bytes": 1, "sha256": ""}',
    "nested": "[" * 200_000,
    "a list": "[]",
    "huge number": '{"uid": ' + "9" * 5000 + "}",
    "a request's own tree": json.dumps({**PLAIN, "uid": -11}),
    "no uid": json.dumps({**PLAIN, "uid": 1 << 40}),
    "negative": json.dumps({**PLAIN, "bytes": -5}),
    "more than memory": json.dumps({**PLAIN, "bytes": 1 << 60}),
    "model of another kind": json.dumps({**PLAIN, "model": ["x"]}),
    "odd tokens": json.dumps({**PLAIN, "tokens": "AAAA"}),
    "tokens of another kind": json.dumps({**PLAIN, "tokens": {"a": 1}}),
}


@pytest.mark.parametrize("how", FORGERIES)
def test_forged_headers_are_damage(bench: Bench, how: str) -> None:
    bench.write(blob(1))
    bench.write(blob(2))
    path = bench.folder / blob(1).name
    path.write_bytes(forged(FORGERIES[how]))
    assert bench.read(path.name) is None and not path.exists()  # it was put there after the search
    path.write_bytes(forged(FORGERIES[how]))
    assert set(bench.index()) == {blob(2).name} and not path.exists()


def test_what_is_no_regular_file_is_left_alone_and_stops_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(blob(1))
    precious = bench.folder / "precious"
    precious.write_bytes((bench.folder / blob(1).name).read_bytes())
    strange = {"pipe", "folder", "link", "device"}
    os.mkfifo(bench.folder / ("pipe" + files.SUFFIX))
    (bench.folder / ("folder" + files.SUFFIX)).mkdir()
    (bench.folder / ("link" + files.SUFFIX)).symlink_to(precious)
    (bench.folder / ("device" + files.SUFFIX)).symlink_to("/dev/zero")
    assert set(bench.index()) == {blob(1).name}
    assert {path.name.removesuffix(files.SUFFIX) for path in bench.folder.iterdir()} == {
        *strange,
        "precious",
        blob(1).name[: -len(files.SUFFIX)],
    }
    for name in strange:
        assert bench.read(name + files.SUFFIX) is None
    assert precious.exists() and len(warnings(caplog)) <= 3


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_may_write_is_not_read(bench: Bench, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    bench.write(blob(1))
    path = bench.folder / blob(1).name
    path.chmod(mode)
    assert bench.index() == {} and bench.read(path.name) is None
    assert path.exists() and "not used" in warnings(caplog)[0]


def test_another_users_file_is_not_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.write(blob(1))
    real = os.fstat

    def as_another(fd: int) -> object:
        facts = real(fd)
        return os.stat_result([*facts[:4], 4711, *facts[5:10]])

    monkeypatch.setattr(disk_module.os, "fstat", as_another)
    assert bench.index() == {} and bench.read(blob(1).name) is None
    assert (bench.folder / blob(1).name).exists()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_opened_now_is_not_removed(
    bench: Bench, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write(blob(1))
    with monkeypatch.context() as patch:
        patch.setattr(disk_module.os, "open", failing(number))
        found = bench.index()
        assert found[blob(1).name].head is None  # the file is counted but not used
        assert bench.read(blob(1).name) is None
    assert bench.read(blob(1).name) == PAYLOAD


def test_a_planted_name_is_not_written_through(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may write to the directory could make a temporary file's name lead to any of our files."""
    bench.folder.mkdir(exist_ok=True)
    victim = bench.folder.parent / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(secrets, "token_hex", lambda n: "guessed")
    (bench.folder / (blob().name.removesuffix(files.SUFFIX) + f".{os.getpid()}-guessed{files.SUFFIX}.tmp")).symlink_to(
        victim
    )
    assert bench.write(blob()) is False
    assert victim.read_bytes() == b"precious"


def test_a_reader_is_answered_whatever_goes_wrong(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.write(blob())
    monkeypatch.setattr(disk_module, "payload_digest", lambda payload: 1 / 0)
    assert bench.read(blob().name) is None


def test_a_write_that_fails_for_any_reason_no_longer_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(disk_module, "encode_head", lambda head: [][0])
        assert bench.write(blob()) is False
    assert bench.disk.n_pending == 0
    assert bench.write(blob()) is True


def test_a_file_larger_than_what_may_wait_is_written_when_none_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "PENDING_MOST", 100)
    assert bench.write(blob()) is True


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_switches_writing_off_for_a_while(
    bench: Bench, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(blob(1))
    with monkeypatch.context() as patch:
        patch.setattr(disk_module.os, "fsync", failing(number))
        assert bench.write(blob(2)) is False
    assert bench.write(blob(3)) is None  # the write is not tried
    assert bench.read(blob(1).name) == PAYLOAD  # reading goes on
    assert [p.name for p in bench.folder.iterdir()] == [blob(1).name]  # nothing half written is left
    bench.clock.advance(BACK_OFF_NS)
    assert bench.write(blob(4)) is True
    (warning,) = warnings(caplog)
    assert "E_IO_002" in warning and os.strerror(number) in warning


def test_the_same_failure_is_warned_of_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_module.os, "replace", failing(errno.ENOSPC))
    for seed in range(3):
        bench.write(blob(seed))
        bench.clock.advance(BACK_OFF_NS)
    assert len(warnings(caplog)) == 1


def test_a_directory_that_cannot_be_written_still_serves(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(blob(1))
    make_read_only(monkeypatch)
    monkeypatch.setattr(disk_module.os, "unlink", failing(errno.EROFS))
    monkeypatch.setattr(disk_module.os, "utime", failing(errno.EROFS))
    assert set(bench.index()) == {blob(1).name}
    assert bench.read(blob(1).name) == PAYLOAD
    assert bench.write(blob(2)) is False
    assert len(warnings(caplog)) == 1


def test_a_directory_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    bench = Bench(tmp_path / "file" / "cache")
    assert bench.index() == {}
    assert bench.write(blob()) is False
    assert bench.disk.close(10)
    assert warnings(caplog) and all("E_IO_002" in w for w in warnings(caplog))


def test_no_more_waits_to_be_written_than_is_allowed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "PENDING_MOST", 3 * blob().n_bytes)
    taken = [bench.disk.write(blob(i), lambda is_written: None) for i in range(5)]
    assert taken == [True] * 3 + [False] * 2  # only `poll` reports their end, and it was not called
    assert bench.disk.write(blob(9), lambda is_written: None, is_last=True)
    assert PENDING_MOST > 0


def test_reads_go_before_writes_and_close_waits_for_all(bench: Bench) -> None:
    for seed in range(10):
        bench.disk.write(blob(seed), lambda is_written: None)
    assert bench.disk.close(10)
    assert len(list(bench.folder.iterdir())) == 10
    bench.disk = DiskTier(str(bench.folder), MODEL, bench.clock, lambda: None)
