"""The digest of the cache's content: the chain of hashes, who may see them, and what has changed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tests.cache.world import World
from uma_core.cache.digest import LOG, PAGE, Digester, Digesters, held, page_hashes
from uma_core.cache.settings import CacheSettings
from uma_core.engine.fake.engine import FakeModel

KEY = bytes(range(32))
MODEL = FakeModel(n_seq_max=3, n_ctx=3072, kv_bytes_per_cell=64)


def text(n: int, seed: int = 0) -> list[int]:
    return [3 + (i * 7 + seed * 13 + i // 50) % 90 for i in range(n)]


@pytest.fixture
def world() -> World:
    return World(MODEL, CacheSettings(is_on=True, ram_bytes=1 << 20))


def whole(world: World, uid: int = 1, n_most: int = 1000, key: bytes = KEY) -> set[str]:
    reply = Digester(key, n_most, 1).tell(held(world.cache, uid), None)
    assert reply["is_whole"] and not reply["removed"]
    return set(reply["added"])


def test_the_chain_is_what_the_protocol_says() -> None:
    tokens = text(PAGE * 2 + 5)
    link = bytes(8)
    for page, found in enumerate(page_hashes(tokens, KEY)):
        data = np.array(tokens[page * PAGE : (page + 1) * PAGE], "<i4").tobytes()
        link = hashlib.blake2b(link + data, digest_size=8, key=KEY).digest()
        assert found == link.hex()
    assert len(page_hashes(tokens, KEY)) == 2
    assert page_hashes(tokens[: PAGE - 1], KEY) == []


def test_a_hash_stands_for_everything_before_its_page_and_depends_on_the_key() -> None:
    tokens, other = text(PAGE * 3), text(PAGE * 3)
    other[0] += 1
    assert not set(page_hashes(tokens, KEY)) & set(page_hashes(other, KEY))
    assert not set(page_hashes(tokens, KEY)) & set(page_hashes(tokens, bytes(32)))


def test_what_was_read_is_in_the_digest_and_nothing_else(world: World) -> None:
    tokens = text(300)
    final = world.ask("a", tokens, n=8)
    found = whole(world)
    assert set(page_hashes(tokens, KEY)) == found
    assert final.usage["prompt_tokens"] == 300


def test_what_a_digest_promises_is_there(world: World) -> None:
    """The prompts branch, lose their sequences, and come back."""
    shared = text(200)
    prompts = [shared + text(150 + 40 * i, seed=i + 1) for i in range(7)]
    for i, prompt in enumerate(prompts):
        world.ask(f"r{i}", prompt)
    for i, prompt in enumerate(prompts):
        found = whole(world)
        promised = PAGE * sum(page in found for page in page_hashes(prompt, KEY))
        assert promised >= 192
        world.ask(f"again{i}", prompt)
        assert world.cached(f"again{i}") >= min(promised, len(prompt) - 1)


def test_another_users_prompts_are_not_in_it(world: World) -> None:
    world.ask("a", text(300), uid=1)
    world.ask("b", text(300, seed=5), uid=2)
    assert whole(world, uid=1) == set(page_hashes(text(300), KEY))
    assert whole(world, uid=3) == set()


def test_a_request_that_shares_nothing_is_not_in_it(world: World) -> None:
    world.ask("a", text(300), cache_prompt=False)
    assert whole(world) == set()


def test_the_most_recently_used_come_first(world: World) -> None:
    for i in range(3):
        world.ask(f"r{i}", text(200, seed=i))
    assert whole(world, n_most=3) == set(page_hashes(text(200, seed=2), KEY))
    assert whole(world, n_most=0) == set()


def test_differences_add_up_to_the_whole(world: World) -> None:
    digester = Digester(KEY, 1000, 1)
    known: set[str] = set()
    since, n_whole = None, 0
    for i in range(30):
        world.ask(f"r{i}", text(100 + 37 * (i % 5), seed=i % 4))
        reply = digester.tell(held(world.cache, 1), since)
        if reply["is_whole"]:
            known, n_whole = set(), n_whole + 1
        known = (known - set(reply["removed"])) | set(reply["added"])
        since = reply["generation"]
        assert known == whole(world)
    assert n_whole == 1
    again = digester.tell(held(world.cache, 1), since)
    assert (again["generation"], again["is_whole"], again["added"], again["removed"]) == (since, False, [], [])


def test_an_unknown_generation_gets_the_whole(world: World) -> None:
    digester = Digester(KEY, 1000, 10**6)
    generations = []
    for i in range(LOG + 3):
        world.ask(f"r{i}", text(64, seed=i))
        generations.append(digester.tell(held(world.cache, 1), None)["generation"])
    parts = held(world.cache, 1)
    assert digester.tell(parts, generations[0])["is_whole"]
    assert not digester.tell(parts, generations[-2])["is_whole"]
    assert digester.tell(parts, 5)["is_whole"] and digester.tell(parts, generations[-1] + 1)["is_whole"]


def test_askers_do_not_get_each_others_generations() -> None:
    ticks = iter(range(100, 200, 10))
    digesters = Digesters(lambda: next(ticks))
    first = digesters.of(1, KEY, 10)
    assert digesters.of(1, KEY, 10) is first
    others = [digesters.of(2, KEY, 10), digesters.of(1, bytes(32), 10), digesters.of(1, KEY, 11)]
    assert len({id(each) for each in (first, *others)}) == 4
    for i in range(5):
        digesters.of(i + 10, KEY, 1)
    assert digesters.of(1, KEY, 10) is not first, "the longest unused one went"
