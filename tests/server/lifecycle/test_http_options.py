"""What would end the gateway each time is found before it is started."""

from __future__ import annotations

import socket

import pytest

from uma_core.config.options import HttpOptions
from uma_core.errors import ErrorCode, UmaError
from uma_core.server.lifecycle import http_options


def test_a_gateway_that_is_not_wanted_is_not_checked() -> None:
    http_options.check_http(HttpOptions(port=0, host="no such host", config="/dev/fd/9"))


def test_flags_are_the_gateway_s() -> None:
    options = HttpOptions(host="::1", port=80, config="/a b")
    assert http_options.flags(options) == ["--config", "/a b", "--host", "::1", "--port", "80"]
    assert http_options.flags(HttpOptions(host="h", port=1)) == ["--host", "h", "--port", "1"]


@pytest.mark.parametrize("path", ["/dev/fd/63", "/dev/stdin", "/proc/self/fd/3", "/dev/../dev/fd/3"])
def test_a_descriptor_of_the_daemon_is_no_file_of_the_gateway(path: str) -> None:
    pytest.importorskip("uvicorn")
    with pytest.raises(UmaError, match="give the path of a file") as caught:
        http_options.check_http_options(HttpOptions(port=80, config=path))
    assert caught.value.detail["option"] == "http.config"


def test_a_port_that_is_taken_is_told_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UmaError, match=f"127.0.0.1, port {port}: .*choose another port") as caught:
            http_options._check_address(HttpOptions(host="127.0.0.1", port=port), 0.0)
    assert caught.value.error is ErrorCode.CONFIG_INVALID and caught.value.detail["option"] == "http.port"
    http_options._check_address(HttpOptions(host="127.0.0.1", port=port), 0.0)
