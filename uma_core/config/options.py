"""Every option, declared once: flags, variables, YAML keys, checks, docs/CONFIG.md and `--print-config` are derived
from this.

Rules: values only; nothing here reads a file, a variable or a flag (merge.py does). Times are `_ms` only here:
`Scheduler.to_scheduler_config` is the one conversion for the policy, `ns()` the one for all other code.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from uma_core.config import presets
from uma_core.config.schema import Option, option, options_of, shown
from uma_core.policy.config import SchedulerConfig
from uma_core.protocol.framing import FRAME_CAP_LIMIT
from uma_core.suggest import suggest
from uma_core.types import PRIORITIES, Priority

ADAPTER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SCHEDULER = SchedulerConfig()  # the policy's own defaults, which are not repeated here
_NS_PER_MS = 1_000_000
_DAYS = 1_000_000_000  # ms, 11 days: in ns far below the limit of int64
_MAX_ID = (1 << 32) - 2  # the kernel reserves the last uid


def ns(ms: float) -> int:
    """Convert milliseconds of the configuration to nanoseconds. Only 0, which often means never, gives 0."""
    return round(ms * _NS_PER_MS) or (1 if ms > 0 else 0)


def loopback(text: str) -> tuple[str, int] | None:
    """Return (host, port) of `127.0.0.1:9464`, `[::1]:9464` or `localhost:9464`; None if it is no loopback address with
    a port.
    """
    host, _, port = text.strip().rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        return None
    return (host, int(port)) if is_loopback and port.isascii() and port.isdecimal() and int(port) < 1 << 16 else None


@dataclass(frozen=True)
class EngineOptions:
    """Which model is loaded, and how it runs."""

    RELOAD: ClassVar = "engine"
    model: str = option(
        "",
        "path of the GGUF to serve; empty: the small demonstration model that comes with the package",
        yaml="model",
        is_path=True,
    )
    preset: str = option(
        presets.NONE,
        "a set of options for a kind of machine (docs/CONFIG.md lists them); options that you set yourself override it",
        yaml="preset",
        choices=(presets.NONE, *presets.PRESETS),
        reload="live",
    )
    engine: str = option(
        "auto",
        "which engine runs the model: llama.cpp's, our own on ggml graphs, or a simulated one; auto: the faster one "
        "that supports the model",
        choices=("auto", "llama", "graph", "fake"),
    )
    n_ctx: int = option(
        16384,
        "total number of KV cells, divided among the sequences; lowered if a sequence would get more than the "
        "model's training context; 0: exactly that context for each sequence",
        unit="tokens",
        min=0,
        max=1 << 24,
    )
    encoder_ctx: int = option(
        0,
        "longest input to an encoder or reranker; 0: the model's training context, as far as it fits in 1 GiB "
        "(llama.cpp needs 4 bytes x vocabulary for each token)",
        unit="tokens",
        min=0,
        max=1 << 20,
        words={"auto": 0},
    )
    threads: int = option(
        0,
        "compute threads; 0: one per processor, fewer if a control group limits CPU time",
        min=0,
        max=1024,
        words={"auto": 0},
    )
    n_seq: int = option(
        4, "sequences that can be on the device at once", flag="--parallel", env="UMA_N_SEQ", min=1, max=256
    )
    n_batch: int = option(512, "most tokens in one decode call", unit="tokens", min=1, max=1 << 20)
    n_ubatch: int = option(
        512,
        "most tokens that the backend computes at once; also the largest prefill chunk",
        unit="tokens",
        min=1,
        max=1 << 20,
        cap="engine.n_batch",
    )
    n_gpu_layers: int = option(-1, "layers on the GPU; -1: all", min=-1, max=10_000, words={"all": -1, "auto": -1})
    kv_mode: str = option(
        "streams", "one KV stream per sequence, or one pool of cells for all", choices=("streams", "unified")
    )
    kv_type: str = option("f16", "element type of K and V", choices=("f16", "bf16", "q8_0", "q4_0"))
    flash_attn: str = option(
        "auto",
        "fused attention kernels; auto: on if the device that holds the KV has them",
        choices=("auto", "on", "off"),
    )
    prefill_lanes: int = option(
        2,
        "prompts that are read at the same time and can be paused between layers; 0: prompts are read in chunks of "
        "limited size, without pausing",
        min=0,
        max=4,
    )
    cpu_kernels: bool = option(
        True,
        "use our small-batch matmul and attention kernels in ggml's CPU backend; off: use ggml's own",
        env="UMA_CPU_KERNELS",
        reload="restart",  # one switch per process: a running engine's kernels must not change within a graph
    )
    isa: str = option(
        "auto",
        "instruction set of our CPU kernels; auto: the best that the processor has. A lower one "
        "simulates a lesser processor; ggml's own operations follow it in a portable build only",
        choices=("auto", "avx512vnni", "avx512", "avxvnni", "avx2", "neon-i8mm", "neon-dotprod", "neon", "portable"),
        reload="restart",
    )
    deterministic: bool = option(
        False,
        "serve only if no bit of an answer depends on other work, which holds for the graph engine on a CPU with our "
        "kernels; otherwise the daemon does not start. Without this option `status` tells whether answers are "
        "deterministic",
    )
    moe_top_k: int = option(
        0, "experts per token of a mixture-of-experts model; 0: the model's own", flag="--moe-top-k", min=0, max=256
    )
    lora: Mapping[str, str] = option(
        {},
        "LoRA adapters (GGUF) to load with the model, as id=path; requests name them by id. The flag may be repeated",
        flag="--lora",
        is_path=True,
    )
    lora_scale: Mapping[str, float] = option(
        {}, "the scale of an adapter in requests without `lora`, as id=scale; such requests do not use the "
            "adapters that have no entry",
        flag="--lora-scale", values=float, min=-1000, max=1000,
    )  # fmt: skip
    load_mode: str = option(
        "auto", "how the weights get into memory; auto lets the graph engine keep its own repacked copies",
        choices=("auto", "mmap", "mlock", "mmap+mlock", "none", "direct-io"),
    )  # fmt: skip
    repack_cache: bool = option(
        False,
        "save the weights that the graph engine repacks for its matmuls to a file in the user's cache directory, so "
        "that the next start only reads them; the file is as large as these weights",
    )
    repack_cache_mb: int = option(
        32_768,
        "disk space for repacked weights, for all models together; the least recently used files are removed first, "
        "and weights larger than this are not saved",
        unit="MiB",
        min=0,
        max=1 << 30,
    )
    metal_residency: bool = option(
        True, "keep Metal buffers resident (off sets GGML_METAL_NO_RESIDENCY)", reload="restart"
    )
    metal_keep_alive_s: int = option(
        180,
        "how long weights stay wired after the last computation (GGML_METAL_RESIDENCY_KEEP_ALIVE_S)",
        unit="s",
        min=1,
        max=86_400,
        reload="restart",
    )
    metal_shared_buffers: str = option(
        "auto",
        "Metal buffers shared with the CPU (GGML_METAL_SHARED_BUFFERS_ENABLE or _DISABLE)",
        choices=("auto", "on", "off"),
        reload="restart",
    )
    cuda_graphs: bool = option(
        False,
        "let ggml record CUDA graphs: steps get up to 6 % shorter, but take twice as long whenever the batch changes "
        "(off sets GGML_CUDA_DISABLE_GRAPHS)",
        reload="restart",
    )
    mtp: bool = option(
        False,
        "load the prediction heads (MTP) from the model's own file: they act as a draft model, for requests whose "
        "`speculate` is auto or draft",
    )
    decode_ahead: str = option(
        "auto",
        "the graph engine begins a step as soon as the last step's tokens are announced; auto: only on GPUs",
        choices=("auto", "on", "off"),
    )
    memory_budget_mb: int = option(
        0, "refuse to load a model that needs more memory; 0: no budget", unit="MiB", min=0, max=1 << 30
    )
    calibrate: str = option(
        "auto",
        "at startup, measure the cost model and compare the engines; auto: reuse stored results for the same model, "
        "device and options",
        choices=("auto", "off", "force"),
    )
    hang_timeout_ms: float = option(
        30_000.0,
        "a decode call that takes longer than this makes the daemon `degraded`; 0: never",
        unit="ms",
        min=0,
        max=_DAYS,
        reload="live",
    )
    # The next two are not options: both follow from the source of drafts. takes_back: whether a recurrent memory keeps
    # copies of its state, so that draft tokens can be rolled back.
    takes_back: bool = False
    # Layers whose inputs are kept for the drafter; the number after the last layer stands for the input of the output
    # head.
    hidden_layers: tuple[int, ...] = ()

    def backend_environ(self) -> dict[str, str]:
        """Return the variables that ggml's backends read when they load; some only have to be set."""
        environ = {"GGML_METAL_RESIDENCY_KEEP_ALIVE_S": str(self.metal_keep_alive_s)}
        if self.isa != "auto":
            environ["UMA_ISA"] = self.isa
        if not self.metal_residency:
            environ["GGML_METAL_NO_RESIDENCY"] = "1"
        if self.metal_shared_buffers != "auto":
            environ["GGML_METAL_SHARED_BUFFERS_" + ("ENABLE" if self.metal_shared_buffers == "on" else "DISABLE")] = "1"
        if not self.cuda_graphs:
            environ["GGML_CUDA_DISABLE_GRAPHS"] = "1"
        return environ


