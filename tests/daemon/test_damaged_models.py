"""A damaged model file is either refused with a code or served. It never causes a signal or a hang."""

from __future__ import annotations

import os
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.daemon.forked import ANSWERED, Nursery
from tests.daemon.support import DRAFT, MOE
from tests.engine.graph.models import HYBRIDS, hybrid, write

N_FILES = 1200 if os.environ.get("UMA_FUZZ") == "full" else 40
LIMIT_BYTES = 4 << 30  # limit of private memory: an absurd count may ask for more memory than the machine has
REFUSALS = {"E_MODEL_002", "E_MODEL_004", "E_CONFIG_001"}
ENDS = {*ANSWERED, "E_LIMIT_001", "E_RUNTIME_003"}  # weights of noise give logits that are not numbers
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # by gguf_type
STRING, ARRAY = 8, 9
ABSURD = (
    *(0, 1, 2, 3, 7, 8, 26, 127, 128, 255, 32767, 65535, 1 << 20, 1 << 40),
    *((1 << n) + d for n in (31, 32, 63) for d in (-1, 0)),
    (1 << 64) - 1,
)


class Field(NamedTuple):
    """A part of the header. `weight`: how often it is hit; words of the vocabulary count less, because they are many
    and alike.
    """

    name: str
    at: int
    size: int
    weight: float


class Sound(NamedTuple):
    """An undamaged model."""

    data: bytes
    fields: list[Field]
    n_header: int


def read(path: Path) -> Sound:
    """Read the header, as the GGUF specification describes it (docs/gguf.md of ggml)."""
    data, fields = (
        path.read_bytes(),
        [Field("magic", 0, 4, 3), Field("version", 4, 4, 3), Field("tensors", 8, 8, 3), Field("keys", 16, 8, 3)],
    )
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)

    def number(at: int, size: int, name: str, weight: float = 1.0) -> tuple[int, int]:
        fields.append(Field(name, at, size, weight))
        return int.from_bytes(data[at : at + size], "little"), at + size

    def string(at: int, name: str, weight: float = 1.0) -> int:
        n, at = number(at, 8, f"length of {name}", weight)
        fields.append(Field(name, at, n, weight / 3))
        return at + n

    def value(at: int, kind: int) -> int:
        if kind == STRING:
            return string(at, "text")
        if kind != ARRAY:
            return number(at, SCALAR_BYTES[kind], "value")[1]
        kind, at = number(at, 4, "type of a list")
        n, at = number(at, 8, "length of a list")
        if kind != STRING:
            fields.append(Field("list", at, n * SCALAR_BYTES[kind], 1.0))
            return at + n * SCALAR_BYTES[kind]
        for _ in range(n):
            at = string(at, "word", 0.002)
        return at

    at = 24
    for _ in range(n_keys):
        at = string(at, "key")
        kind, at = number(at, 4, "type")
        at = value(at, kind)
    for _ in range(n_tensors):
        at = string(at, "tensor's name")
        n_dims, at = number(at, 4, "dimensions")
        for _ in range(n_dims):
            at = number(at, 8, "dimension")[1]
        at = number(at, 4, "tensor's type")[1]
        at = number(at, 8, "offset")[1]
    return Sound(data, fields, at)


def damage(rng: random.Random, sound: Sound) -> tuple[bytes, str]:
    """Return the file with one thing wrong, and a description of the damage."""
    data = bytearray(sound.data)
    kind = rng.randrange(7)
    if kind == 0:
        at = rng.choice(
            (
                rng.randrange(64),
                rng.randrange(sound.n_header),
                rng.randrange(len(data)),
                len(data) - rng.randrange(1, 40),
            )
        )
        return bytes(data[:at]), f"cut at {at}"
    if kind == 1:
        places = [rng.randrange(sound.n_header) for _ in range(rng.randrange(1, 9))]
        for at in places:
            data[at] = rng.randrange(256)
        return bytes(data), f"bytes {places} changed"
    if kind == 2:
        begin = rng.randrange(sound.n_header, len(data))
        end = min(len(data), begin + rng.randrange(1, 100_000))
        fill = rng.choice((b"\0", b"\xff", b"\x7f", b""))
        data[begin:end] = fill * (end - begin) or rng.randbytes(end - begin)
        return bytes(data), f"weights {begin} to {end} are {fill!r}"
    changes = [
        _change(rng, data, field)
        for field in rng.choices(sound.fields, [f.weight for f in sound.fields], k=rng.choice((1, 1, 1, 2, 3)))
    ]
    return bytes(data), "; ".join(changes)


