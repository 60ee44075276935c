from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import sys

import pytest

from uma_core.clock import ManualClock
from uma_core.errors import ErrorCode, UmaError
from uma_core.server.io.listener import BACK_OFF_NS, PATH_BYTES, Listener, bind_unix, passed_sockets
from uma_core.server.io.loop import Loop


def refuse(path: str) -> ErrorCode:
    with pytest.raises(UmaError) as caught:
        bind_unix(path, 8)
    return caught.value.error


def test_the_socket_is_the_owners_alone_and_leaves_nothing_behind(socket_path):
    bound = bind_unix(socket_path, 8)
    found = os.stat(socket_path)
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    bound.close()
    bound.close()
    assert os.listdir(os.path.dirname(socket_path)) == []


def test_the_umask_comes_back(socket_path):
    before = os.umask(0o022)
    bound = bind_unix(socket_path, 8)
    assert os.umask(before) == 0o022
    bound.close()


def test_a_second_daemon_is_refused(socket_path):
    bound = bind_unix(socket_path, 8)
    assert refuse(socket_path) is ErrorCode.SOCKET_IN_USE
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(socket_path)
    bound.close()


def test_a_live_socket_without_a_lock_is_not_stolen(socket_path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(socket_path)
        other.listen(1)
        assert refuse(socket_path) is ErrorCode.SOCKET_IN_USE
        clients = []
        while True:  # fill its backlog: the socket is still alive
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            clients.append(client)
            if client.connect_ex(socket_path) == errno.EAGAIN:
                break
        assert refuse(socket_path) is ErrorCode.SOCKET_IN_USE
        for client in clients:
            client.close()
    assert os.path.exists(socket_path)


def test_a_stale_socket_is_replaced(socket_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(socket_path)
    bound = bind_unix(socket_path, 8)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(socket_path)
    bound.close()


def test_what_a_killed_daemon_leaves_is_replaced(socket_path):
    program = (
        f"from uma_core.server.io.listener import PATH_BYTES, bind_unix; b = bind_unix({socket_path!r}, 8); "
        "print(); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
        killed.stdout.readline()
        assert refuse(socket_path) is ErrorCode.SOCKET_IN_USE
        killed.kill()
    bind_unix(socket_path, 8).close()


def test_another_file_is_left_alone(socket_path):
    with open(socket_path, "w") as file:
        file.write("mine")
    assert refuse(socket_path) is ErrorCode.CONFIG_INVALID
    with open(socket_path) as file:
        assert file.read() == "mine"


def test_a_folder_in_which_others_could_replace_the_socket(socket_path):
    folder = os.path.dirname(socket_path)
    os.chmod(folder, 0o777)
    with pytest.raises(
        UmaError, match="could be replaced by another user: every user may write to the folder"
    ) as refusal:
        bind_unix(socket_path, 8)
    assert refusal.value.error is ErrorCode.CONFIG_INVALID
    assert os.listdir(folder) == []
    bind_unix(socket_path, 8, wants_safe_folder=False).close()


@pytest.mark.parametrize("suffix", ["", ".lock"])
def test_another_users_file_at_the_path_is_told_with_its_owner(socket_path, monkeypatch, suffix):
    """Squatters included: in a sticky folder no other user can remove the file."""
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(socket_path + suffix)
    euid = os.geteuid()
    lstat = os.lstat

    def foreign_there(path):
        found = lstat(path)
        return os.stat_result((*found[:4], euid + 4242, *found[5:])) if path == socket_path + suffix else found

    monkeypatch.setattr(os, "lstat", foreign_there)
    with pytest.raises(
        UmaError, match=f"belongs to uid {euid + 4242}: that user's daemon, or someone who wants"
    ) as refusal:
        bind_unix(socket_path, 8)
    assert refusal.value.error is ErrorCode.SOCKET_IN_USE
    assert os.listdir(os.path.dirname(socket_path)) == [os.path.basename(socket_path) + suffix]


def test_a_directory_that_is_not_there():
    with pytest.raises(UmaError, match="a directory that exists") as refusal:
        bind_unix("/nonexistent/uma.sock", 8)
    assert refusal.value.error is ErrorCode.CONFIG_INVALID


def test_a_path_that_is_too_long_names_the_limit_and_leaves_nothing(tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    with pytest.raises(UmaError, match=r"the system allows 10[37]: choose a shorter one"):
        bind_unix(str(folder / "uma.sock"), 8)
    assert list(folder.iterdir()) == []


def test_the_longest_path_that_the_system_takes(tmp_path):
    os.symlink(tmp_path, short := f"/tmp/uma-{os.getpid()}")
    try:
        path = f"{short}/".ljust(PATH_BYTES, "x")
        bind_unix(path, 8).close()
    finally:
        os.unlink(short)


def test_closing_leaves_the_socket_of_a_successor(socket_path):
    bound = bind_unix(socket_path, 8)
    os.unlink(socket_path)
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(socket_path)
        bound.close()
        assert os.path.exists(socket_path)


@pytest.fixture
def listening(socket_path):
    """Return a function that checks the path and counts who has connected by then."""
    loop, accepted = Loop(ManualClock()), []
    listener = Listener(loop, bind_unix(socket_path, 8), accepted.append, lambda sock, can_keep: False)

    def check() -> int:
        listener.check()
        loop.turn(0)
        return len(accepted)

    check.listener = listener
    yield check
    listener.close()
    for sock in accepted:
        sock.close()
    loop.close()


def connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


@pytest.mark.parametrize("removed", [[""], [".lock"], ["", ".lock"]], ids=["socket", "lock", "both"])
def test_a_removed_file_comes_back(socket_path, listening, removed):
    connect(socket_path)
    for suffix in removed:
        os.unlink(socket_path + suffix)
    listening()
    connect(socket_path)
    assert listening() == 2, "who had connected before is served too"
    assert refuse(socket_path) is ErrorCode.SOCKET_IN_USE
    listening.listener.close()
    assert os.listdir(os.path.dirname(socket_path)) == []


def test_a_folder_that_comes_back_gets_its_socket(socket_path, listening, caplog):
    folder = os.path.dirname(socket_path)
    shutil.rmtree(folder)
    listening()
    listening()
    assert [record.message.count("nobody can connect") for record in caplog.records] == [1], "once, not every time"
    os.mkdir(folder, 0o700)
    listening()
    connect(socket_path)
    assert listening() == 1


def test_what_has_taken_the_path_meanwhile_stays(socket_path, listening, caplog):
    for suffix in ("", ".lock"):
        os.unlink(socket_path + suffix)
    other = bind_unix(socket_path, 8)
    listening()
    assert "another daemon" in caplog.text
    connect(socket_path)
    other.sock.accept()[0].close()  # it still gets its clients
    other.close()
    listening()
    connect(socket_path)
    assert listening() == 1


def test_no_sockets_were_passed():
    assert passed_sockets({}, 1) == []
    assert passed_sockets({"LISTEN_PID": "2", "LISTEN_FDS": "1"}, 1) == []


def test_what_was_passed_is_no_unix_socket(monkeypatch):
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1"}
    with socket.socket(socket.AF_INET) as other, open(os.devnull) as file:
        for fd in (other.fileno(), file.fileno(), 987_654):
            monkeypatch.setattr("uma_core.server.io.listener.FIRST_PASSED_FD", fd)
            with pytest.raises(UmaError) as caught:
                passed_sockets(environ, 1)
            assert caught.value.error is ErrorCode.CONFIG_INVALID
        assert other.getsockname()
    with pytest.raises(UmaError):
        passed_sockets({"LISTEN_PID": "1", "LISTEN_FDS": "many"}, 1)


def test_a_passed_connection_is_refused(monkeypatch):
    """As with Accept=yes: the daemon would be ready, and nobody could connect."""
    here, there = socket.socketpair()
    with here, there:
        monkeypatch.setattr("uma_core.server.io.listener.FIRST_PASSED_FD", here.fileno())
        with pytest.raises(UmaError, match="does not listen") as caught:
            passed_sockets({"LISTEN_PID": "1", "LISTEN_FDS": "1"}, 1)
        assert caught.value.error is ErrorCode.CONFIG_INVALID
        assert here.fileno() >= 0


def test_a_passed_socket_is_adopted(socket_path):
    program = (
        "import os, sys; from uma_core.server.io.listener import PATH_BYTES, passed_sockets\n"
        "os.environ['LISTEN_PID'] = str(os.getpid())\n"
        "bound, = passed_sockets(os.environ, os.getpid())\n"
        "bound.sock.setblocking(True); client, _ = bound.sock.accept(); client.send(b'adopted'); bound.close()"
    )
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(socket_path)
        listening.listen(8)

        def pass_it() -> None:
            os.dup2(listening.fileno(), 3)

        env = {**os.environ, "LISTEN_FDS": "1"}
        with (
            subprocess.Popen([sys.executable, "-c", program], preexec_fn=pass_it, pass_fds=(3,), env=env),
            socket.socket(socket.AF_UNIX) as client,
        ):
            client.connect(socket_path)
            assert client.recv(20) == b"adopted"
    assert os.path.exists(socket_path), "its supervisor owns the path"


class Refusing:
    """Stands in for a listening socket whose accept fails."""

    def __init__(self, sock: socket.socket, errors: list[int]) -> None:
        self._sock = sock
        self.errors = errors
        self.n_accepts = 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def accept(self):
        self.n_accepts += 1
        if self.errors:
            raise OSError(self.errors.pop(0), "injected")
        return self._sock.accept()

    def close(self) -> None:
        self._sock.close()


@pytest.fixture
def accepting(socket_path):
    """Return a listener with injected errors on a loop with a manual clock, and one waiting client."""
    clock = ManualClock()
    loop, bound = Loop(clock), bind_unix(socket_path, 8)
    accepted, shed, client = [], [], socket.socket(socket.AF_UNIX)
    kept = []

    def on_shed(sock, can_keep):
        (kept if make.keeps and can_keep else shed).append(sock)
        return make.keeps and can_keep

    def make(errors: list[int]):
        bound.sock = Refusing(bound.sock, errors)
        listener = Listener(loop, bound, accepted.append, on_shed)
        client.connect(socket_path)
        return loop, clock, listener, accepted, shed

    make.keeps, make.kept = False, kept
    yield make
    client.close()
    for sock in accepted + kept:
        sock.close()
    bound.close()
    loop.close()


def test_a_client_that_left_before_accept_is_passed_over(accepting):
    loop, _, listener, accepted, _ = accepting([errno.ECONNABORTED])
    loop.turn(0)
    assert len(accepted) == 1
    listener.close()


@pytest.mark.parametrize("error", [errno.ENOBUFS, errno.ENOMEM, errno.EIO])
def test_errors_that_last_back_off_instead_of_spinning(accepting, error):
    loop, clock, listener, accepted, _ = accepting([error])
    for _ in range(10):
        loop.turn(0)
    assert listener.bound.sock.n_accepts == 1
    clock.advance(BACK_OFF_NS)
    loop.turn(0)
    loop.turn(0)
    assert len(accepted) == 1
    listener.close()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_out_of_descriptors_sheds_the_client_with_the_spare_one(accepting, error):
    loop, _, listener, accepted, shed = accepting([error])
    loop.turn(0)
    assert (len(accepted), len(shed)) == (0, 1)
    listener.close()


def test_out_of_descriptors_an_administrator_gets_the_last_one(accepting, socket_path, monkeypatch):
    accepting.keeps = True
    loop, _, listener, accepted, shed = accepting([errno.EMFILE])
    monkeypatch.setattr(os, "open", refuse_descriptors)  # there are no descriptors to replace the spare ones
    loop.turn(0)
    assert (len(accepted), len(shed), len(accepting.kept)) == (0, 0, 1)
    assert accepting.kept[0].fileno() >= 0
    with socket.socket(socket.AF_UNIX) as second:
        second.connect(socket_path)
        listener.bound.sock.errors = [errno.EMFILE]
        loop.turn(0)
        assert (len(shed), len(accepting.kept)) == (1, 1), "the next one is told, for a descriptor is left for that"
        assert shed[0].fileno() < 0
    monkeypatch.undo()
    listener.close()


def refuse_descriptors(*args, **kwargs):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_out_of_descriptors_even_for_the_spare_one_backs_off(accepting):
    loop, clock, listener, accepted, shed = accepting([errno.EMFILE] * 2)
    for _ in range(10):
        loop.turn(0)
    assert (len(accepted), len(shed), listener.n_back_offs) == (0, 0, 1)
    clock.advance(BACK_OFF_NS)
    loop.turn(0)
    loop.turn(0)
    assert len(accepted) == 1
    listener.close()


def test_a_working_folder_that_was_removed_matters_only_to_relative_paths(socket_path, tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    bind_unix(socket_path, 8).close()
    assert refuse("relative.sock") is ErrorCode.CONFIG_INVALID
