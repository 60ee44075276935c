"""LoRA adapters of a model: their files are read and checked here, before an engine loads them.

A file holds pairs of low-rank matrices: with A (n_in, rank) and B (rank, n_out), a product W x becomes
W x + scale * alpha / rank * B (A x) (Hu et al., arXiv:2106.09685). For the token embedding, A has one row of `rank`
numbers per token. llama.cpp checks less: a file that passes its check but does not fit would end the process while a
graph is built.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import NamedTuple

from uma_core.config.options import EngineOptions
from uma_core.engine.api import Adapter
from uma_core.engine.fingerprint import fingerprint
from uma_core.engine.header import Header, TensorPlace, is_of_weights
from uma_core.engine.lib import lib, text
from uma_core.errors import ErrorCode, UmaError

EMBEDDING = "token_embd.weight"
ACTIVATED = "adapter.alora.invocation_tokens"


class Pair(NamedTuple):
    """The two matrices for one tensor of the model."""

    a: TensorPlace
    b: TensorPlace

    @property
    def rank(self) -> int:
        return self.b.ne[0]


class AdapterFile:
    """Owns the file's header."""

    def __init__(self, name: str, path: str, scale: float) -> None:
        """Raises: ADAPTER_LOAD_FAILED."""
        self.name = name
        self.n_unused = 0  # unused vectors of norms: llama.cpp does not apply them either
        try:
            self.header = Header(path)
        except UmaError as error:
            raise self._refusal(error.message) from error
        try:
            n_bytes = sum(place.n_bytes for place in self.header.tensors.values())
            told = (self.header.meta.get(f"adapter.lora.{key}", "") for key in ("task_name", "prompt_prefix"))
            texts = (value if isinstance(value, str) else "" for value in told)
            self.info = Adapter(name, path, scale, fingerprint(path), n_bytes, *texts)
            self.alpha = self._alpha()
            self.pairs = self._read_pairs()
        except OSError as error:
            self.close()
            raise self._refusal(f"{path}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def factor(self, pair: Pair) -> float:
        """Return the factor by which the request's scale is multiplied."""
        return self.alpha / pair.rank if self.alpha else 1.0

    def _refusal(self, why: str) -> UmaError:
        return UmaError(ErrorCode.ADAPTER_LOAD_FAILED, f"adapter {self.name}: {why}", adapter=self.name)

    def _alpha(self) -> float:
        meta, path = self.header.meta, self.header.path
        for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
            if meta.get(key) != wanted:
                raise self._refusal(f"{path}: {key} is {meta.get(key)!r}, not {wanted!r}")
        if len(self.header.paths) > 1:
            raise self._refusal(f"{path}: it is split into several files, which is not supported")
        if ACTIVATED in self.header.arrays():
            raise self._refusal(f"{path}: some tokens activate it (aLoRA), which is not supported")
        alpha = meta.get("adapter.lora.alpha", 0.0)
        if not isinstance(alpha, float) or alpha != alpha or abs(alpha) == float("inf"):
            raise self._refusal(f"{path}: adapter.lora.alpha is not a finite float")
        return alpha

    def _read_pairs(self) -> dict[str, Pair]:
        header, size = self.header, os.path.getsize(self.header.path)
        halves: dict[str, dict[str, TensorPlace]] = {}
        for place in header.tensors.values():
            name, _, half = place.name.rpartition(".")
            if place.offset + place.n_bytes > size:
                raise self._refusal(f"{header.path}: the file is cut short")
            if half in ("lora_a", "lora_b"):
                halves.setdefault(name, {})[half] = place
            elif place.name.endswith("_norm.weight"):
                self.n_unused += 1
            else:
                raise self._refusal(f"{header.path}: {place.name} is not part of a low-rank pair")
        for name, both in halves.items():
            if len(both) != 2:
                raise self._refusal(f"{header.path}: {name} lacks one of its two matrices")
        return {name: Pair(both["lora_a"], both["lora_b"]) for name, both in halves.items()}

    def check(self, model: Header) -> None:
        """Check that the adapter fits the model's header. Raises: ADAPTER_LOAD_FAILED."""
        path, arch = self.header.path, self.header.arch
        if arch != model.arch:
            raise self._refusal(f"{path}: it is for the architecture {arch}, the model is {model.arch}")
        if not self.pairs:
            raise self._refusal(f"{path}: it holds no matrices")
        for name, pair in self.pairs.items():
            base = model.tensors.get(name) or model.unread.get(name)  # llama.cpp's engine reads it for `engine.mtp`
            if base is None:
                raise self._refusal(f"{path}: the model has no {name}; is it for another model?")
            if name == EMBEDDING and "output.weight" not in model.tensors:
                raise self._refusal(f"{path}: it changes {name}, which is this model's output too: not served")
            complaint = _misfit(name, pair, base)
            if complaint:
                raise self._refusal(f"{path}: {name}: {complaint}")

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"adapter {self.name}: its {self.n_unused} norm vectors are not applied",) if self.n_unused else ()

    def close(self) -> None:
        self.header.close()


def _misfit(name: str, pair: Pair, base: TensorPlace) -> str:
    """Why the pair does not fit this tensor of the model; "" if it fits."""
    n_in, n_out, n_each, _ = base.ne
    rank = pair.rank
    wanted = (
        ((rank, n_out, 1, 1), (rank, n_in, 1, 1))
        if name == EMBEDDING
        else ((n_in, rank, n_each, 1), (rank, n_out, n_each, 1))
    )
    if n_out == 1 or base.ne[3] != 1:
        return "it is not a matrix in the model"
    if (pair.a.ne, pair.b.ne) != wanted or rank < 1:
        shapes = " and ".join("x".join(map(str, place.ne)) for place in pair)
        return f"{shapes} do not fit {'x'.join(map(str, base.ne))}; is it for another model?"
    for place in (*pair, base):
        if not is_of_weights(place.type) or (place is base and place.type == lib.GGML_TYPE_NVFP4):
            return f"matrices of type {text(lib.ggml_type_name(place.type))} are not served"
    return ""


def open_adapters(options: EngineOptions, model: Header) -> list[AdapterFile]:
    """Open the configured adapters, and check that each fits the model. The caller closes them.

    Raises: ADAPTER_LOAD_FAILED.
    """
    scales: Mapping[str, float] = options.lora_scale
    with ExitStack() as opened:
        files = []
        for name, path in options.lora.items():
            files.append(AdapterFile(name, path, scales.get(name, 0.0)))
            opened.callback(files[-1].close)
            files[-1].check(model)
        opened.pop_all()
        return files


def check_adapters(options: EngineOptions, path: str) -> int:
    """Return the bytes of the adapters for the model at `path`.

    Blocks: reads headers. Raises: ADAPTER_LOAD_FAILED, MODEL_LOAD_FAILED.
    """
    if not options.lora:
        return 0
    with closing(Header(path)) as model:
        files = open_adapters(options, model)
    for file in files:
        file.close()
    return sum(file.info.n_bytes for file in files)
