"""The listening socket: binds without taking over a live socket, and accepts without ever spinning.

A lock file lies beside the socket. The process that holds its lock owns the path; if the socket file then refuses
connections, a dead daemon left it behind, and it is replaced. A socket file that somebody removes is created again.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import stat
import sys
from collections.abc import Callable, Mapping

from uma_core.errors import ErrorCode, UmaError
from uma_core.server.io.folders import user_name, weakness
from uma_core.server.io.loop import READ, Loop

log = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 64  # then the loop serves its clients
N_SPARE = 2  # spare descriptors: one to tell clients that there is no room, one for an administrator
BACK_OFF_NS = 100_000_000  # while the system is out of descriptors or memory
PATH_BYTES = (104 if sys.platform == "darwin" else 108) - 1
FIRST_PASSED_FD = 3  # sd_listen_fds(3)
_ADVICE = "; the socket needs a directory that exists and that the daemon may write to (--socket, UMA_SOCK)"
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_NO_MEMORY = (errno.ENOBUFS, errno.ENOMEM)


def bind_unix(path: str, backlog: int, wants_safe_folder: bool = True) -> BoundSocket:
    """Bind a 0600 socket at `path`.

    Raises: SOCKET_IN_USE; CONFIG_INVALID, also for a path where other users could replace the socket.
    """
    _check_length(path)
    if wants_safe_folder:
        _check_folder(path)
    lock_fd = _lock(path)
    try:
        _remove_stale(path)
        sock = _bind(path, backlog)
    except BaseException:
        os.unlink(path + ".lock")  # ours as long as we hold the lock
        os.close(lock_fd)
        raise
    return BoundSocket(sock, path, lock_fd, backlog, wants_safe_folder)


def _check_folder(path: str) -> None:
    """Raises: CONFIG_INVALID."""
    reason = weakness(path, os.geteuid())
    if reason:
        text = f"{path} could be replaced by another user: {reason}. Choose another path (--socket, UMA_SOCK)"
        raise UmaError(ErrorCode.CONFIG_INVALID, text)


def _check_length(path: str) -> None:
    """Check before anything is created, because the system's own error does not name the limit.

    Source: sun_path in unix(7), <sys/un.h>.
    """
    n_bytes = len(os.fsencode(path))
    if n_bytes > PATH_BYTES:
        text = (
            f"the socket path has {n_bytes} bytes, the system allows {PATH_BYTES}: choose a shorter one "
            "(--socket, UMA_SOCK)"
        )
        raise UmaError(ErrorCode.CONFIG_INVALID, text)


class BoundSocket:
    """A listening socket and its path (empty if it has none), and, if we bound it, the lock that `close` releases."""

    def __init__(
        self,
        sock: socket.socket,
        path: str = "",
        lock_fd: int = -1,
        backlog: int = 0,
        wants_safe_folder: bool = True,
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.path = path
        self._lock_fd = lock_fd
        self._backlog = backlog
        self._wants_safe_folder = wants_safe_folder
        self._identity = _identity(path) if path else None

    @property
    def is_lost(self) -> bool:
        """Whether the file that we created at the path is no longer there, so that nobody can connect."""
        return self._lock_fd >= 0 and _identity(self.path) != self._identity

    def rebind(self) -> socket.socket:
        """Listen at the path with a new socket. Returns the old one.

        Raises: what `bind_unix` raises, OSError; the old socket then stays.
        """
        if self._wants_safe_folder:
            _check_folder(self.path)
        if _identity(self.path + ".lock") != _identity(self._lock_fd):  # removed as well
            old_fd, self._lock_fd = self._lock_fd, _lock(self.path)
            os.close(old_fd)
        _remove_stale(self.path)
        old, self.sock = self.sock, _bind(self.path, self._backlog)
        self.sock.setblocking(False)
        self._identity = _identity(self.path)
        return old

    def close(self) -> None:
        """Stop listening. Idempotent. The path is removed only if it is still our socket."""
        self.sock.close()
        if self._lock_fd < 0:
            return
        if self._identity is not None and _identity(self.path) == self._identity:
            os.unlink(self.path)
        if _identity(self.path + ".lock") == _identity(self._lock_fd):
            os.unlink(self.path + ".lock")
        os.close(self._lock_fd)
        self._lock_fd = -1


def passed_sockets(environ: Mapping[str, str], pid: int) -> list[BoundSocket]:
    """Adopt the listening sockets that a supervisor passed. Raises: CONFIG_INVALID. Source: sd_listen_fds(3)."""
    if environ.get("LISTEN_PID") != str(pid):
        return []
    n_fds = environ.get("LISTEN_FDS", "")
    if not n_fds.isdecimal():
        raise UmaError(ErrorCode.CONFIG_INVALID, f"LISTEN_FDS is {n_fds!r}, not a number")
    return [_adopt(fd) for fd in range(FIRST_PASSED_FD, FIRST_PASSED_FD + int(n_fds))]


def _adopt(fd: int) -> BoundSocket:
    """Adopt a passed descriptor. Only Unix sockets are accepted: for others the kernel does not tell who connects."""
    try:
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise UmaError(ErrorCode.CONFIG_INVALID, f"descriptor {fd} is not a socket: {error.strerror}") from error
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
        sock.detach()
        raise UmaError(ErrorCode.CONFIG_INVALID, f"descriptor {fd} is not a Unix stream socket")
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.detach()
        text = f"descriptor {fd} is a socket that does not listen: a socket unit must not have Accept=yes"
        raise UmaError(ErrorCode.CONFIG_INVALID, text)
    name = sock.getsockname()
    return BoundSocket(sock, name if isinstance(name, str) else "")  # bytes: an abstract name


def _lock(path: str) -> int:
    """Lock the lock file, and check that its name still refers to it: its last owner may just have removed it."""
    name = path + ".lock"
    while True:
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            _check_owner(name)
            raise UmaError(ErrorCode.CONFIG_INVALID, f"cannot create {name}: {error.strerror}{_ADVICE}") from error
        try:
            _check_owner(name, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if not isinstance(error, BlockingIOError):  # a file system without locks
                raise UmaError(ErrorCode.CONFIG_INVALID, f"cannot lock {name}: {error.strerror}{_ADVICE}") from error
            raise _in_use(path, "serves") from None
        except UmaError:
            os.close(fd)
            raise
        if _identity(name) == _identity(fd):
            return fd
        os.close(fd)


def _in_use(path: str, how: str) -> UmaError:
    text = f"another daemon {how} {path}: stop it, or choose another path (--socket, UMA_SOCK)"
    return UmaError(ErrorCode.SOCKET_IN_USE, text, path=path)


def _identity(file: str | int) -> tuple[int, int] | None:
    try:
        found = os.stat(file, follow_symlinks=False) if isinstance(file, str) else os.fstat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_owner(name: str, fd: int = -1) -> None:
    """Raises: SOCKET_IN_USE if the file is another user's. Root's counts too: that daemon may serve everybody."""
    try:
        uid = (os.fstat(fd) if fd >= 0 else os.lstat(name)).st_uid
    except OSError:
        return
    if uid != os.geteuid():
        what = f"{name} belongs to {user_name(uid)}: that user's daemon, or someone who wants clients' prompts"
        raise UmaError(ErrorCode.SOCKET_IN_USE, f"{what}; choose another path (--socket, UMA_SOCK)", path=name)


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
        _check_owner(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UmaError(ErrorCode.CONFIG_INVALID, f"cannot use {path}: {error.strerror}{_ADVICE}") from error
    if not stat.S_ISSOCK(mode):
        text = f"{path} exists and is not a socket: remove it, or choose another path (--socket, UMA_SOCK)"
        raise UmaError(ErrorCode.CONFIG_INVALID, text)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        outcome = probe.connect_ex(path)
    if outcome == errno.ENOENT:
        return  # its daemon has just removed it
    if outcome != errno.ECONNREFUSED:  # 0, or EAGAIN: a live daemon with a full backlog; other errors may mean one too
        how = errno.errorcode.get(outcome, "connected")
        raise _in_use(path, f"answers ({how}) on")
    log.info("replacing the stale socket %s", path)
    os.unlink(path)


def _bind(path: str, backlog: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old_umask = os.umask(0o177)  # the file must never be open to others, not even before chmod
    try:
        sock.bind(path)
        os.chmod(path, 0o600)
        sock.listen(backlog)
    except OSError as error:  # the directory is missing or not writable
        sock.close()
        raise UmaError(
            ErrorCode.CONFIG_INVALID, f"cannot listen on {path}: {error.strerror or error}{_ADVICE}"
        ) from error
    finally:
        os.umask(old_umask)
    return sock


class Listener:
    """Accepts connections. `on_accept` gets non-blocking sockets.

    `on_shed` gets those for which no descriptor is left, and whether one could still be kept. It returns True to keep
    this one.
    """

    def __init__(
        self,
        loop: Loop,
        bound: BoundSocket,
        on_accept: Callable[[socket.socket], None],
        on_shed: Callable[[socket.socket, bool], bool],
    ) -> None:
        self.bound = bound
        self.n_back_offs = 0
        self._loop = loop
        self._on_accept = on_accept
        self._on_shed = on_shed
        self._spare_fds: list[int] = []
        self._restore_spares()
        self._is_open = True
        self._trouble = ""  # why the path could not be bound again
        self._resume()

    def _resume(self) -> None:
        if self._is_open:
            self._loop.watch(self.bound.sock, READ, self._on_readable)

    def check(self) -> None:
        """Create the socket's file again if somebody removed it. Call it regularly: that raises no event."""
        if not self._is_open or not self.bound.is_lost:
            return
        self._on_readable(READ)  # those who connected before
        try:
            old = self.bound.rebind()
        except (UmaError, OSError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.error("%s was removed and nobody can connect: %s; trying again", self.bound.path, error)
            return
        self._loop.watch(old, 0, self._on_readable)
        old.close()
        self._trouble = ""
        log.warning("%s was removed and is created again", self.bound.path)
        self._resume()

    def _on_readable(self, events: int) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = self.bound.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in (errno.ECONNABORTED, errno.EPROTO):
                    continue  # the client left before it was accepted
                if error.errno not in _NO_DESCRIPTORS or not self._shed():
                    self._back_off(error)
                return
            sock.setblocking(False)
            self._on_accept(sock)

    def _shed(self) -> bool:
        """Accept with a spare descriptor, because there are no others, so that the client is told instead of left
        hanging. False: no spare is left.
        """
        self._restore_spares()
        if not self._spare_fds:
            return False
        os.close(self._spare_fds.pop())
        try:
            sock, _ = self.bound.sock.accept()
        except BlockingIOError:  # no client waits: Linux needs a free descriptor even to find that out
            return self._restore_spares()
        except OSError:
            self._restore_spares()
            return False
        sock.setblocking(False)
        if not self._on_shed(sock, len(self._spare_fds) > 0):
            sock.close()
        return self._restore_spares()

    def _restore_spares(self) -> bool:
        """Reopen the spare descriptors. False: there is none."""
        try:
            while len(self._spare_fds) < N_SPARE:
                self._spare_fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            log.debug("%d spare descriptors: %s", len(self._spare_fds), error)
        return bool(self._spare_fds)

    def _back_off(self, error: OSError) -> None:
        """Stop listening for a while: a pending connection that cannot be accepted would make the loop spin."""
        expected = error.errno in _NO_DESCRIPTORS + _NO_MEMORY
        log.log(logging.WARNING if expected else logging.ERROR, "cannot accept: %s; trying again soon", error)
        self.n_back_offs += 1
        self._loop.watch(self.bound.sock, 0, self._on_readable)
        self._loop.call_later(BACK_OFF_NS, self._resume)

    def close(self) -> None:
        """Stop accepting. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.watch(self.bound.sock, 0, self._on_readable)
        self.bound.close()
        while self._spare_fds:
            os.close(self._spare_fds.pop())
