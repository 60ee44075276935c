"""From a GGUF and the options to everything that an engine computes with, or why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from uma_core.config import EngineOptions
from uma_core.engine.graph.arranged import arrangeable, bytes_with
from uma_core.engine.graph.families import family_of
from uma_core.engine.graph.forward import Network
from uma_core.engine.graph.header import Header
from uma_core.engine.graph.paged import NO_PLANS
from uma_core.engine.graph.pages import KV_TYPES, PAGE, Pages
from uma_core.engine.graph.shape import Shape, Unsupported, shape_of
from uma_core.engine.graph.weights import LOAD_MODES, Weights
from uma_core.engine.lib import ffi, lib, text
from uma_core.engine.llama import backend_name, use_kernels
from uma_core.engine.llama_model import LlamaModel, Progress
from uma_core.engine.llama_params import is_unified, n_threads_of
from uma_core.errors import ErrorCode, UmaError
from uma_core.machine import available_bytes

ARRANGED_SHARE = 0.75  # of the available memory, at most; the rest is for KV, graphs and others


@dataclass
class Loaded:
    """Owns all of it; `close` after the graphs over it are gone."""

    header: Header
    vocab: LlamaModel
    weights: Weights
    pages: Pages
    network: Network
    n_threads: int
    n_ubatch: int
    n_lanes: int
    is_unified: bool
    kernels: str
    devices: tuple[str, ...]
    notes: tuple[str, ...]

    def paged_shape(self) -> Any:
        """uma_paged_shape * of this model's attention, in layers that see everything."""
        shape, pages = self.network.shape, self.pages
        sizes = {"n_head": shape.n_head, "n_head_kv": shape.n_head_kv, "dim": shape.dim, "n_threads": self.n_threads}
        sizes |= {"cell_bytes": pages.cell_bytes, "page_bytes": pages.page_bytes}
        return ffi.new("uma_paged_shape *", {**sizes, "scale": shape.scale, "softcap": shape.softcap})

    @property
    def expert_bytes(self) -> int:
        return sum(place.n_bytes for place in self.header.tensors.values() if "_exps" in place.name)

    def close(self) -> None:
        self.pages.close()
        self.weights.close()
        self.vocab.close()
        self.header.close()


def refuse(missing: Unsupported) -> UmaError:
    message = f"the graph engine does not serve this model: it lacks {missing}; use --engine llama"
    return UmaError(ErrorCode.CONFIG_INVALID, message, option="engine.engine", missing=str(missing))


def load(path: str, options: EngineOptions, progress: Progress | None = None) -> Loaded:
    """Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY, CONFIG_INVALID (names what the engine lacks)."""
    header = Header(path)
    kept: list[Any] = [header]
    try:
        return _load(header, options, progress, kept)
    except BaseException as error:
        for part in reversed(kept):
            part.close()
        if isinstance(error, Unsupported):
            raise refuse(error) from error
        raise


def _load(header: Header, options: EngineOptions, progress: Progress | None, kept: list[Any]) -> Loaded:
    shape = check(header, options)
    kernels = use_kernels(options.cpu_kernels)
    vocab = LlamaModel(header.path, options, None, is_vocab_only=True)
    kept.append(vocab)
    if vocab.n_vocab != shape.n_vocab:
        raise Unsupported(f"{shape.n_vocab} embeddings for {vocab.n_vocab} tokens")
    weights = Weights(header, options.load_mode, is_arranging(header, options, kernels), progress)
    kept.append(weights)
    network = Network(shape, weights, family_of(shape.arch), int(lib.llama_model_rope_type(vocab.handle)))
    pages = Pages(shape, options.kv_type, page_counts(options, shape))
    kept.append(pages)
    _check_complete(network, pages)
    unified = is_unified(options)
    return Loaded(
        header, vocab, weights, pages, network,
        n_threads=n_threads_of(options),
        n_ubatch=options.n_ubatch,
        n_lanes=0 if unified else options.prefill_lanes,
        is_unified=unified,
        kernels=kernels,
        devices=tuple(text(lib.ggml_backend_dev_description(lib.ggml_backend_dev_get(i))) for i in range(lib.ggml_backend_dev_count())),
        notes=("unified KV: prompts are read in sized chunks",) if unified else (),
    )  # fmt: skip


def is_arranging(header: Header, options: EngineOptions, kernels: str) -> bool:
    """Whether products get copies of the weights that are laid out for them.

    Where our kernels are in use and nobody asked for the file's own; and where there is room, as copies do not come and go like a mapped file.
    """
    if options.load_mode != "auto" or not kernels:
        return False
    available = available_bytes()
    return available is None or bytes_with(header, arrangeable(header)) <= ARRANGED_SHARE * available


def check(header: Header, options: EngineOptions) -> Shape:
    """What can be known before weights are read. Raises: Unsupported."""
    if backend_name() != "cpu" and options.n_gpu_layers:
        raise Unsupported(f"device {backend_name()}")
    if options.load_mode not in LOAD_MODES:
        raise Unsupported(f"load mode {options.load_mode}")
    if options.kv_type not in KV_TYPES:
        raise Unsupported(f"KV type {options.kv_type}")
    if options.flash_attn == "off":
        raise Unsupported("attention that is not fused")
    family_of(header.arch)
    return shape_of(header, options.moe_top_k)


def page_counts(options: EngineOptions, shape: Shape) -> tuple[int, int, int]:
    """Pages in all, sequences, positions per sequence. With one stream each, the pages suffice for all sequences at their longest."""
    n_ctx = options.n_ctx or shape.n_ctx_train * options.n_seq
    if is_unified(options):
        n_pages = -(-n_ctx // PAGE)
        return n_pages, options.n_seq, n_pages * PAGE
    n_each = -(-n_ctx // (options.n_seq * PAGE))
    return n_each * options.n_seq, options.n_seq, n_each * PAGE


def _check_complete(network: Network, pages: Pages) -> None:
    """Build one graph: every tensor it wants is there in its shape, and the file has none that it does not want."""
    context = network.new_context()
    try:
        network.build(context, (2, 1), pages.plan, NO_PLANS)
    finally:
        lib.ggml_free(context)
    unused = network.weights.unused()
    if unused:
        raise Unsupported(f"a use of {unused[0]}")