@dataclass(frozen=True)
class IpcOptions:
    """The socket, and the limits of one connection."""

    RELOAD: ClassVar = "live"
    uds_path: str = option(
        "",
        "path of the Unix socket; empty: $XDG_RUNTIME_DIR/uma.sock, or /tmp/uma.sock if you have no such directory",
        flag="--socket",
        env="UMA_SOCK",
        reload="restart",
        is_path=True,
    )
    check_folder: bool = option(
        True,
        "refuse a socket in a directory where another user could replace it; turn this off only on a machine without "
        "other users",
        reload="restart",
    )
    backlog: int = option(
        64,
        "connections that may wait to be accepted; further ones block or fail in connect()",
        min=1,
        max=65_535,
        reload="restart",
    )
    max_connections: int = option(
        256,
        "open connections; further ones are refused with an error, except that processes without a connection may "
        "exceed this by one eighth",
        min=1,
        max=65_535,
    )
    max_frame_bytes: int = option(
        1 << 20,
        "largest frame or line; checked before the body is buffered. With a larger limit, a frame header could be "
        "taken for text",
        unit="bytes",
        min=1024,
        max=FRAME_CAP_LIMIT,
    )
    trusted_frame_bytes: int = option(
        32 << 20,
        "largest frame of trusted peers: the owner, root and `access.trusted_uids`; their lines have "
        "`ipc.max_frame_bytes`, too",
        unit="bytes",
        min=1024,
        max=FRAME_CAP_LIMIT,
    )
    tx_soft_bytes: int = option(
        64 << 10,
        "unsent bytes beyond which the sequences of a slow reader pause",
        unit="bytes",
        min=1024,
        max=1 << 30,
        cap="ipc.tx_hard_bytes",
    )
    tx_hard_bytes: int = option(
        4 << 20, "unsent bytes beyond which a slow reader is disconnected", unit="bytes", min=4096, max=1 << 30
    )
    write_timeout_ms: float = option(
        30_000.0, "disconnect a reader that takes no byte for this long; 0: never", unit="ms", min=0, max=_DAYS
    )
    idle_timeout_ms: float = option(
        300_000.0,
        "a connection without a request in flight is closed after this long; 0: never",
        unit="ms",
        min=0,
        max=_DAYS,
    )
    read_apart: bool = option(
        True,
        "parse requests of more than 16 KiB in a separate process (30 to 70 MiB), so that they delay no stream; off: "
        "parse them in the daemon",
        reload="restart",
    )
    echo: bool = option(False, "in line mode, send the prompt back before the answer")
    stop_at_eof: bool = option(
        False,
        "stop, as on SIGTERM, when standard input closes, so that the daemon does not outlive the program that "
        "started it and holds the pipe",
        reload="restart",
    )


