from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uma_core.errors import ErrorCode, UmaError
from uma_core.protocol import messages
from uma_core.protocol.fields import Field, Kind
from uma_core.protocol.ops import OPS
from uma_core.types import Infill, Priority, Request, SamplingParams, Slo


def decode(payload: bytes) -> messages.Message:
    value = messages.parse_object(payload)
    return messages.decode(value, messages.decode_id(value))


def refuse(payload: bytes) -> UmaError:
    with pytest.raises(UmaError) as caught:
        decode(payload)
    return caught.value


def test_a_small_request_is_all_defaults():
    message = decode(b'{"id":"a","prompt":"hi"}')
    assert message.op.name == "generate"
    assert message.request == Request(id="a", prompt="hi")


def test_every_field_arrives():
    message = decode(
        b'{"type":"generate","id":7,"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"temperature":1,"top_p":0.5,"top_k":2,'
        b'"min_p":0.1,"repeat_penalty":1.1,"repeat_last_n":8,"seed":9,"stop":"x","stream":false,"priority":"background",'
        b'"slo":{"target_ttft_ms":1.5,"target_tbt_ms":2},"cache_prompt":false,"ignore_eos":true,"timeout_ms":250,"overflow":"shift",'
        b'"metadata":{"k":1},"x_note":[]}'
    )
    assert (message.id, message.wire_id) == ("7", 7)
    assert message.request == Request(
        id="7",
        messages=({"role": "user", "content": "hi"},),
        max_tokens=3,
        sampling=SamplingParams(1.0, 2, 0.5, 0.1, 1.1, 8, 9),
        stop=("x",),
        stream=False,
        priority=Priority.BACKGROUND,
        slo=Slo(1_500_000, 2_000_000),
        cache_prompt=False,
        ignore_eos=True,
        timeout_ns=250_000_000,
        overflow="shift",
        metadata={"k": 1},
    )


@pytest.mark.parametrize("ms", ["5e-324", "1e-9", "0.0000001"])
def test_the_shortest_time_is_not_none(ms):
    request = decode(f'{{"prompt":"a","timeout_ms":{ms},"slo":{{"target_ttft_ms":{ms}}}}}'.encode()).request
    assert (request.timeout_ns, request.slo.ttft_ns) == (1, 1)


def test_null_is_absent():
    fields = ",".join(f'"{field.name}":null' for field in OPS["generate"].fields if field.name != "prompt")
    assert decode(f'{{"id":"a","type":null,"prompt":"hi",{fields}}}'.encode()).request == Request(id="a", prompt="hi")


@pytest.mark.parametrize(
    ("fragment", "field"),
    [
        ('"prompt":5', "prompt"),
        ('"prompt":""', "prompt"),
        ('"prompt":"a","tokens":[1]', "tokens"),
        ('"prompt":"a","messages":[{"role":"user","content":"a"}]', "messages"),
        ('"max_tokens":1', "prompt"),
        ('"tokens":[]', "tokens"),
        ('"tokens":[1.5]', "tokens"),
        ('"tokens":[true]', "tokens"),
        ('"tokens":[-1]', "tokens"),
        ('"tokens":[2147483648]', "tokens"),
        ('"messages":[]', "messages"),
        ('"messages":["a"]', "messages[0]"),
        ('"messages":[{"role":"user","content":"a"},{"content":"a"}]', "messages[1].role"),
        ('"messages":[{"role":"user","content":1}]', "messages[0].content"),
        ('"prompt":"a","max_tokens":-1', "max_tokens"),
        ('"prompt":"a","max_tokens":1.0', "max_tokens"),
        ('"prompt":"a","max_tokens":true', "max_tokens"),
        ('"prompt":"a","max_tokens":"5"', "max_tokens"),
        ('"prompt":"a","temperature":-0.1', "temperature"),
        ('"prompt":"a","temperature":1' + "0" * 400, "temperature"),
        ('"prompt":"a","top_p":0', "top_p"),
        ('"prompt":"a","top_p":1.01', "top_p"),
        ('"prompt":"a","seed":4294967296', "seed"),
        ('"prompt":"a","stop":[""]', "stop"),
        ('"prompt":"a","stop":[1]', "stop"),
        ('"prompt":"a","stop":' + json.dumps(["x"] * 33), "stop"),
        ('"prompt":"a","stream":1', "stream"),
        ('"prompt":"a","priority":"urgent"', "priority"),
        ('"prompt":"a","slo":1', "slo"),
        ('"prompt":"a","slo":{"target_tbt_ms":"fast"}', "slo.target_tbt_ms"),
        ('"prompt":"a","overflow":"panic"', "overflow"),
        ('"prompt":"a","metadata":[]', "metadata"),
        ('"prompt":"a","type":5', "type"),
        ('"type":"cancel","conn":-1', "conn"),
        ('"type":"metrics","format":"xml"', "format"),
        ('"type":"drain","timeout_ms":-1', "timeout_ms"),
    ],
)
def test_a_wrong_field_is_named(fragment, field):
    error = refuse(f'{{"id":"a",{fragment}}}'.encode())
    assert error.error is ErrorCode.BAD_REQUEST
    assert error.detail["field"] == field
    assert f"`{field}`" in error.message


