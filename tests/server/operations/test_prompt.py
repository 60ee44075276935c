"""The tokens of prompts and chats."""

from __future__ import annotations

import pytest

from uma_core.errors import ErrorCode, UmaError
from uma_core.server.operations import prompt
from uma_core.server.operations.prompt import apply_template, echo_text, encode
from uma_core.types import Request


def chat(*contents: str) -> Request:
    return Request(
        id="a",
        messages=tuple({"role": role, "content": text} for role, text in zip("susasasa", contents, strict=False)),
    )


def test_tokens_pass_as_they_are(fake_text):
    assert encode(fake_text, Request(id="a", tokens=(5, 6))).tokens == [5, 6]
    assert fake_text.calls == []


def test_a_prompt_gets_special_tokens(fake_text):
    assert encode(fake_text, Request(id="a", prompt="hi")).tokens == [1, *b"hi"]


def test_parts_of_a_prompt_follow_each_other(fake_text):
    assert encode(fake_text, Request(id="a", prompt=("ab", 7, "c"))).tokens == [1, *b"ab", 7, *b"c"]
    ids_first = encode(fake_text, Request(id="a", prompt=(7, "c"))).tokens
    assert ids_first == [7, *b"c"], "nothing is put before ids"


def test_a_prompt_is_echoed_as_it_came(fake_text):
    assert echo_text(fake_text, Request(id="a", prompt="héy")) == "héy"
    assert echo_text(fake_text, Request(id="a", prompt=("ab", 67, "é"))) == "abCé"
    assert echo_text(fake_text, Request(id="a", tokens=tuple("é".encode()))) == "é"


@pytest.mark.parametrize("given", [{"tokens": (97, 256)}, {"prompt": ("ab", 256)}])
def test_what_is_no_token_cannot_be_echoed(fake_text, given):
    with pytest.raises(UmaError) as refused:
        echo_text(fake_text, Request(id="a", **given))
    assert (refused.value.error, refused.value.detail["field"]) == (ErrorCode.BAD_REQUEST, "tokens")


def test_a_template_that_writes_bos_is_not_given_a_second_one(fake_text):
    assert encode(fake_text, chat("x")).tokens == list(b"[B]<s>x<a>")
    fake_text.template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert encode(fake_text, chat("x")).tokens == [1, *b"x"]


def test_message_ends_are_token_counts(fake_text):
    tokens, ends = encode(fake_text, chat("sys", "hi"))
    assert [bytes(tokens[:end]) for end in ends] == [b"[B]<s>sys", b"[B]<s>sys<u>hi"]


def test_message_ends_count_the_bos_that_the_tokeniser_adds(fake_text):
    fake_text.template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    tokens, ends = encode(fake_text, chat("x", "yy"))
    assert (tokens, ends) == ([1, *b"<x><yy>"], (4, 8))


def test_no_message_ends_where_pieces_do_not_add_up(fake_text):
    plain = fake_text.tokenize
    fake_text.tokenize = lambda text, *rest: [len(text)] if len(text) < 12 else plain(text, *rest)
    assert encode(fake_text, chat("sys", "hi")).message_ends == ()


def test_templates_that_refuse_a_prefix_still_work(fake_text):
    fake_text.template = (
        "{% if messages | length == 1 %}{{ raise_exception('too short') }}{% endif %}{% for m in "
        "messages %}{{ m.content }}{% endfor %}"
    )
    assert encode(fake_text, chat("ab", "cd")) == ([1, *b"abcd"], (5,))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{% for %}", "the model's chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),
        ("{{ 1 / 0 }}", "refuses"),
        ("{% for i in range(10**9) %}{% endfor %}", "refuses"),
    ],
)
def test_what_a_template_cannot_do(fake_text, template, message):
    fake_text.template = template
    with pytest.raises(UmaError, match=message) as caught:
        encode(fake_text, chat("x"))
    assert caught.value.error is ErrorCode.TEMPLATE_FAILED


def test_a_template_that_never_ends_is_told_so(fake_text, monkeypatch):
    monkeypatch.setattr(prompt, "TEMPLATE_S", 0.05)
    loops = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
    fake_text.template = "{{ messages[0].content }}" + loops
    for work in (lambda: encode(fake_text, chat("x")), lambda: apply_template(fake_text, [{"content": "x"}], True)):
        with pytest.raises(UmaError, match="it computes for more than") as caught:
            work()
        assert caught.value.error is ErrorCode.TEMPLATE_FAILED
    fake_text.template = "{{ messages[0].content }}{% if not add_generation_prompt %}" + loops + "{% endif %}"
    assert encode(fake_text, chat("x", "y")).message_ends == (), "they are only a help for the cache"


@pytest.mark.parametrize("start", ["", "{{ bos_token }}"])
def test_a_template_that_writes_nothing_is_told_so(fake_text, start):
    fake_text.template = (
        start + "{% for m in messages %}{% if m.role == 'other' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(UmaError, match="writes nothing for messages of these roles") as caught:
        encode(fake_text, chat("x"))
    assert caught.value.error is ErrorCode.TEMPLATE_FAILED


def test_a_template_that_repeats_the_messages_in_its_error_fills_no_log(fake_text):
    fake_text.template = "{{ raise_exception('No: ' ~ messages[0].content) }}"
    with pytest.raises(UmaError, match="No: xxx") as caught:
        encode(fake_text, chat("x" * 100_000))
    assert len(caught.value.message) < 600


def test_the_dialect_of_models_templates(fake_text):
    fake_text.template = (
        "{%- set ns = namespace(n=0) -%}\n"
        "{% for m in messages %}\n"
        "    {%- if loop.index0 == 1 %}{% continue %}{% endif -%}\n"
        "    {%- set ns.n = ns.n + 1 -%}\n"
        "{{ m.content | trim | tojson }}{{ strftime_now('%%') }}\n"
        "{% endfor %}\n"
        "{{ ns.n }}{{ eos_token }}"
    )
    assert bytes(encode(fake_text, chat(" <ä> ", "b", "c")).tokens[1:]).decode() == '"<ä>"%\n"c"%\n2[E]'
