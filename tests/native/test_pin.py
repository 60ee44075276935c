from __future__ import annotations

import pytest

from bindings.generate import BACKEND_HEADERS, CORE_HEADERS
from native.pin import BuildError, load_pin, parse_pin

GOOD = """
# a comment
package = p
version = 1
sha256 = s
source_sha256 = t
source_root = r
commit = 0123456789abcdef
llama_version = 1
ggml_version = 2
header include/llama.h = a
header ggml/src/ggml-impl.h = b
flag all X = ON
flag cuda X = OFF
flag cuda Y = a=b
"""


def test_reads_plain_values_headers_and_flags() -> None:
    pin = parse_pin(GOOD)
    assert (pin.package, pin.short_commit) == ("p", "012345678")
    assert pin.public_headers == {"llama.h": "a"}
    assert pin.inner_headers == {"ggml-impl.h": "b"}


def test_backend_flags_override_the_common_ones() -> None:
    pin = parse_pin(GOOD)
    assert pin.flags_for("cpu") == {"X": "ON"}
    assert pin.flags_for("cuda") == {"X": "OFF", "Y": "a=b"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "expected `key = value`"),
        ("colour = red", "unknown key"),
        ("version = 2", "set twice"),
        ("header include/llama.h = c", "set twice"),
        ("version =", "expected `key = value`"),
    ],
)
def test_refuses_a_bad_line_and_names_its_number(line: str, words: str) -> None:
    with pytest.raises(BuildError, match=words) as caught:
        parse_pin(GOOD + line + "\n")
    assert f"line {len(GOOD.splitlines()) + 1}" in str(caught.value)


def test_refuses_a_file_without_a_required_key() -> None:
    with pytest.raises(BuildError, match="lacks commit"):
        parse_pin(GOOD.replace("commit = 0123456789abcdef", ""))


def test_the_real_pin_hashes_every_header_that_the_bindings_read() -> None:
    pin = load_pin()
    assert {*CORE_HEADERS, *BACKEND_HEADERS.values()} <= set(pin.public_headers)
    assert all(len(value) == 64 for value in [pin.sha256, *pin.headers.values()])
    assert len(pin.commit) == 40