@dataclass(frozen=True)
class LimitOptions:
    """Limits of a request, and of the queues."""

    RELOAD: ClassVar = "live"
    max_sessions: int = option(
        32,
        "requests that are queued or running; further ones are refused, except that clients without a request may "
        "exceed this by one eighth. The limits of the two queues matter only if they are lower; their defaults are "
        "higher",
        min=1,
        max=100_000,
    )
    max_prompt_bytes: int = option(
        256 << 10, "largest prompt", unit="bytes", min=1, max=1 << 30, cap="ipc.max_frame_bytes"
    )
    trusted_prompt_bytes: int = option(
        8 << 20,
        "largest prompt of a request with an `account`, which only trusted peers may name, and largest text that "
        "trusted peers may have tokenized",
        unit="bytes",
        min=1,
        max=1 << 30,
        cap="ipc.trusted_frame_bytes",
    )
    max_tokens: int = option(
        2048,
        "most tokens that one request may generate; a larger `max_tokens` is lowered to this",
        unit="tokens",
        min=1,
        max=1 << 24,
    )
    default_max_tokens: int = option(
        512,
        "tokens to generate for a request without `max_tokens`",
        unit="tokens",
        min=1,
        max=1 << 24,
        cap="limits.max_tokens",
    )
    queue_interactive: int = option(
        64, "interactive requests that may wait; further ones are refused with `retry_after_ms`", min=0, max=100_000
    )
    queue_background: int = option(
        256, "background requests that may wait; further ones are refused with `retry_after_ms`", min=0, max=100_000
    )
    max_in_flight: int = option(16, "requests in flight on one connection", min=1, max=100_000)
    request_timeout_ms: float = option(
        0.0, "time limit of a request that sets none; 0: no limit", unit="ms", min=0, max=_DAYS
    )
    overflow: str = option(
        "error",
        "what happens when prompt and answer exceed the context, for a request without `overflow`",
        choices=("error", "truncate-middle", "shift"),
        flag="--context-overflow",
    )


