"""Keys, their rates, and reading the key file again; the clock is the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from uma_core.errors import UmaError
from uma_gateway.errors import GatewayError
from uma_gateway.keys import Caller, Key, Keys, entry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def asked(caller: Caller) -> bool:
    """Whether a request is let in."""
    try:
        caller.enter()
    except GatewayError:
        return False
    caller.leave()
    return True


def test_a_rate_below_one_lets_a_request_in_now_and_then():
    clock = Clock()
    caller = Caller(Key("a", b"", rate=0.5), clock)
    assert asked(caller) and not asked(caller)
    assert caller.rate_headers()[2] == (b"x-ratelimit-reset-requests", b"120.000s")
    clock.now = 119.0
    assert not asked(caller)
    clock.now = 121.0
    assert asked(caller) and not asked(caller)
    clock.now = 10_000.0
    assert asked(caller) and not asked(caller), "what nobody asked is not saved up"


def test_a_wrong_file_changes_nothing_of_the_entries_before_the_mistake_either(tmp_path: Path):
    path = tmp_path / "keys.yaml"
    path.write_text(entry("alice", "old"))
    keys = Keys(str(path), "")
    changed = entry("alice", "new") + "  admin: true\n"
    path.write_text(changed + entry("bob", "b") + entry("bob", "c"))
    with pytest.raises(UmaError, match="appears twice"):
        keys.reload()
    alice = keys.find("old")
    assert alice is not None and not alice.key.is_admin
    assert keys.find("new") is None and keys.find("b") is None
    path.write_text(changed)
    assert keys.reload() == 1
    assert keys.find("old") is None and keys.find("new") is alice and alice.key.is_admin


@pytest.mark.parametrize(
    "name", ["alice", "a b", "12", "no", "a: b", "# a", "- a", "&a", "'a", '"a" \\n', " a ", "Ä{€}"]
)
def test_the_entry_of_a_new_key_is_read_back_as_it_was_named(tmp_path: Path, name: str):
    path = tmp_path / "keys.yaml"
    path.write_text(entry(name, "secret"))
    found = Keys(str(path), "").find("secret")
    assert found is not None and found.account == name


@pytest.mark.parametrize("name", ["", "a" * 65, "a\nb", "a\tb"])
def test_a_name_that_the_file_may_not_have_gets_no_key(name: str):
    with pytest.raises(UmaError, match="1 to 64 printable characters"):
        entry(name, "secret")


def test_the_hash_of_no_key_is_refused(tmp_path: Path):
    """Requests without a key had this one's account, and its rights."""
    path = tmp_path / "keys.yaml"
    path.write_text(entry("alice", "") + "  admin: true\n")
    with pytest.raises(UmaError, match="alice: hash is that of an empty key"):
        Keys(str(path), "")


@pytest.mark.parametrize("value", ["0.5", "1.5", "-1", ".nan", "true", "many"])
def test_requests_in_flight_are_whole(tmp_path: Path, value: str):
    path = tmp_path / "keys.yaml"
    path.write_text(entry("alice", "a") + f"  max_in_flight: {value}\n")
    with pytest.raises(UmaError, match="max_in_flight must be"):
        Keys(str(path), "")


def test_a_rate_that_is_next_to_nothing_is_refused(tmp_path: Path):
    path = tmp_path / "keys.yaml"
    path.write_text(entry("alice", "a") + "  rate: 1.0e-310\n")
    with pytest.raises(UmaError, match="rate must be at least 1e-06"):
        Keys(str(path), "")
