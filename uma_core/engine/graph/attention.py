"""How a graph stores K and V and attends to them: by pages (paged.py), or by a mask over a span of cells
(masked.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from uma_core.engine.graph.builder import Builder
    from uma_core.engine.graph.pages import Pages
    from uma_core.engine.graph.recurrence import Recurrence


class Span(NamedTuple):
    """Cells that a batch's attention reads; none if it reads by pages."""

    first: int
    n: int


NO_SPAN = Span(0, 0)


class Rows(NamedTuple):
    """KV rows to which similar layers write K or V."""

    n_head: int  # rows of a position
    page_rows: int  # rows from one page to the next


class BatchShape(NamedTuple):
    """The shape of batches that a graph is built for."""

    n: int  # tokens
    n_out: int  # rows that want logits
    n_span: int = 0  # cells that the longest span may have
    adapters: tuple[int, ...] = ()  # LoRA adapters that some row has, ascending
    has_head: bool = True  # False: the rows that want logits give their last hidden states
    keeps_all: bool = False  # the hidden states of all rows are kept, not only of those that want logits


class Attention(Protocol):
    """The attention of one graph that computes or is paused. A decoder or a slot owns it."""

    cells: tuple[Rows, ...]  # inputs that tell a graph where it writes K and V
    recurrence: Recurrence | None  # the plan of layers with states; None: there are none
    is_q_first: bool  # Q is computed before K and V are stored

    def span(self, rows: Any, pages: Pages) -> Span:
        """The span of the batch in `rows`, a uma_rows *."""

    def room(self, span: Span, n: int) -> int:
        """The longest span of a graph that is built for this span and n tokens. It has room, because spans grow, and
        building a graph takes as long as a step.
        """

    def largest(self) -> int:
        """The longest possible span."""

    def masks(self, b: Builder) -> tuple[Any, Any]:
        """Make inputs beside the builder's own: a mask for layers that see everything, and one for layers with a
        window; None for a mask that is not needed.
        """

    def store(self, b: Builder, x: Any, layer: int, part: int) -> Any:
        """Make the node that writes K (part 0) or V (part 1): (dim, heads, n)."""

    def attend(self, b: Builder, q: Any, stored: tuple[Any, Any], layer: int, sinks: Any) -> Any:
        """(dim_v * n_head, n). `sinks`: (n_head), scores without a value, or None."""

    def bind(self, native: Any, b: Builder, masks: tuple[Any, Any]) -> Any:
        """Give a uma_forward the plans and masks that attention needs. `masks` are addresses.

        Returns the object that must live as long as `native`.
        """

    def close(self) -> None: ...