@dataclass(frozen=True)
class SchedulerOptions:
    """The settings of uma_core/policy/config.py, in `_ms` instead of `_ns`; `auto_lane_tokens` belongs to admission."""

    RELOAD: ClassVar = "live"
    stages: tuple[str, ...] = option(
        _SCHEDULER.stages,
        "the policy pipeline, in order; leave a stage out to turn it off. admission, decode_first, prefill_order and "
        "prefill_budget must stay: without any of them, some requests would never be served",
    )
    tick_budget_ms: float = option(
        _SCHEDULER.tick_budget_ns / _NS_PER_MS,
        "target length of a tick when no interactive request waits",
        unit="ms",
        min=1,
        max=10_000,
    )
    start_target_tokens: int = option(
        _SCHEDULER.start_target_tokens,
        "initial value of the adaptive token budget, if prefill cannot be paused",
        unit="tokens",
        min=1,
        max=1 << 20,
    )
    prefill_burst: int = option(
        _SCHEDULER.prefill_burst, "most prompt tokens of one session in one tick", unit="tokens", min=1, max=1 << 20
    )
    guard_cap: float = option(
        _SCHEDULER.guard_cap,
        "limit of an everyday gap of one stream, as a multiple of its step alone; with several streams it grows with "
        "their round (docs/POLICY.md)",
        min=1,
        max=100,
        cap="scheduler.pause_cap",
    )
    guard_floor_ms: float = option(
        _SCHEDULER.guard_floor_ns / _NS_PER_MS, "gaps shorter than this are never guarded", unit="ms", min=0, max=10_000
    )
    pause_cap: float = option(
        _SCHEDULER.pause_cap,
        "limit of a long gap, as a multiple of the same step; forced work may exceed it",
        min=1,
        max=100,
    )
    long_tick_share: float = option(
        _SCHEDULER.long_tick_share, "share of gaps that may exceed guard_cap (up to pause_cap)", min=0, max=1
    )
    starvation_ticks: int = option(
        _SCHEDULER.starvation_ticks,
        "force one piece of a prompt that has made no progress for this many rounds of the streams, in predicted time; "
        "four times as many if a round and a piece together exceed the limit of a long gap",
        min=1,
        max=100_000,
    )
    slo_ttft_ms: float = option(
        _SCHEDULER.slo_ttft_ns / _NS_PER_MS,
        "target for the time to the first token, for requests that set none; 0: no target",
        unit="ms",
        min=0,
        max=_DAYS,
    )
    slo_tbt_ms: float = option(
        _SCHEDULER.slo_tbt_ns / _NS_PER_MS,
        "target for the time between tokens, for requests that set none; 0: no target",
        unit="ms",
        min=0,
        max=_DAYS,
    )
    interactive_share: float = option(
        _SCHEDULER.interactive_share,
        "share of the time for an interactive prompt beside background streams, and, if prefill can be paused, for any "
        "prompt alone; streams decode, or KV moves, in the rest",
        min=0.05,
        max=0.99,
    )
    max_background_decoders: int = option(
        _SCHEDULER.max_background_decoders, "background streams served in one tick; 0: all", min=0, max=256
    )
    moe_max_decoders: int = option(
        _SCHEDULER.moe_max_decoders,
        "background streams served beside a chat in one tick for mixture-of-experts models",
        min=1,
        max=256,
    )
    aging_ms: float = option(
        _SCHEDULER.aging_ns / _NS_PER_MS,
        "a background session without progress for this long is ordered like an interactive one (of those that wait "
        "for a sequence, one at a time); this changes the order, not the amount of work that the latency guard admits",
        unit="ms",
        min=0,
        max=_DAYS,
    )
    bmt_budget: float = option(
        _SCHEDULER.bmt_budget,
        "memory bandwidth that ticks may use; 0: off; auto (-1): the measured bandwidth",
        unit="GB/s",
        min=-1,
        max=1_000_000,
        words={"auto": -1.0, "off": 0.0},
    )
    auto_lane_tokens: int = option(
        512,
        "a request without a priority is background if it has more uncached prompt tokens than this, or several inputs",
        unit="tokens",
        min=0,
        max=1 << 24,
    )

    def to_scheduler_config(self) -> SchedulerConfig:
        """Convert to the policy's own configuration: the only conversion from ms to ns."""
        return SchedulerConfig(**{item.name: self._value(item.name) for item in dataclasses.fields(SchedulerConfig)})

    def _value(self, name: str) -> Any:
        return ns(getattr(self, name[:-3] + "_ms")) if name.endswith("_ns") else getattr(self, name)


