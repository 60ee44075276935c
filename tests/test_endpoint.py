"""Where clients look for the socket, and who may be listening there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from uma_core import endpoint
from uma_core.types import Peer

ME = os.geteuid()


def test_the_users_own_folder_comes_before_the_one_of_all(tmp_path):
    assert endpoint.places({"XDG_RUNTIME_DIR": str(tmp_path)}) == (f"{tmp_path}/uma.sock", "/tmp/uma.sock")


def test_a_path_that_the_user_gave_is_the_only_one(tmp_path):
    assert endpoint.places({"UMA_SOCK": "/run/uma/s", "XDG_RUNTIME_DIR": str(tmp_path)}) == ("/run/uma/s",)
    assert endpoint.places({"UMA_SOCK": ""}) == ("/tmp/uma.sock",)


@pytest.mark.parametrize("folder", [None, "", "run", "/nowhere", "/dev/null"])
def test_what_is_no_folder_does_not_count(folder):
    assert endpoint.places({} if folder is None else {"XDG_RUNTIME_DIR": folder}) == ("/tmp/uma.sock",)


def test_another_users_folder_does_not_count(tmp_path, monkeypatch):
    """As after `su`, which keeps the other user's variable."""
    monkeypatch.setattr(os, "geteuid", lambda: ME + 1)
    assert endpoint.places({"XDG_RUNTIME_DIR": str(tmp_path)}) == ("/tmp/uma.sock",)


@pytest.fixture
def connection(tmp_path_factory):
    path = tmp_path_factory.mktemp("e") / "s"
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(str(path))
        listening.listen(1)
        client.connect(str(path))
        yield client, path


@pytest.mark.parametrize(
    ("uid", "environ", "expected"),
    [
        (ME, {}, None),
        (0, {}, None),
        (4242, {}, 4242),
        (4242, {"UMA_TRUST_UIDS": "4242"}, None),
        (4242, {"UMA_TRUST_UIDS": "1, 4242,3"}, None),
        (4242, {"UMA_TRUST_UIDS": "42"}, 4242),
    ],
)
def test_own_and_roots_and_named_users_daemons_are_trusted(connection, monkeypatch, uid, environ, expected):
    client, path = connection
    monkeypatch.setattr(endpoint, "peer_of", lambda sock: Peer(uid, uid, 1))
    assert endpoint.stranger(client, str(path), environ) == expected


def test_where_the_kernel_does_not_say_the_owner_of_the_file_decides(connection, monkeypatch):
    client, path = connection
    monkeypatch.setattr(endpoint, "peer_of", lambda sock: Peer())
    assert endpoint.stranger(client, str(path), {}) is None
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert endpoint.stranger(client, str(path), {}) == (None if ME == 0 else ME)


def test_the_kernel_tells_who_listens(connection):
    client, path = connection
    assert endpoint.stranger(client, str(Path(path)), {}) is None


def test_a_list_that_is_none(connection):
    client, path = connection
    with pytest.raises(ValueError):
        endpoint.stranger(client, str(path), {"UMA_TRUST_UIDS": "me"})
