"""The file format: whole files are read back as they were written, and no other file is accepted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.cache import files
from uma_core.cache.files import (
    FIXED_BYTES,
    Damaged,
    Head,
    decode_head,
    encode_head,
    file_name,
    head_bytes,
    header_bytes,
)
from uma_core.clock import ManualClock
from uma_core.engine.fake.engine import FakeEngine, FakeModel

HEAD = Head("0123456789abcdef", 1000, 3, np.array([5, 6, 7, 8, 151_935], np.int32), 42, "ab" * 32)


def decode(data: bytes) -> Head:
    fixed = data[:FIXED_BYTES]
    return decode_head(fixed, data[FIXED_BYTES : FIXED_BYTES + header_bytes(fixed)])


def as_tuple(head: Head) -> tuple[object, ...]:
    return (*head[:3], head.tokens.tolist(), *head[4:])


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50), st.integers(-2, 2**31), st.integers(0, 2**40))
def test_a_head_comes_back_as_it_was(tokens: list[int], tenant: int, n_bytes: int) -> None:
    head = Head("f" * 16, tenant, len(tokens) - 1, np.array(tokens, np.int32), n_bytes, "0" * 64)
    data = encode_head(head)
    assert as_tuple(decode(data + b"payload")) == as_tuple(head)
    assert abs(len(data) - head_bytes(len(tokens))) < 100


@given(st.integers(0, 8 * len(encode_head(HEAD)) - 1))
def test_no_flipped_bit_goes_unseen(bit: int) -> None:
    data = bytearray(encode_head(HEAD))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged):
        decode(bytes(data))


@given(st.integers(0, len(encode_head(HEAD)) - 1))
def test_no_cut_goes_unseen(n: int) -> None:
    with pytest.raises(Damaged, match="truncated"):
        decode(encode_head(HEAD)[:n])


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        decode(data)


def test_another_version_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "VERSION", files.VERSION + 1)
    data = encode_head(HEAD)
    monkeypatch.undo()
    with pytest.raises(Damaged, match="version"):
        decode(data)


def test_a_header_that_is_whole_but_makes_no_sense_is_refused() -> None:
    for head in (HEAD._replace(start=5), HEAD._replace(start=-1)):
        with pytest.raises(Damaged):
            decode(encode_head(head))


def test_names_tell_everything_apart_that_matters() -> None:
    tokens = np.arange(9, dtype=np.int32)
    names = {
        file_name("a" * 16, 1, 0, tokens),
        file_name("b" * 16, 1, 0, tokens),
        file_name("a" * 16, 2, 0, tokens),
        file_name("a" * 16, 1, 4, tokens),
        file_name("a" * 16, 1, 0, tokens[:8]),
    }
    assert len(names) == 5 and all(name.endswith(files.SUFFIX) for name in names)


def test_kv_of_other_kernels_experts_or_positions_is_another_models() -> None:
    info = FakeEngine(FakeModel(), ManualClock()).info
    keys = {
        files.model_key(replace(info, kv_facts=facts)) for facts in ((), ("avx2", 2, 0), ("avx2", 1, 0), ("avx2", 2, 1))
    }
    assert len(keys) == 4 and files.model_key(replace(info, n_threads=7)) == files.model_key(info)