@dataclass(frozen=True)
class CacheOptions:
    """KV that outlives a request."""

    RELOAD: ClassVar = "live"
    prefix: bool = option(True, "reuse the KV of a common prompt prefix", flag="--prefix-cache")
    ram_mb: int = option(
        512,
        "memory for KV snapshots and parked chats; those that do not fit go only to disk_dir",
        flag="--cache-ram-mb",
        unit="MiB",
        min=0,
        max=1 << 24,
    )
    disk_dir: str = option(
        "", "directory for KV snapshots that survive a restart; empty: none", flag="--cache-dir", is_path=True
    )
    disk_mb: int = option(
        4096, "disk space for the files in that directory", flag="--cache-disk-mb", unit="MiB", min=0, max=1 << 30
    )
    share_across_uids: bool = option(
        False, "let one user's prompts reuse KV from another user's prompts", flag="--cache-share-across-uids"
    )
    park_idle_ms: float = option(
        60_000.0, "move an idle chat's KV off the device after this long", unit="ms", min=0, max=_DAYS
    )
    pressure: str = option(
        "auto",
        "when the system runs short of memory, drop cached KV, then the KV of idle sequences, never that of streams",
        flag="--memory-pressure",
        choices=("auto", "off"),
    )


@dataclass(frozen=True)
class AccessOptions:
    """Users that may connect, as the kernel identifies them. The daemon's owner and root always may."""

    RELOAD: ClassVar = "live"
    allow_uids: tuple[int, ...] = option(
        (), "other users that may connect, if the socket's mode lets them", of=int, min=0, max=_MAX_ID
    )
    allow_gids: tuple[int, ...] = option(
        (), "groups whose members may connect; on Linux, supplementary groups count too", of=int, min=0, max=_MAX_ID
    )
    admin_uids: tuple[int, ...] = option(
        (), "other users that may drain, reload, and cancel other users' requests", of=int, min=0, max=_MAX_ID
    )
    trusted_uids: tuple[int, ...] = option(
        (),
        "other users whose gateways may name the `account` of a request, and get the trusted limits",
        of=int,
        min=0,
        max=_MAX_ID,
    )
    lane_ceiling: Mapping[int, str] = option(
        {}, "the most urgent priority of a user, as uid=priority", of=int, min=0, max=_MAX_ID, choices=PRIORITIES
    )

    def ceiling(self, uid: int) -> Priority:
        """Return the most urgent priority that this user's requests may have."""
        return Priority[self.lane_ceiling.get(uid, "interactive").upper()]


