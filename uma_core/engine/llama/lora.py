"""LoRA adapters in llama.cpp's engine: loaded once with the model, and set for each context before it computes.

When its set changes, a context lays out its graphs again, which takes about as long as building a few of them.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any

from uma_core.config.options import EngineOptions
from uma_core.engine.api import Adapter
from uma_core.engine.header import Header, words_of_failure
from uma_core.engine.lib import ffi, lib
from uma_core.engine.llama.log import tap
from uma_core.engine.llama.model import LlamaModel
from uma_core.engine.lora import AdapterFile, open_adapters
from uma_core.errors import ErrorCode, UmaError
from uma_core.types import AdapterSet

ONE_SET = "requests with different LoRA adapters are computed in calls of their own"


class LlamaAdapters:
    """The adapters of a model, which owns and frees them.

    Load them before contexts are made: graphs have room only for adapters that are loaded by then.
    """

    def __init__(self, model: LlamaModel, options: EngineOptions) -> None:
        """Raises: ADAPTER_LOAD_FAILED, INSUFFICIENT_MEMORY."""
        self.infos: tuple[Adapter, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._handles: dict[str, Any] = {}
        if not options.lora:
            return
        with closing(Header(model.path)) as header:
            files = open_adapters(options, header)
        try:
            for file in files:
                self._handles[file.name] = _load(model, file)
        finally:
            for file in files:
                file.close()
        self.infos = tuple(file.info for file in files)
        self.notes = (ONE_SET, *(note for file in files for note in file.notes))

    def set(self, context: Any, adapters: AdapterSet) -> None:
        """Make a llama_context, which must not be computing, compute with these adapters and no others."""
        handles = ffi.new("struct llama_adapter_lora *[]", [self._handles[name] for name, _ in adapters])
        scales = ffi.new("float[]", [scale for _, scale in adapters])
        lib.llama_set_adapters_lora(context, handles, len(adapters), scales)


def _load(model: LlamaModel, file: AdapterFile) -> Any:
    mark = tap.pump()
    handle = lib.llama_adapter_lora_init(model.handle, os.fsencode(file.info.path))
    if not handle:
        error = ErrorCode.INSUFFICIENT_MEMORY if lib.uma_guard_is_short() else ErrorCode.ADAPTER_LOAD_FAILED
        raise UmaError(error, f"adapter {file.name}: {words_of_failure(mark)}", adapter=file.name)
    return handle
