"""A graph laid out for the longest chunk, which serves shorter chunks too, because building a graph takes as long as a
decode step on a GPU.
"""

from __future__ import annotations

from typing import Any

from uma_core.engine.graph.attention import BatchShape, Span
from uma_core.engine.graph.forward import Compute, Forward, Network
from uma_core.engine.graph.pages import Pages
from uma_core.engine.graph.workspace import Workspace
from uma_core.engine.lib import ffi, lib
from uma_core.errors import ErrorCode, UmaError


class Fitted:
    """A Forward of `most`, and how its sizes depend on the number of rows (native/graph/fitted.c)."""

    def __init__(
        self, network: Network, pages: Pages, compute: Compute, most: BatchShape, workspace: Workspace
    ) -> None:
        """Raises: INSUFFICIENT_MEMORY."""
        self.most = most
        self._fitting: Any = ffi.NULL
        longer = network.new_context(most.adapters)
        try:
            n_more = int(most.n_out == most.n)  # every row is an output
            network.build(longer, most._replace(n=most.n + 1, n_out=most.n_out + n_more), compute.attention)
            self.forward = Forward(network, pages, compute, most, workspace)
            self._fitting = lib.uma_fitting_new(self.forward.context, longer)
        finally:
            lib.ggml_free(longer)
        if not self._fitting:
            self.close()
            raise UmaError(ErrorCode.INSUFFICIENT_MEMORY, "no memory to fit a graph")

    def fit(self, n: int, span: Span) -> Forward:
        """Return the graph of a batch of n rows with this span. Must not be called while the graph is computed."""
        lib.uma_fitting_fit(self._fitting, self.most.n - n)
        self.forward.fit(span, are_rows_new=True)
        return self.forward

    def close(self) -> None:
        self.forward.close()
        lib.uma_fitting_free(self._fitting)
        self._fitting = ffi.NULL