@dataclass(frozen=True)
class DrainOptions:
    """How running work ends when the daemon stops."""

    RELOAD: ClassVar = "live"
    deadline_ms: float = option(
        30_000.0, "time that running requests get to finish", flag="--drain-deadline-ms", unit="ms", min=0, max=_DAYS
    )
    retry_after_ms: float = option(1000.0, "how long refused clients are told to wait", unit="ms", min=0, max=_DAYS)


@dataclass(frozen=True)
class MetricsOptions:
    """How often metrics are updated, and where else they can be read."""

    RELOAD: ClassVar = "live"
    tick_interval_ms: float = option(
        1000.0,
        "how often gauges and sliding windows are updated",
        flag="--metrics-interval-ms",
        unit="ms",
        min=50,
        max=30_000,
    )
    listen: str = option(
        "",
        "loopback address, such as 127.0.0.1:9464, where Prometheus reads `/metrics` over HTTP; empty: none",
        flag="--metrics-listen",
        reload="restart",
    )


@dataclass(frozen=True)
class LogOptions:
    """The log on stderr, and the trace file."""

    RELOAD: ClassVar = "live"
    level: str = option(
        "info",
        "lowest level that is written; UMA_DEBUG=1 means debug",
        flag="--log-level",
        choices=("debug", "info", "warning", "error"),
        words={"warn": "warning", "err": "error"},
        env_switch=("UMA_DEBUG", "debug"),
    )
    format: str = option(
        "text", "concise text, or one JSON object per line", flag="--log-format", choices=("text", "json")
    )
    prompts: bool = option(False, "write prompts to the log", flag="--log-prompts")
    trace: str = option(
        "",
        "file that records each plan and the state it was made from, for `python -m uma_core.trace replay FILE`; "
        "empty: none",
        flag="--log-trace",
        is_path=True,
    )
    trace_mb: int = option(
        64,
        "size at which that file is renamed to FILE.1, replacing an earlier one, and a new file begins",
        flag="--log-trace-mb",
        unit="MiB",
        min=1,
        max=1 << 20,
    )