def test_no_input_is_missing_and_two_conflict():
    assert refuse(b'{"max_tokens":1}').message.startswith(
        "`prompt` is required: give exactly one of `prompt`, `tokens`"
    )
    assert refuse(b'{"prompt":"a","tokens":[1]}').message.startswith("`tokens` conflicts: give exactly one of `prompt`")


def test_inputs_arrive():
    def request(**fields):
        return decode(json.dumps(fields).encode()).request

    assert request(prompt=["a", 5, "b"]).prompt == ("a", 5, "b")
    assert request(prompt="a", suffix="z").suffix == "z"
    asked = {"prefix": "a", "suffix": "", "extra": [{"filename": "f.py", "text": "x"}]}
    assert request(infill=asked).infill == Infill("a", "", (("f.py", "x"),))
    assert request(prompt="a", n=3, best_of=4, stream=False, echo=True, max_tokens=0).max_tokens == 0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", -1]}, "prompt[1]"),
        ({"prompt": ["a", 1.5]}, "prompt[1]"),
        ({"prompt": "a", "infill": {"prefix": "", "suffix": ""}}, "infill"),
        ({"infill": {"prefix": "a"}}, "infill.suffix"),
        ({"infill": {"prefix": "a", "suffix": "b", "extra": [{"filename": "x"}]}}, "infill.extra[0].text"),
        (
            {"infill": {"prefix": "a", "suffix": "b", "extra": [{"filename": "x", "text": "", "nam": 1}]}},
            "infill.extra[0].nam",
        ),
        ({"infill": {"prefix": "a", "suffix": "b", "extra": "x"}}, "infill.extra"),
        ({"infill": {"prefix": "a", "suffix": "b", "extra": ["x"]}}, "infill.extra[0]"),
        ({"messages": [{"role": "user", "content": "x"}], "suffix": "z"}, "suffix"),
        ({"messages": [{"role": "user", "content": "x"}], "echo": True}, "echo"),
        ({"infill": {"prefix": "a", "suffix": "b"}, "echo": True}, "echo"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 1025}, "n"),
        ({"prompt": "a", "n": 3, "best_of": 2, "stream": False}, "best_of"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
    ],
)
def test_a_wrong_input_is_named(fields, field):
    error = refuse(json.dumps(fields).encode())
    assert (error.error, error.detail["field"]) == (ErrorCode.BAD_REQUEST, field)


