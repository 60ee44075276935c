"""Snapshots: made in slices, kept in RAM, written to disk in the background, read back. One per engine.

Rules: a snapshot is made only when a sequence is about to lose the content (or in idle time), and only of the part that
no tier has yet: a growing chat costs its last turn, not its whole length.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from uma_core.cache.chain import DiskRead, Steps
from uma_core.cache.disk import Blob, DiskTier, Found
from uma_core.cache.files import FIRST_TENANT, model_key
from uma_core.cache.finder import DISK, RAM, Finder, Piece
from uma_core.cache.meters import CacheMeters
from uma_core.cache.radix import Node, Tree
from uma_core.cache.ram import RamTier
from uma_core.cache.resident import Resident
from uma_core.cache.saving import Saving
from uma_core.cache.segment import Segment, has_beginning, path_segments, segments_of
from uma_core.cache.settings import CacheSettings
from uma_core.clock import Clock
from uma_core.engine.api import Engine, Export
from uma_core.errors import ErrorCode, UmaError
from uma_core.policy.cost.model import CostModel

log = logging.getLogger(__name__)

EWMA = 0.3
TELLING_BYTES = 1 << 20
FULL_NS = 3600_000_000_000  # how long new files replace old ones after the file system was full
DISK_NS_MOST = 50.0  # ns per byte, 20 MB/s: a slower read is an outlier


class Store:
    """Owned by the compute thread."""

    def __init__(
        self,
        engine: Engine,
        finder: Finder,
        meters: CacheMeters,
        clock: Clock,
        tree_of: Callable[[int, str], Tree],
        wake: Callable[[], None],
    ) -> None:
        self.ram = RamTier(0, lambda seg: meters.evictions[RAM].add())
        self.disk: DiskTier | None = None
        self.disk_budget = 0
        self.files: OrderedDict[str, tuple[int, Segment | None]] = OrderedDict()  # least recently used first
        self.disk_bytes = 0
        self._n_fitting = 0  # bytes of files for which the file system had room ...
        self._full_until_ns = 0  # ... which counts until then
        self._writing: dict[Segment, str] = {}  # files that the disk thread has not reported yet
        self._is_indexing = False  # the directory is being read, so its files are not known yet
        self._is_found_unwanted = False  # the files were cleared before they were known
        self._is_short = False  # the system had no memory for the last snapshot
        self._unused = ""  # the directory that the last warning named
        self._wake = wake
        self._engine = engine
        self._finder = finder
        self._meters = meters
        self._clock = clock
        self._tree_of = tree_of
        self._model = model_key(engine.info)

    def apply(self, settings: CacheSettings) -> None:
        self.ram.budget = settings.ram_bytes
        self.ram.make_room(0)
        self.disk_budget = settings.disk_bytes
        has_files = settings.is_on and self._finder.can_move and not self._finder.has_states
        folder = settings.disk_dir if has_files else ""
        self._warn_of_unused(settings.disk_dir if settings.is_on and not has_files else "")
        if self.disk is not None and self.disk.folder != folder:
            self._forget_files()
            self._forget_writes()
            self.disk.close(0.0)
            self.disk = None
            self._is_indexing = self._is_found_unwanted = False
        if folder and self.disk is None:
            self.disk = DiskTier(
                folder,
                self._model,
                self._clock,
                self._wake,
                lambda cause: self._meters.removed[cause].add(),
                self._note_full,
            )
            self._full_until_ns = 0
            self._is_indexing = True
            self.disk.index(self._index)
        self._make_disk_room(0)

    def _warn_of_unused(self, folder: str) -> None:
        if folder and folder != self._unused:
            why = "states of recurrent layers stay in memory" if self._finder.can_move else "this engine cannot copy KV"
            log.warning("cache.disk_dir is not used and nothing survives a restart: %s (`status`: engine.notes)", why)
        self._unused = folder

    def poll(self, is_busy: bool) -> None:
        if self.disk is not None:
            self.disk.is_busy = is_busy
            self.disk.poll()

    def touch(self, end: Node | None) -> None:
        """Record that the prefix that ends here is in use, or just was."""
        segs = path_segments(end)
        self.ram.touch(segs)
        for seg in segs:
            if seg.file in self.files:
                self.files.move_to_end(seg.file)

    # saving

    def unsaved(self, end: Node | None, start: int = 0) -> list[Node]:
        """Return the nodes of the prefix past `start` that would be lost with the sequence, in order of position."""
        nodes = [node for node in end.up() if node.end > start] if end is not None else []
        return [node for node in reversed(nodes) if node.seg is None or node.seg.is_only_on_disk_for(node)]

    def lost(self, end: Node | None) -> list[Node]:
        """Return the nodes of the prefix that no tier has. One that is still being written counts as lost."""
        nodes = end.up() if end is not None else ()
        return [node for node in nodes if node.seg is None or (node.seg.blob is None and not node.seg.file)]

    def size(self, seq_id: int, node: Node) -> int:
        """Return the size of a snapshot of one node's positions, with the state after them."""
        return len(node.tokens) * self._finder.cell_bytes + self._engine.state_bytes(seq_id, node.end)

    def save(self, resident: Resident, node: Node, cost: CostModel, saving: Saving, is_last: bool = False) -> Steps:
        """Make a snapshot of one node's positions: in RAM and on disk, or only on disk if RAM has no room.

        Errors are only logged, because no request depends on a snapshot.
        """
        tree, start, end = resident.tree, node.start, node.end
        if tree is None or not saving.wants(node):
            return
        n_bytes = self.size(resident.seq_id, node)
        has_state = self._finder.can_end(resident, end)
        is_in_ram = self.ram.make_room(n_bytes)
        if not is_in_ram and not self._can_pass(tree, node, n_bytes, is_last):
            return
        if is_in_ram:
            self.ram.reserve(tree.tenant, n_bytes)
        is_taken = False
        try:
            export = self._export(resident.seq_id, start, end, n_bytes)
            yield self._meters.copied(export)
            seg = self._segment(tree, node, (start, end), n_bytes) if saving.wants(node) else None
            if seg is not None:
                seg.has_state = has_state
                if is_in_ram:
                    seg.weight = cost.prompt_ns(end - start, start) / max(1, seg.n_bytes)
                    self.ram.put(seg, export.blob)
                    self._is_short = False
                    self.ram.touch(path_segments(node))
                    is_taken = True
                self._write_behind(seg, export.blob, is_last)
                seg.let_go()
        except UmaError as error:
            level = (
                logging.DEBUG if self._is_short and error.error is ErrorCode.INSUFFICIENT_MEMORY else logging.WARNING
            )
            self._is_short = error.error is ErrorCode.INSUFFICIENT_MEMORY
            log.log(level, "could not make a snapshot: %s", error)
        finally:
            if is_in_ram and not is_taken:
                self.ram.unreserve(tree.tenant, n_bytes)

    def _can_pass(self, tree: Tree, node: Node, n_bytes: int, is_last: bool) -> bool:
        """Whether a node's bytes may go to disk without room in RAM: they are not written yet, and few others are
        waiting.
        """
        if (
            self.disk is None
            or tree.tenant < FIRST_TENANT
            or (node.seg is not None and (node.seg.file or node.seg.is_writing))
        ):
            return False
        return n_bytes <= self._disk_limit and self.disk.takes(n_bytes, is_last)

    def can_keep(self, n_bytes: int) -> bool:
        """Whether this many more bytes fit into some tier without evicting others."""
        if self.ram.n_bytes + n_bytes <= self.ram.budget:
            return True
        return self.disk is not None and n_bytes <= self._disk_limit and self.disk.has_room(n_bytes)

    def _segment(self, tree: Tree, node: Node, span: tuple[int, int], n_bytes: int) -> Segment | None:
        """Return the segment for fresh bytes of these positions. None: they already have bytes."""
        seg = node.seg
        if seg is None or (seg.start, seg.end) != span:
            seg = Segment(tree, *span, n_bytes)
            return seg if seg.attach(node) else None
        return seg if seg.blob is None and not seg.is_writing else None

    def _export(self, seq_id: int, start: int, end: int, n_bytes: int) -> Export:
        """Export positions. If the system lacks the memory, the least useful snapshots make room. Raises:
        INSUFFICIENT_MEMORY.
        """
        try:
            return self._engine.export_state(seq_id, end, start)
        except UmaError as error:
            if error.error is not ErrorCode.INSUFFICIENT_MEMORY or not self.ram.shrink(n_bytes):
                raise
            return self._engine.export_state(seq_id, end, start)

    def load(self, seq_id: int, piece: Piece) -> Steps:
        """Restore a piece into its sequence. Raises (through the chain): STATE_RESTORE_FAILED, CACHE_IO."""
        seg = piece.source
        assert isinstance(seg, Segment)
        blob = seg.blob
        if blob is None and seg.file and self.disk is not None:
            t0, ticket, name = self._clock.now_ns(), self.disk.read(seg.file), seg.file
            yield DiskRead(ticket, self._clock)
            blob = ticket.payload
            if blob is None:
                self._lost(name)
                if self.disk is not None:  # a reload may have given the directory up meanwhile
                    self.disk.list_names(self._note_removed)  # if one was removed, others may have been too
                raise UmaError(ErrorCode.CACHE_IO, "a file of the cache could not be used")
            self._learn_rate(self._clock.now_ns() - t0, len(blob))
        if blob is None:
            raise UmaError(ErrorCode.STATE_RESTORE_FAILED, "the snapshot is gone")
        yield self._meters.copied(self._engine.import_state(seq_id, blob, piece.end, piece.start, seg.start))

    def _learn_rate(self, ns: int, n_bytes: int) -> None:
        """Learn the disk's throughput. Small reads are ignored: they measure only its latency."""
        if n_bytes >= TELLING_BYTES:
            rate = min(DISK_NS_MOST, ns / n_bytes)
            self._finder.disk_ns_per_byte += EWMA * (rate - self._finder.disk_ns_per_byte)

    # disk

    def _write_behind(self, seg: Segment, blob: bytes | bytearray | memoryview | None, is_last: bool) -> None:
        disk = self.disk
        if (
            disk is None
            or blob is None
            or seg.file
            or seg.is_writing
            or seg.tree.tenant < FIRST_TENANT
            or not seg.nodes
        ):
            return
        tokens = seg.tree.tokens_to(seg.last)[: seg.end]
        what = Blob(self._model, seg.tree.tenant, seg.start, tokens, blob, seg.tree.variant)
        if not disk.takes(what.n_bytes, is_last) or not self._make_disk_room(what.n_bytes):
            return
        seg.is_writing = disk.write(what, lambda ok: self._written(seg, what, ok), is_last)
        if seg.is_writing:
            self._writing[seg] = what.name

    def _written(self, seg: Segment, what: Blob, is_written: bool) -> None:
        seg.is_writing = False
        self._writing.pop(seg, None)
        if is_written and seg.nodes:
            if seg.file != what.name:  # otherwise it was found in the directory meanwhile, with the same bytes
                seg.file = what.name
                self._add_file(what.name, what.n_bytes, seg)
        elif not seg.nodes and self.disk is not None and not self._is_named(what.name):  # it was dropped meanwhile
            self.disk.remove(what.name, "cleared")
        seg.let_go()
        self._make_disk_room(0)

    def _is_named(self, name: str) -> bool:
        """Whether a segment has this file, or is being written to it."""
        return name in self.files or name in self._writing.values()

    def _add_file(self, name: str, n_bytes: int, seg: Segment | None) -> None:
        self.files[name] = (n_bytes, seg)
        self.disk_bytes += n_bytes

    def _lost(self, name: str) -> None:
        """Record that a file is gone."""
        n_bytes, seg = self.files.pop(name, (0, None))
        self.disk_bytes -= n_bytes
        if seg is not None:
            seg.file = ""
            seg.let_go()

    def _note_removed(self, present: set[str] | None) -> None:
        """Record which files are gone. Content that is still held is written again later."""
        for name in [] if present is None else [name for name in self.files if name not in present]:
            self._lost(name)

    @property
    def _disk_limit(self) -> int:
        is_full = self._clock.now_ns() < self._full_until_ns
        return min(self.disk_budget, self._n_fitting) if is_full else self.disk_budget

    def _note_full(self, error: object) -> None:
        """Record that the file system has room for what is there and no more: for a while, new files replace old
        ones. Nothing can be replaced if there is nothing.
        """
        if self.disk_bytes:
            self._n_fitting, self._full_until_ns = self.disk_bytes, self._clock.now_ns() + FULL_NS

    def _make_disk_room(self, n_bytes: int) -> bool:
        """Remove the least recently used files, except those that others build upon, until this many bytes fit."""
        n_bytes += self.disk.n_pending if self.disk is not None else 0
        if n_bytes > self._disk_limit:
            return False
        while self.disk_bytes + n_bytes > self._disk_limit:
            victim = next((name for name, (_, seg) in self.files.items() if seg is None or seg.can_leave_disk), None)
            if victim is None or self.disk is None:
                return False
            self._meters.evictions[DISK].add()
            self.remove_file(victim, "room")
        return True

    def remove_file(self, name: str, cause: str) -> None:
        if self.disk is not None:
            self.disk.remove(name, cause)
        self._lost(name)

    def _forget_files(self) -> None:
        for name in list(self.files):
            self._lost(name)

    def _forget_writes(self) -> None:
        """Forget the writes to the old directory: the configuration names another one now."""
        for seg in self._writing:
            seg.is_writing = False
            seg.let_go()
        self._writing.clear()

    def _index(self, found: list[Found]) -> None:
        """Add the directory's files to the tree: parents before the files that build upon them."""
        if self._is_found_unwanted:
            self._discard([f for f in found if f.head is not None])
            found = [f for f in found if f.head is None]
        self._is_indexing = self._is_found_unwanted = False
        n_taken = n_waiting = 0
        for each in sorted((f for f in found if f.head is None), key=lambda f: f.t_used):
            self._add_file(each.name, each.n_bytes, None)
        for each in sorted((f for f in found if f.head is not None), key=lambda f: f.head.start):  # type: ignore[union-attr]
            seg = self._take_file(each)
            if seg is not None:
                n_taken += 1
                n_waiting += not has_beginning(seg)
        ours = sorted((f for f in found if f.name in self.files and f.head is not None), key=lambda f: f.t_used)
        for each in ours:
            self.files.move_to_end(each.name)
        if ours:
            waiting = f", {n_waiting} of them unusable until their prefixes are read again" if n_waiting else ""
            log.info("cache directory: %d snapshots%s, %d MiB", n_taken, waiting, self.disk_bytes >> 20)
        self._make_disk_room(0)

    def _discard(self, found: list[Found]) -> None:
        for each in found:
            if self.disk is not None and each.name not in self.files:
                self.disk.remove(each.name, "cleared")

    def _take_file(self, each: Found) -> Segment | None:
        """Add a file to the tree, even without its prefix: it becomes useful as soon as a session has read that.

        None: other segments have all of it.
        """
        head = each.head
        assert head is not None
        if each.name in self.files:
            return self.files[each.name][1]
        tree = self._tree_of(head.tenant, head.variant)
        end, span = tree.insert(head.tokens), (head.start, head.end)
        seg = Segment(tree, *span, (head.end - head.start) * self._finder.cell_bytes)
        if not seg.attach(end):
            same = next((other for other in path_segments(end) if (other.start, other.end) == span), None)
            if same is None or same.file or tree.tenant != head.tenant:
                if self.disk is not None:
                    self.disk.remove(each.name, "redundant")
                return None
            seg = same  # made again before the directory was read; written under the same name
        seg.file = each.name
        self._add_file(each.name, each.n_bytes, seg)
        return seg

    def clear(self, trees: list[Tree]) -> int:
        """Drop all snapshots that no session or pin keeps. Returns their number."""
        segs = segments_of(node for tree in trees for node in tree.nodes() if not node.n_kept)
        for seg in segs:
            self.forget(seg, "cleared")
        return len(segs)

    def clear_all(self, trees: list[Tree]) -> int:
        """Like `clear`; files of a directory that is still being read are removed as soon as they are known."""
        self._is_found_unwanted = self._is_indexing
        return self.clear(trees)

    def forget(self, seg: Segment, cause: str) -> None:
        """Drop the bytes in all tiers."""
        seg.is_writing = False
        if seg.file:
            self.remove_file(seg.file, cause)
        if seg.blob is not None:
            self.ram.drop(seg)
        seg.let_go()

    def look_again(self, timeout_s: float) -> None:
        """Find out which files other programs removed. Called when the daemon ends; blocks."""
        if self.disk is not None:
            self.disk.list_names(self._note_removed).wait(timeout_s)
            self.disk.poll()

    def flush(self, segs: list[Segment]) -> None:
        """Queue the segments that are not on disk yet; called when the daemon ends."""
        for seg in segs:
            self._write_behind(seg, seg.blob, True)

    def close(self, timeout_s: float) -> None:
        if self.disk is not None:
            if not self.disk.close(timeout_s) and timeout_s:  # 0: the thread goes on without us
                log.warning("%s: the cache's last snapshots were not written in time", ErrorCode.CACHE_IO.code)
            self.disk.poll()
            self.disk = None
