"""Loads everything that an engine needs, from a GGUF and the options, or says why that is impossible."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from uma_core.config.options import EngineOptions
from uma_core.engine.api import Progress
from uma_core.engine.graph.adapters import Adapters
from uma_core.engine.graph.arena import Arena
from uma_core.engine.graph.attention import Attention, BatchShape
from uma_core.engine.graph.cells import Cells
from uma_core.engine.graph.device import Device, device_of
from uma_core.engine.graph.families import family_of
from uma_core.engine.graph.forward import Network
from uma_core.engine.graph.mapped import LOAD_MODES, Mapped, Modes
from uma_core.engine.graph.masked import Masked
from uma_core.engine.graph.paged import Paged
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.repack_cache import RepackCache, folder, key_of
from uma_core.engine.graph.repacked import bytes_with, repackable
from uma_core.engine.graph.shape import Shape, Unsupported, shape_of
from uma_core.engine.graph.states import States
from uma_core.engine.graph.store import PAGE
from uma_core.engine.graph.ticks import ride_rows, verify_rows
from uma_core.engine.graph.uploaded import Uploaded
from uma_core.engine.graph.weights import Weights
from uma_core.engine.header import Header
from uma_core.engine.kernels import isa_notes, use_kernels
from uma_core.engine.lib import lib
from uma_core.engine.llama.estimate import lay_out_context
from uma_core.engine.llama.log import tap
from uma_core.engine.llama.model import LlamaModel, Parts
from uma_core.engine.llama.params import check_model, context_params, is_unified, n_threads_of
from uma_core.errors import ErrorCode, UmaError
from uma_core.machine import available_bytes

log = logging.getLogger(__name__)

REPACKED_SHARE = 0.75  # largest part of the available memory for copies; the rest is for KV, graphs and others
# parameters of a context that shows whether llama.cpp can make a graph of a model
SMALLEST = context_params(
    n_ctx=256, n_batch=32, n_ubatch=32, n_seq_max=1, flash_attn_type=lib.LLAMA_FLASH_ATTN_TYPE_ENABLED, no_perf=True
)
STATES_NOTE = (
    "recurrent layers: a sequence cannot be cut back to any length; the cache knows where messages, prompts and "
    "answers ended, in memory, not on disk"
)


@dataclass
class Loaded:
    """Owns all loaded parts. Call `close` after the graphs over them are gone."""

    header: Header
    vocab: LlamaModel
    weights: Weights
    pages: Pages
    network: Network
    n_threads: int
    n_ubatch: int
    n_prefill_slots: int
    n_verify: int  # most rows of a call that holds drafts
    ride_rows: tuple[int, ...]  # sizes of calls that may hold a prompt's rows
    is_unified: bool
    kernels: str
    notes: tuple[str, ...]

    @property
    def device(self) -> Device:
        return self.network.device

    def attention(self, n_rows: int) -> Attention:
        """Make the attention of graphs with up to `n_rows` rows; 0: they are never computed. The caller closes it."""
        return attention_over(self.pages, self.network.shape, n_rows, self.n_threads)

    def promise_missing(self) -> str:
        """Return what is missing for a row's result to be bit-identical whatever else its calls compute; "": nothing.

        Attention cuts every row's cells at the same borders, our products sum in the same order for any number of rows,
        and all else is done row by row. ggml's products and attention compute one row differently from many.
        """
        if self.device.is_stock or not self.kernels:
            return "our own products and attention on a CPU"
        factors = self.weights.factors | self.network.adapters.factors
        others = sorted(name for name, tensor in factors.items() if not lib.uma_accel_multiplies(tensor))
        return f"our own product for {others[0]} in its memory layout" if others else ""

    def close(self) -> None:
        self.pages.close()
        self.network.adapters.close()
        self.weights.close()
        self.vocab.close()
        self.header.close()


def refuse(missing: Unsupported) -> UmaError:
    message = f"the graph engine cannot serve this model: it does not support {missing}; use --engine llama"
    return UmaError(ErrorCode.CONFIG_INVALID, message, option="engine.engine", missing=str(missing))


@dataclass(frozen=True)
class Wish:
    """Settings of a load beside the options."""

    progress: Progress | None = None
    is_stock: bool = False  # ggml's own operations only, on the CPU too
    is_dry: bool = False  # a device's memory is not taken: for graphs that are only laid out


def load(path: str, options: EngineOptions, wish: Wish = Wish()) -> Loaded:
    """Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY, CONFIG_INVALID (names what the engine does not support)."""
    header = Header(path)
    kept: list[Any] = [header]
    try:
        return _load(header, options, wish, kept)
    except BaseException as error:
        for part in reversed(kept):
            part.close()
        if isinstance(error, Unsupported):
            raise refuse(error) from error
        raise


def _load(header: Header, options: EngineOptions, wish: Wish, kept: list[Any]) -> Loaded:
    shape = check(header, options)
    header.leave_out(shape.n_layer)
    header.drop_arrays()
    device = device_of(options, wish.is_stock)
    kernels = use_kernels(options.cpu_kernels, options.isa) if device.is_cpu else ""
    vocab = _laid_out(header.path, options, Parts.SIZES if wish.is_dry else Parts.LAYOUT)
    kept.append(vocab)
    if shape.has_states and device.is_stock:
        raise Unsupported(f"recurrent layers on {device.name}")
    if vocab.n_vocab != shape.n_vocab:
        raise Unsupported(f"{shape.n_vocab} embeddings for {vocab.n_vocab} tokens")
    weights: Weights
    is_mapped = LOAD_MODES[options.load_mode]
    if device.is_stock and not (is_mapped and device.reads_host):
        weights = Uploaded(header, device, wish.progress, wish.is_dry)
    else:
        modes = Modes(is_mapped)
        if not device.is_stock and is_repacking(header, options, kernels):
            modes = Modes(is_mapped, n_threads_of(options), _cache(header, vocab.fingerprint, options))
        weights = Mapped(header, device, modes, wish.progress)
    kept.append(weights)
    adapters = Adapters(header, options, device, wish.is_dry)
    kept.append(adapters)
    counts = page_counts(options, shape)
    ropes = (int(lib.llama_model_rope_type(vocab.handle)), counts[2])
    hidden_layers = () if device.is_stock else (shape.n_layer,) if options.mtp else options.hidden_layers
    network = Network(shape, weights, family_of(shape.arch), ropes, device, adapters, hidden_layers)
    stock = Cells(shape, options.kv_type, counts[0], device, wish.is_dry) if device.is_stock else None
    unified = is_unified(options)
    n_prefill_slots = 0 if unified else options.prefill_lanes
    n_verify = verify_rows(options.n_batch, shape.has_states)
    states = States(shape, options.n_seq, n_prefill_slots, n_verify) if shape.has_states else None
    pages = Pages(stock or Arena(shape, options.kv_type, counts[0]), counts, states)
    kept.append(pages)
    _check_complete(network, pages, options.n_ubatch)
    return Loaded(
        header, vocab, weights, pages, network,
        n_threads=n_threads_of(options),
        n_ubatch=options.n_ubatch,
        n_prefill_slots=n_prefill_slots,
        n_verify=n_verify,
        ride_rows=ride_rows(device.is_cpu, options.n_batch),
        is_unified=unified,
        kernels=kernels,
        notes=(*_notes(network, unified), *adapters.notes, *(isa_notes(options.isa, kernels) if device.is_cpu else ())),
    )  # fmt: skip


def _laid_out(path: str, options: EngineOptions, what: Parts) -> LlamaModel:
    """Load the model without weights. A file that llama.cpp cannot load or lay out is damaged, and is refused.

    Raises: MODEL_LOAD_FAILED, INSUFFICIENT_MEMORY.
    """
    with tap.quiet():
        model = LlamaModel(path, options, None, what)
        try:
            lay_out_context(model.handle, SMALLEST)
        except BaseException:
            model.close()
            raise
    return model


def _cache(header: Header, fingerprint: str, options: EngineOptions) -> RepackCache | None:
    if not options.repack_cache:
        return None
    try:
        where = folder()
    except FileNotFoundError as error:
        log.warning("the repacked weights are not kept: %s", error.strerror)
        return None
    return RepackCache(where, key_of(header, fingerprint), options.repack_cache_mb << 20)


def _notes(network: Network, is_unified: bool) -> tuple[str, ...]:
    device = network.device
    notes = ["unified KV: prompts are read in sized chunks"] if is_unified else []
    if network.shape.has_states:
        notes.append(STATES_NOTE)
    if device.is_stock:
        notes.append(f"the graph is computed with ggml's operations on {device.description}")
    return tuple(notes)


def attention_over(pages: Pages, shape: Shape, n_rows: int, n_threads: int) -> Attention:
    """Make the attention that fits the KV memory."""
    store = pages.store
    if isinstance(store, Cells):
        return Masked(store, shape)
    assert isinstance(store, Arena)
    return Paged(store, shape, n_rows, n_threads)


def is_repacking(header: Header, options: EngineOptions, kernels: str) -> bool:
    """Whether products get copies of the weights that are laid out for them.

    They do if our kernels are in use, the options do not ask for the file's own layout, and there is room: unlike a
    mapped file, copies stay in memory.
    """
    if options.load_mode != "auto" or not kernels:
        return False
    available = available_bytes()
    return available is None or bytes_with(header, repackable(header)) <= REPACKED_SHARE * available


def check(header: Header, options: EngineOptions) -> Shape:
    """Check all that can be known before weights are read.

    Raises: Unsupported, and CONFIG_INVALID for options that this model cannot have with any engine.
    """
    check_model(options, header.path)
    if options.load_mode not in LOAD_MODES:
        raise Unsupported(f"load mode {options.load_mode}")
    if options.flash_attn == "off":
        raise Unsupported("attention that is not fused")
    shape = shape_of(header, family_of(header.arch).rules, options.moe_top_k)
    device = device_of(options)
    if not device.is_cpu and 0 <= options.n_gpu_layers <= shape.n_layer:
        raise Unsupported(f"some layers on {device.name} and some on the CPU")
    return shape


def page_counts(options: EngineOptions, shape: Shape) -> tuple[int, int, int]:
    """Total pages, sequences, positions per sequence.

    With one stream per sequence, the pages suffice for all sequences at their longest.
    """
    n_ctx = options.n_ctx or shape.n_ctx_train * options.n_seq
    if n_ctx <= 0:
        raise Unsupported("a context_length of 0")
    if is_unified(options):
        n_pages = -(-n_ctx // PAGE)
        return n_pages, options.n_seq, min(n_pages, -(-(shape.n_ctx_train or n_ctx) // PAGE)) * PAGE
    n_each = -(-n_ctx // (options.n_seq * PAGE))
    return n_each * options.n_seq, options.n_seq, n_each * PAGE


def _check_complete(network: Network, pages: Pages, n_ubatch: int) -> None:
    """Lay out a tick and a chunk to check that all their tensors exist with the right shapes, that the file has no
    others, and that the device has all operations.
    """
    attention = attention_over(pages, network.shape, 0, 1)
    for n in (2, n_ubatch):
        context = network.new_context(network.adapters.all)
        try:
            builder, _, _ = network.build(
                context, BatchShape(n, 1, attention.largest(), network.adapters.all), attention
            )
            missing = network.device.missing_for(builder.graph) if network.device.is_stock else ""
        finally:
            lib.ggml_free(context)
        if missing:
            raise Unsupported(missing)
    network.adapters.check_used()
    unused = network.weights.unused()
    if unused:
        raise Unsupported(f"a use of {unused[0]}")