@pytest.mark.parametrize(
    ("payload", "field", "nearest"),
    [
        (b'{"prompt":"a","max_token":5}', "max_token", "max_tokens"),
        (b'{"prompt":"a","slo":{"target_ttf_ms":5}}', "slo.target_ttf_ms", "slo.target_ttft_ms"),
        (b'{"prompt":"a","target_tbt_ms":5}', "target_tbt_ms", "slo.target_tbt_ms"),
        (b'{"prompt":"a","tpye":"generate"}', "tpye", "type"),
        (b'{"prompt":"a","qqqq":null}', "qqqq", None),
        (b'{"type":"status","prompt":"a"}', "prompt", None),
        (b'{"type":"reload","modle":"a"}', "modle", "model"),
        (b'{"id":1,"type":"cancel","conns":1}', "conns", "conn"),
        (b'{"prompt":"a","' + b"x" * 100_000 + b'":1}', "x" * 64, None),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(payload, field, nearest):
    error = refuse(payload)
    assert error.error is ErrorCode.BAD_REQUEST
    assert (error.detail["field"], error.detail.get("nearest")) == (field, nearest)
    assert f"`{field}`" in error.message
    assert nearest is None or f"`{nearest}`" in error.message
    assert len(error.message) < 200


NEEDED = {
    "generate": {"prompt": "x", "stream": False},
    "embed": {"input": "x"},
    "rerank": {"query": "x", "documents": ["y"]},
    "tokenize": {"content": "x"},
    "detokenize": {"tokens": [1]},
    "count": {"prompt": "x"},
    "prefix_hashes": {"prompt": "x", "key": "0" * 32},
    "digest": {"key": "0" * 32},
    "apply_template": {"messages": [{"role": "user", "content": "x"}]},
}


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_operation_refuses_unknown_fields_and_ignores_the_clients_own(op):
    values = {"type": op, "id": "a", **NEEDED.get(op, {})}
    assert refuse(json.dumps({**values, "surplus": 1}).encode()).detail["field"] == "surplus"
    assert decode(json.dumps({**values, "x_trace": {"surplus": 1}}).encode()).op.name == op


def test_metadata_and_messages_are_the_clients():
    message = decode(
        b'{"messages":[{"role":"user","content":"a","name":"b"}],"metadata":{"c":1,"d":"e","f":true},"slo":{"x_d":1}}'
    )
    assert message.request.metadata == {"c": 1, "d": "e", "f": True}
    assert message.request.messages == ({"role": "user", "content": "a", "name": "b"},)


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"a": "x" * 513}, "metadata.a"),
        ({"a": {"b": 1}}, "metadata.a"),
        ({"a": None}, "metadata.a"),
        ({"a" * 65: 1}, "metadata"),
        ({str(i): i for i in range(17)}, "metadata"),
    ],
)
def test_metadata_is_small_and_flat(metadata, field):
    assert refuse(json.dumps({"prompt": "a", "metadata": metadata}).encode()).detail["field"] == field


@pytest.mark.parametrize("id", ['""', '"' + "x" * 129 + '"', "1.5", "true", "[]", "9223372036854775808"])
def test_a_wrong_id_is_named(id):
    assert refuse(f'{{"id":{id},"prompt":"a"}}'.encode()).detail["field"] == "id"