def _change(rng: random.Random, data: bytearray, field: Field) -> str:
    if field.size not in (1, 2, 4, 8):
        at = field.at + rng.randrange(max(1, field.size))
        data[at] = rng.randrange(256)
        return f"byte {at} of a {field.name}"
    place = slice(field.at, field.at + field.size)
    old, n_bits = int.from_bytes(data[place], "little"), 8 * field.size
    new = rng.choice(
        (
            rng.choice(ABSURD),
            old + 1,
            old - 1,
            2 * old,
            old // 2,
            old ^ 1 << rng.randrange(n_bits),
            rng.getrandbits(n_bits),
        )
    ) % (1 << n_bits)
    data[place] = new.to_bytes(field.size, "little")
    return f"{field.name} at {field.at}: {old} became {new}"


@pytest.fixture(scope="module")
def sound_models(tmp_path_factory: pytest.TempPathFactory) -> list[Sound]:
    return [read(DRAFT), read(MOE)]


def served(daemons: Nursery, path: Path, engine: str) -> None:
    flags = {
        "--engine": engine,
        "--n-ctx": 1024,
        "--calibrate": "off",
        "--threads": 1,
        "--n-batch": 64,
        "--prefill-lanes": 1,
    }
    outcome = daemons.run(path, flags, LIMIT_BYTES)
    assert outcome.is_sound, outcome
    assert not outcome.code or outcome.code in REFUSALS, outcome
    assert set(outcome.reasons) <= ENDS, outcome


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(N_FILES))
def test_a_damaged_file_is_refused_or_served(
    daemons: Nursery, sound_models: list[Sound], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    data, what = damage(rng, rng.choice(sound_models))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    try:
        served(daemons, path, rng.choice(("auto", "llama", "graph")))
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
    finally:
        path.unlink()


def test_a_word_twice_in_the_vocabulary(daemons: Nursery, sound_models: list[Sound], tmp_path: Path) -> None:
    """llama.cpp asserts that no word occurs twice."""
    sound = sound_models[0]
    first, second = [f for f in sound.fields if f.name == "word" and f.size == 3][:2]
    data = bytearray(sound.data)
    data[second.at : second.at + 3] = data[first.at : first.at + 3]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    outcome = daemons.run(path, {"--engine": "llama", "--n-ctx": 512})
    assert (outcome.status, outcome.code) == (1, "E_MODEL_002"), outcome


@pytest.mark.parametrize("engine", ["llama", "graph"])
def test_more_experts_used_than_there_are(
    daemons: Nursery, sound_models: list[Sound], tmp_path: Path, engine: str
) -> None:
    sound = sound_models[1]
    key = sound.data.index(b"expert_used_count") + len(b"expert_used_count")
    data = bytearray(sound.data)
    data[key + 4 : key + 8] = struct.pack("<I", 128)
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    outcome = daemons.run(path, {"--engine": engine, "--n-ctx": 512})
    assert outcome.status == 1 and outcome.code in REFUSALS, outcome


def test_a_hybrid_without_recurrent_layers(daemons: Nursery, tmp_path: Path) -> None:
    """llama.cpp asserts, at the first call, that a layer reads the states."""
    model, names = HYBRIDS["lfm2"]
    alike = hybrid(replace(model, kinds=((2, 32),)), "aaa", names)
    outcome = daemons.run(Path(write(alike, tmp_path / "damaged.gguf")), {"--engine": "llama", "--n-ctx": 512})
    assert (outcome.status, outcome.code) == (1, "E_MODEL_002"), outcome


@pytest.mark.parametrize("engine", ["llama", "graph"])
@pytest.mark.parametrize("name", [b"blk.0.ffn_down.weight", b"output_norm.weight", b"token_embd.weight"])
def test_a_name_that_is_no_text(
    daemons: Nursery, sound_models: list[Sound], tmp_path: Path, engine: str, name: bytes
) -> None:
    sound = sound_models[0]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(sound.data.replace(name, b"\xff" + name[1:], 1))
    outcome = daemons.run(path, {"--engine": engine, "--n-ctx": 512})
    assert outcome.status == 1 and outcome.code in REFUSALS, outcome
