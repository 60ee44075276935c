"""Finds the sources that a prompt's prefix can be restored from, and what that would cost."""

from __future__ import annotations

from typing import NamedTuple

from uma_core.cache.radix import Node, Tree
from uma_core.cache.resident import Resident
from uma_core.cache.segment import Segment
from uma_core.engine.api import Engine
from uma_core.policy.cost.model import CostModel

RESIDENT, RAM, DISK = "resident", "ram", "disk"
TIERS = (RESIDENT, RAM, DISK)


class Piece(NamedTuple):
    """Positions start..end from one source."""

    tier: str
    start: int
    end: int
    source: Resident | Segment


class Finder:
    """Searches the tree; changes nothing."""

    def __init__(self, engine: Engine, residents: list[Resident]) -> None:
        can, self.has_states = engine.info.capabilities, engine.info.capabilities.has_states
        # if false, the engine cannot use a part of a sequence without the rest
        self.can_move = can.can_copy_prefix and (can.can_rollback or self.has_states)
        self.can_rollback = can.can_rollback
        self.cell_bytes = engine.info.kv_bytes_per_cell
        self._engine = engine
        self.disk_ns_per_byte = 1.0
        self._has_prefill_slots = can.n_prefill_slots > 0
        self._residents = residents

    def in_place(self, resident: Resident, tree: Tree, path: list[Node], n: int) -> int:
        """Return how many tokens of a walk the sequence holds and could keep."""
        if resident.tree is not tree:
            return 0
        n_common = resident.common_with(path, n)
        if self.has_states:
            return self._engine.resumable(resident.seq_id, n_common)
        return n_common if self.can_rollback or n_common == resident.n else 0

    def best_in_place(self, tree: Tree, path: list[Node], n: int) -> tuple[int, int]:
        """Return (sequence, tokens) of the idle sequence that could keep the most tokens; (-1, 0): there is none."""
        for node in reversed(path):
            for seq_id in sorted(node.holders):
                resident = self._residents[seq_id]
                if resident.is_idle and (kept := self.in_place(resident, tree, path, n)):
                    return seq_id, kept
        return -1, 0

    def route(self, path: list[Node], n: int, at: int, seq_id: int) -> list[Piece]:
        """Return the pieces that extend sequence `seq_id`, which holds `at` tokens of the walk: without gaps, nearest
        tier first.
        """
        pieces: list[Piece] = []
        if not self.can_move:
            return pieces
        source, end = self._longest(path, n, seq_id)
        if source is not None and end > at:
            pieces.append(Piece(RESIDENT, at, end, source))
            at = end
        for node in path:
            if node.end <= at:
                continue
            seg = node.seg
            if at >= n or seg is None or (seg.blob is None and not seg.file):
                break
            end = min(node.end, n)
            if pieces and pieces[-1].source is seg:
                pieces[-1] = pieces[-1]._replace(end=end)
            else:
                pieces.append(Piece(RAM if seg.blob is not None else DISK, at, end, seg))
            at = end
        while self.has_states and pieces and not _can_go_on(pieces[-1]):
            pieces.pop()
        return pieces

    def can_end(self, resident: Resident, n: int) -> bool:
        """Whether a session could continue from the sequence's first n positions."""
        return not self.has_states or self._engine.resumable(resident.seq_id, n) == n

    def copyable(self, source: Resident, n: int) -> int:
        """Return how many of the first n tokens can be copied from a sequence now. A sequence with states may have
        continued since it was found; its state at n is then gone.
        """
        return self._engine.resumable(source.seq_id, n) if self.has_states else n

    def given(self, node: Node, kept: int, seq_id: int) -> int:
        """Return how many of the positions before `node` a session can have without bytes: `kept`, which stay in
        sequence `seq_id`, or what can be copied from others. With states, that ends where a sequence has one.
        """
        if not self.has_states:
            return node.start
        above = [each for each in node.up() if each is not node]
        copied = [self._engine.resumable(other, each.end) for each in above for other in each.holders - {seq_id}]
        return max((kept, *copied))

    def _longest(self, path: list[Node], n: int, seq_id: int) -> tuple[Resident | None, int]:
        if self.has_states:
            return self._longest_resumable(path, n, seq_id)
        for node in reversed(path):
            for other in sorted(node.holders):
                if other != seq_id and not self._residents[other].is_claimed:
                    return self._residents[other], min(node.end, n)
        return None, 0

    def _longest_resumable(self, path: list[Node], n: int, seq_id: int) -> tuple[Resident | None, int]:
        found: tuple[Resident | None, int] = None, 0
        seen = {seq_id}
        for node in reversed(path):  # each sequence at its deepest node in the walk
            for other in sorted(node.holders - seen):
                seen.add(other)
                end = self._engine.resumable(other, min(node.end, n))
                if end > found[1] and not self._residents[other].is_claimed:
                    found = self._residents[other], end
        return found

    def cost_ns(self, pieces: list[Piece], n: int, cost: CostModel) -> int:
        """Return the predicted time until n positions are restored and reading the prompt can continue."""
        n_moved = sum(p.end - p.start for p in pieces)
        n_disk = sum(p.end - p.start for p in pieces if p.tier == DISK)
        ns = cost.transfer_ns(n_moved * self.cell_bytes) + int(n_disk * self.cell_bytes * self.disk_ns_per_byte)
        # a prefill slot begins with a copy of the restored positions
        return ns + (cost.transfer_ns(n * self.cell_bytes) if self._has_prefill_slots else 0)


def _can_go_on(piece: Piece) -> bool:
    """Whether a session can continue after the piece. With states, it needs the state after the piece's last
    position.
    """
    source = piece.source
    return isinstance(source, Resident) or (source.has_state and piece.end == source.end)