def test_cancel_needs_an_id():
    assert refuse(b'{"type":"cancel"}').detail["field"] == "id"


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", ErrorCode.INVALID_JSON),
        (b"[]", ErrorCode.INVALID_JSON),
        (b'"a"', ErrorCode.INVALID_JSON),
        (b"{", ErrorCode.INVALID_JSON),
        (b'{"a":1}x', ErrorCode.INVALID_JSON),
        (b'{"a":NaN}', ErrorCode.INVALID_JSON),
        (b'{"a":-Infinity}', ErrorCode.INVALID_JSON),
        (b'{"a":1e999}', ErrorCode.INVALID_JSON),
        (b'{"a":' + b"1" * 5000 + b"}", ErrorCode.INVALID_JSON),
        (b'{"a":' + b"[" * 100_000, ErrorCode.INVALID_JSON),
        (b'\xef\xbb\xbf{"a":1}', ErrorCode.INVALID_JSON),
        (b'{"a":"\xff"}', ErrorCode.BAD_UTF8),
        (b'{"a":"\0"}', ErrorCode.BAD_UTF8),
        (b'{"a":"\\u0000"}', ErrorCode.BAD_UTF8),
        (b'{"\\u0000":1}', ErrorCode.BAD_UTF8),
        (b'{"a":[{"b":"\\ud800"}]}', ErrorCode.BAD_UTF8),
        ('{"a":1}'.encode("utf-16"), ErrorCode.BAD_UTF8),
        (b'{"x_a":1,"x_a":1}', ErrorCode.BAD_REQUEST),
        (b'{"a":[{"\\u0000":1,"\\u0000":2}]}', ErrorCode.BAD_UTF8),
        (b'{"type":"explode"}', ErrorCode.UNKNOWN_TYPE),
    ],
)
def test_what_is_no_request_is_refused(payload, code):
    assert refuse(payload).error is code


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"id":7,"prompt":"a","max_tokens":1,"max_tokens":9}', "max_tokens"),
        ('{"id":7,"messages":[{"role":"user","content":"a","content":"b"}]}', "content"),
        (
            '{"id":7,"prompt":"a","constraint":{"json_schema":{"properties":{"b":{"type":"null","type":"null"}}}}}',
            "type",
        ),
        ('{"prompt":"a","id":7,"id":7}', "id"),
        ('{"id":7,"prompt":"a","' + "n" * 900 + '":1,"' + "n" * 900 + '":1}', "n" * 64),
    ],
)
def test_a_name_that_appears_twice_is_refused_under_the_request_s_id(text, name):
    unfit = messages.read(text)
    assert isinstance(unfit, messages.Unfit) and unfit.wire_id == 7
    assert (unfit.error.error, unfit.error.detail["field"]) == (ErrorCode.BAD_REQUEST, name)


def test_escaped_surrogate_pairs_are_text():
    assert decode(b'{"prompt":"\\ud83d\\ude00"}').request.prompt == "\U0001f600"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
known_names = st.sampled_from(sorted({field.name for op in OPS.values() for field in op.fields} | {"id", "type"}))


@given(st.dictionaries(known_names, json_values, max_size=6), st.sampled_from(sorted(OPS)))
def test_any_values_give_a_message_or_a_coded_error(values, op):
    known = {"id", "type", *(field.name for field in OPS[op].fields)}
    payload = json.dumps({"type": op, **{k: v for k, v in values.items() if k in known}}).encode(
        "utf-8", "surrogatepass"
    )
    try:
        message = decode(payload)
    except UmaError as error:
        assert error.error.spec.name in ("bad_request", "invalid_json", "bad_utf8", "unknown_type")
    else:
        assert set(message.args) == {field.name for field in message.op.fields}


def leaf_fields():
    return [(op.name, field) for op in OPS.values() for field in op.fields if field.kind in (Kind.INTEGER, Kind.NUMBER)]


@pytest.mark.parametrize(
    ("op", "field"), leaf_fields(), ids=lambda value: value.name if isinstance(value, Field) else value
)
def test_ranges_are_what_is_declared(op, field):
    values = {"type": op, "id": "a", **NEEDED.get(op, {})}
    step = 1 if field.kind is Kind.INTEGER else 1e-6
    for bound, outside in ((field.low, -1), (field.high, 1)):
        if bound is None or (field.is_open_low and outside < 0):
            continue
        assert math.isclose(decode(json.dumps({**values, field.name: bound}).encode()).args[field.name], bound)
        wrong = bound + outside * (step if field.kind is Kind.INTEGER else max(step, abs(bound) * 1e-3))
        assert refuse(json.dumps({**values, field.name: wrong}).encode()).detail["field"] == field.name


@pytest.mark.parametrize("name", ["stop", "banned_strings"])
def test_the_length_of_each_text_is_declared_and_checked(name):
    field = next(field for field in OPS["generate"].fields if field.name == name)
    for texts in (["a", "b" * (field.each_high + 1)], "b" * (field.each_high + 1)):
        error = refuse(json.dumps({"prompt": "hi", name: texts}).encode())
        assert error.error is ErrorCode.BAD_REQUEST
        assert error.detail["field"] == f"{name}[{len(texts) - 1 if isinstance(texts, list) else 0}]"
    assert decode(json.dumps({"prompt": "hi", name: ["b" * field.each_high]}).encode()).request
