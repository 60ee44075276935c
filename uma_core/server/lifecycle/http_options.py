"""The options of the HTTP gateway, as the daemon sees them: its flags, and a check before it is started."""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import socket
import subprocess
import time

from uma_core.config.load import GATEWAY_PREFIX
from uma_core.config.options import HttpOptions
from uma_core.errors import ErrorCode, UmaError
from uma_core.own_python import python_command

log = logging.getLogger(__name__)

MAIN = "from uma_gateway.cli import main; sys.exit(main())"  # the gateway, in a process of its own
OF_THIS_PROCESS = ("/dev/fd/", "/dev/std", "/proc/self/")  # paths that mean something else in the gateway
CHECK_S = 20.0  # for the gateway to check its options, which normally takes a fraction of a second


def check_http(options: HttpOptions, retry_s: float = 0.0) -> None:
    """Check, before the gateway is started, what would end it each time: its options and its address.

    Blocks: reads its file, has the gateway check its options, looks up a name. Raises: CONFIG_INVALID.
    """
    check_http_options(options)
    _check_address(options, retry_s)


def check_http_options(options: HttpOptions) -> None:
    """Check that the gateway is installed and its options and file are valid. Blocks. Raises: CONFIG_INVALID."""
    if not options.port:
        return
    if importlib.util.find_spec("uvicorn") is None:
        message = "the HTTP gateway is not installed: pip install '.[http]' in the source tree"
        raise UmaError(ErrorCode.CONFIG_INVALID, message, option="http.port")
    _refuse_descriptor(options.config)
    if options != HttpOptions(port=options.port) or any(name.startswith(GATEWAY_PREFIX) for name in os.environ):
        _check_values(options)


def _refuse_descriptor(path: str) -> None:
    """Refuse the path that a shell makes of `<(command)`. Raises: CONFIG_INVALID."""
    path = os.path.abspath(path)
    if path.startswith(OF_THIS_PROCESS):
        message = f"{path} is a descriptor of the daemon, which the gateway does not have: give the path of a file"
        raise UmaError(ErrorCode.CONFIG_INVALID, message, option="http.config")


def _check_values(options: HttpOptions) -> None:
    """Have the gateway check its options in its own process: the daemon does not know them.

    Raises: CONFIG_INVALID, in the gateway's words. A check that cannot run refuses nothing.
    """
    command = [*python_command(MAIN), "serve", "--check-config", *flags(options)]
    try:
        checked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("the HTTP gateway's options were not checked: %s", error)
        return
    text = checked.stderr.decode(errors="replace")
    _, mark, message = text.partition(f"{ErrorCode.CONFIG_INVALID.spec.name}: ")
    if checked.returncode and mark:
        message = f"the HTTP gateway: {' '.join(message.split())}"
        for option in ("host", "port"):  # the daemon has no such flags
            message = message.replace(f"(flag --{option})", f"(http.{option})")
        raise UmaError(ErrorCode.CONFIG_INVALID, message)


def flags(options: HttpOptions) -> list[str]:
    """Return the gateway's flags for these options."""
    config = ("--config", options.config) if options.config else ()
    return [*config, "--host", options.host, "--port", str(options.port)]


def _check_address(options: HttpOptions, retry_s: float) -> None:
    """Check that the gateway can listen. Retries for `retry_s`: a killed daemon's gateway may still hold the port.

    Blocks for a name lookup. Raises: CONFIG_INVALID.
    """
    deadline = time.monotonic() + retry_s
    while options.port:
        try:
            _listen_once(options)
            return
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                message = f"nothing can listen on {options.host}, port {options.port}: {error.strerror}"
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    message += "; choose another port (--http, UMA_HTTP)"
                raise UmaError(ErrorCode.CONFIG_INVALID, message, option="http.port") from error
        time.sleep(0.1)


def _listen_once(options: HttpOptions) -> None:
    """Raises: OSError."""
    family, kind, number, _, address = socket.getaddrinfo(
        options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, number) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the gateway does
        tried.bind(address)
        tried.listen()