@dataclass(frozen=True)
class SpeculationOptions:
    """Speculative decoding: the model verifies several draft tokens in one step (docs/SPECULATION.md)."""

    RELOAD: ClassVar = "live"
    mode: str = option(
        "off",
        "source of drafts, for requests that do not set `speculate`; auto for those with a `prediction` too. lookup: "
        "repeats of the text or of earlier answers to the same account; draft: the draft model; auto: both, if a "
        "token's value does not depend on the other tokens in its batch",
        flag="--speculate",
        env="UMA_SPECULATE",
        choices=("auto", "lookup", "draft", "off"),
    )
    draft_model: str = option(
        "",
        "GGUF of a small model with the same vocabulary, or of an EAGLE 3 model. It drafts for one or two streams "
        "whose text does not repeat; empty: none",
        reload="engine",
        is_path=True,
    )
    max_draft_tokens: int = option(15, "most draft tokens of a stream in one step", unit="tokens", min=1, max=64)
    history_tokens: int = option(
        32_768,
        "most tokens of earlier answers to keep for each of the 64 most recent accounts; 150 bytes per token; 0: none",
        unit="tokens",
        min=0,
        max=1 << 24,
    )


@dataclass(frozen=True)
class HttpOptions:
    """The HTTP gateway, a process of its own (docs/GATEWAY.md). Needs the extra `[http]`."""

    RELOAD: ClassVar = "live"
    port: int = option(
        0, "port of the HTTP gateway; 0: no gateway is started", flag="--http", env="UMA_HTTP", min=0, max=65_535
    )
    host: str = option("127.0.0.1", "address that the gateway listens on", flag="--http-host")
    config: str = option(
        "",
        "the gateway's YAML file: keys, limits, TLS; empty: only variables and defaults",
        flag="--http-config",
        is_path=True,
    )


@dataclass(frozen=True)
class Config:
    engine: EngineOptions = field(default_factory=EngineOptions)
    ipc: IpcOptions = field(default_factory=IpcOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    access: AccessOptions = field(default_factory=AccessOptions)
    drain: DrainOptions = field(default_factory=DrainOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    http: HttpOptions = field(default_factory=HttpOptions)
    log: LogOptions = field(default_factory=LogOptions)


def _all_options() -> Iterator[Option]:
    for section in dataclasses.fields(Config):
        yield from options_of(section.name, section.default_factory)  # type: ignore[arg-type]


OPTIONS: tuple[Option, ...] = tuple(_all_options())


def conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (key, complaint) for values that conflict."""
    engine, scheduler = config.engine, config.scheduler
    if 0 < engine.n_ctx < engine.n_seq:
        yield "engine.n_ctx", f"must give each of the {engine.n_seq} sequences at least one cell, not {engine.n_ctx}"
    if engine.mtp and config.speculation.draft_model:
        yield "engine.mtp", "must be off if speculation.draft_model names a model: only one of them can draft"
    if engine.kv_type != "f16" and engine.flash_attn == "off":
        yield "engine.kv_type", f"must be f16 if fused attention (engine.flash_attn) is off, not {engine.kv_type}"
    yield from _adapter_conflicts(engine)
    if config.metrics.listen and loopback(config.metrics.listen) is None:
        yield (
            "metrics.listen",
            "must be a loopback address with a port, such as 127.0.0.1:9464 or [::1]:9464",
        )
    if -1 < scheduler.bmt_budget < 0:
        yield "scheduler.bmt_budget", "must be auto (-1), off (0) or a bandwidth in GB/s"


def _adapter_conflicts(engine: EngineOptions) -> Iterator[tuple[str, str]]:
    for name, path in engine.lora.items():
        if not ADAPTER_ID.fullmatch(name):
            yield "engine.lora", f"must have ids of up to 64 letters, digits and . _ -, not {shown(name)}"
        if not path:
            yield "engine.lora", f"must give {name} a path"
    for name in engine.lora_scale:
        if name not in engine.lora:
            yield (
                "engine.lora_scale",
                f"must name adapters of engine.lora, not {shown(name)}{suggest(name, engine.lora)}",
            )
