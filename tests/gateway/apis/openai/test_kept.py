"""Pages of what is kept."""

from __future__ import annotations

import pytest

from uma_gateway.apis.openai.kept import _page, list_object
from uma_gateway.errors import GatewayError

LISTED = [{"id": f"msg_{i}"} for i in range(30)]


def test_pages_follow_one_another_and_hold_everything_once() -> None:
    seen, query = [], {"limit": "7"}
    while True:
        page, has_more = _page(LISTED, query)
        seen += page
        if not has_more:
            break
        query = {"limit": "7", "after": page[-1]["id"]}
    assert seen == LISTED


def test_without_a_limit_a_page_has_twenty() -> None:
    page, has_more = _page(LISTED, {})
    assert (len(page), has_more) == (20, True)
    assert _page(LISTED, {"after": "msg_29"}) == ([], False)
    assert _page(LISTED, {"limit": "30"}) == (LISTED, False)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "٣"}, "limit"),
        ({"after": "msg_30"}, "after"),
        ({"after": ""}, "after"),
    ],
)
def test_a_wrong_query_is_named(query: dict[str, str], param: str) -> None:
    with pytest.raises(GatewayError) as caught:
        _page(LISTED, query)
    assert caught.value.param == param


def test_an_empty_list_has_no_ends() -> None:
    assert list_object([]) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    told = list_object(LISTED[:2], has_more=True)
    assert (told["first_id"], told["last_id"], told["has_more"]) == ("msg_0", "msg_1", True)
