"""TLS: certificates, and handshakes that do not come."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess

import pytest

from tests.daemon.support import WAIT_S
from tests.gateway.support import Answer, GatewayProcess, Raw
from tests.tools import need

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def test_tls_by_files(serve, before, folder):
    cert, key = certificate(folder, "a")
    gateway = before(serve(), "--tls-cert", str(cert), "--tls-key", str(key))
    context = ssl.create_default_context(cafile=str(cert))
    with (
        socket.create_connection(("127.0.0.1", gateway.port), WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        data = b""
        while chunk := sock.recv(4096):
            data += chunk
    assert Answer(data).status == 200


@pytest.mark.parametrize("wrong", ["missing", "no certificate", "another key", "a pipe", "endless"])
def test_a_certificate_that_is_none_ends_the_start_with_a_reason(folder, wrong):
    cert, key = certificate(folder, "a")
    other = certificate(folder, "b")[1]
    os.mkfifo(folder / "pipe")
    (folder / "sparse").touch()
    os.truncate(folder / "sparse", 1 << 40)
    cert, key = {
        "missing": (folder / "none", key),
        "no certificate": (key, key),
        "another key": (cert, other),
        "a pipe": (cert, folder / "pipe"),
        "endless": (folder / "sparse", key),
    }[wrong]
    gateway = GatewayProcess(folder, str(folder / "s"), "--tls-cert", str(cert), "--tls-key", str(key))
    assert gateway.wait() == 1
    assert "E_CONFIG_001" in gateway.log and "serve.tls_cert" in gateway.log and len(gateway.log.splitlines()) == 1


def certificate(folder, name):
    (openssl,) = need("openssl")
    cert, key = folder / f"{name}.cert", folder / f"{name}.key"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", str(key), "-out", str(cert))
    subprocess.run(
        [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            *files,
            "-days",
            "1",
            *subject,
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def shown(port):
    """Return the certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=WAIT_S)


def test_a_new_certificate_is_read_at_a_hup_and_a_wrong_one_changes_nothing(before, folder):
    cert, key = certificate(folder, "a")
    gateway = before(str(folder / "s"), "--tls-cert", str(cert), "--tls-key", str(key))
    first = shown(gateway.port)
    certificate(folder, "a")
    gateway.signal(signal.SIGHUP)
    gateway.logs("the TLS certificate was read again")
    second = shown(gateway.port)
    assert first != second
    cert.write_text("nothing")
    gateway.signal(signal.SIGHUP)
    gateway.logs("the TLS certificate stays as it is")
    assert shown(gateway.port) == second


def test_a_pipe_in_place_of_the_key_freezes_nobody(before, folder):
    cert, key = certificate(folder, "a")
    gateway = before(str(folder / "s"), "--tls-cert", str(cert), "--tls-key", str(key))
    first = shown(gateway.port)
    key.unlink()
    os.mkfifo(key)
    gateway.signal(signal.SIGHUP)
    gateway.logs("the TLS certificate stays as it is")
    gateway.logs("not a regular file")
    assert shown(gateway.port) == first


def test_a_new_certificate_whose_key_is_not_there_yet_changes_nothing(before, folder):
    """A renewal writes two files, one after the other."""
    cert, key = certificate(folder, "a")
    gateway = before(str(folder / "s"), "--tls-cert", str(cert), "--tls-key", str(key))
    first = shown(gateway.port)
    new_cert, new_key_file = certificate(folder, "b")
    cert.write_bytes(new_cert.read_bytes())
    gateway.signal(signal.SIGHUP)
    gateway.logs("the TLS certificate stays as it is")
    assert shown(gateway.port) == first
    key.write_bytes(new_key_file.read_bytes())
    gateway.signal(signal.SIGHUP)
    gateway.logs("the TLS certificate was read again")
    assert shown(gateway.port) == new_cert.read_text()


def test_a_tls_handshake_that_does_not_come_is_not_waited_for(before, folder):
    cert, key = certificate(folder, "a")
    gateway = before(str(folder / "s"), "--tls-cert", str(cert), "--tls-key", str(key), "--header-timeout-s", "0.3")
    for start in (b"", b"\x16\x03\x01\x02\x00\x01"):
        with Raw(gateway.port) as raw:
            raw.sock.sendall(start)
            raw.sock.settimeout(WAIT_S / 4)  # less than any usual timeout
            assert raw.rest() == b""
