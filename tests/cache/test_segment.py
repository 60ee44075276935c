"""Bytes of a run of positions: which nodes they cover, and when they may go."""

from __future__ import annotations

from tests.cache.paths import held, saved, tokens
from uma_core.cache.radix import Tree
from uma_core.cache.segment import Segment, has_beginning, path_segments, segments_of

SYSTEM, CHAT, OTHER = (1, 100), (2, 100), (3, 100)


def test_bytes_that_begin_within_a_node_cover_its_rest_alone() -> None:
    tree = Tree(1)
    end = held(tree, 0, tokens(SYSTEM)).end
    assert end is not None
    seg = saved(tree, end, 40)
    assert [(node.start, node.end, node.seg) for node in end.up()] == [(40, 100, seg), (0, 40, None)]
    assert has_beginning(seg), "the sequence holds it"


def test_nodes_that_have_bytes_keep_theirs() -> None:
    tree = Tree(1)
    end = held(tree, 0, tokens(SYSTEM, CHAT), (100,)).end
    assert end is not None and end.parent is not None
    first = saved(tree, end.parent)
    second = saved(tree, end)
    assert path_segments(end) == [second, first] and second.nodes == [end]
    assert not Segment(tree, 0, 200, 1).attach(end), "nothing is left to cover"


def test_what_others_build_upon_and_what_is_kept_stays_in_ram() -> None:
    tree = Tree(1)
    end = held(tree, 0, tokens(SYSTEM, CHAT), (100,)).end
    assert end is not None and end.parent is not None
    below, above = saved(tree, end.parent), saved(tree, end, 100)
    assert list(below.below()) == [above]
    assert above.can_leave_ram and not below.can_leave_ram
    below.file = "a"
    assert below.can_leave_ram and not below.can_leave_disk
    end.keep()
    assert not above.can_leave_ram and not below.can_leave_ram
    above.blob, above.file = None, "b"
    assert not above.can_leave_disk, "the file is the only place of bytes that are kept"
    tree.unkeep(end)
    assert above.can_leave_disk


def test_bytes_without_a_beginning_are_told() -> None:
    tree = Tree(1)
    resident = held(tree, 0, tokens(SYSTEM, CHAT), (100,))
    assert resident.end is not None
    seg = saved(tree, resident.end, 100)
    assert has_beginning(seg) and seg.is_resident
    resident.cut(0)
    assert not has_beginning(seg) and not seg.is_resident


def test_the_last_bytes_that_go_take_the_nodes_with_them() -> None:
    tree = Tree(1)
    resident = held(tree, 0, tokens(SYSTEM))
    assert resident.end is not None
    seg = saved(tree, resident.end)
    seg.file = "a"
    resident.cut(0)
    seg.blob = None
    seg.let_go()
    assert segments_of(tree.nodes()) == [seg], "its file is left"
    seg.is_writing, seg.file = True, ""
    seg.let_go()
    assert segments_of(tree.nodes()) == [seg], "its file is being written"
    seg.is_writing, version = False, tree.version
    seg.let_go()
    assert not list(tree.nodes()) and tree.version > version


def test_parts_of_a_split_node_share_their_bytes() -> None:
    tree = Tree(1)
    end = held(tree, 0, tokens(SYSTEM)).end
    assert end is not None
    seg = saved(tree, end, file="a")
    assert seg.is_only_on_disk_for(end)
    held(tree, 1, tokens((1, 30), OTHER))
    assert len(seg.nodes) == 2 and seg.last is end
    assert segments_of(end.up()) == path_segments(end) == [seg]
    assert not seg.is_only_on_disk_for(end), "the node is only a part of its positions"
