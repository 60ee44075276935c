"""A prefix that is being saved is protected until nobody needs it."""

from __future__ import annotations

from tests.cache.paths import held, tokens
from uma_core.cache.radix import Tree
from uma_core.cache.saving import Saving


def test_a_prefix_is_protected_until_it_is_saved() -> None:
    tree = Tree(1)
    resident = held(tree, 0, tokens((1, 100)))
    end = resident.end
    assert end is not None
    saving = Saving(tree, end)
    resident.cut(0)
    assert list(tree.nodes()) == [end] and saving.wants(end)
    saving.stop()
    saving.stop()  # a clear, and then the end of the transfer
    assert not list(tree.nodes()) and not saving.wants(end) and end.n_kept == 0


def test_what_somebody_else_keeps_is_wanted_after_a_clear() -> None:
    tree = Tree(1)
    end = held(tree, 0, tokens((1, 100))).end
    assert end is not None
    saving = Saving(tree, end)
    end.keep()
    saving.stop()
    saving.stop()
    assert saving.wants(end), "what was undone twice would be the other one's"
    tree.unkeep(end)
    assert not saving.wants(end)
