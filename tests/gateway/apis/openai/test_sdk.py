"""OpenAI's own client, unmodified: requests work, and errors raise the right exception."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.daemon.support import eventually
from tests.gateway.openai_client import client_of
from tests.gateway.support import n_busy
from tests.late import Late
from uma_gateway.keys import entry, new_key

openai = Late("openai")

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def client(gateway):
    with client_of(gateway) as client:
        yield client


def test_models(client):
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_chat_whole_and_streamed(client):
    ask = {"model": "any", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 12 and chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_chat_stream_helper(client):
    ask = {"model": "any", "messages": HELLO, "max_tokens": 40, "temperature": 0}
    text = client.chat.completions.create(**ask).choices[0].message.content
    with client.chat.completions.stream(**ask, stop=text[9:12]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == text[: text.index(text[9:12])]


def test_log_probabilities(client):
    choice = client.chat.completions.create(
        model="any", messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2
    ).choices[0]
    assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [2, 2, 2]
    older = client.completions.create(model="any", prompt="Hello", max_tokens=3, logprobs=2, temperature=0).choices[0]
    assert len(older.logprobs.tokens) == 3 and len(older.logprobs.top_logprobs[0]) == 2


def test_completions_whole_and_streamed(client):
    ask = {"model": "any", "prompt": "Once", "max_tokens": 5, "temperature": 0}
    text = client.completions.create(**ask).choices[0].text
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**ask, stream=True)) == text


def test_responses_whole_streamed_and_continued(client):
    ask = {"model": "any", "input": "Hello", "max_output_tokens": 7, "temperature": 0}
    whole = client.responses.create(**ask)
    type(whole).model_validate_json(whole.model_dump_json(warnings=False))  # it has every field of its type
    assert len(whole.output_text) == 7 and whole.status == "incomplete"
    with client.responses.stream(**ask, extra_body={"stop": whole.output_text[4:6]}) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        ended = stream.get_final_response()
    assert deltas == ended.output_text == whole.output_text[: whole.output_text.index(whole.output_text[4:6])]
    assert ended.status == "completed"
    more = client.responses.create(**{**ask, "input": "More"}, previous_response_id=whole.id)
    assert more.previous_response_id == whole.id and more.usage.input_tokens > whole.usage.input_tokens
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    assert len(client.responses.input_items.list(whole.id).data) == 1
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)


def test_wrong_requests_raise_what_they_should(client, fake):
    n_ctx = fake.ask("props")["n_ctx_seq"]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x" * n_ctx * 2}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="any", messages=HELLO, temperature=1000)
    assert caught.value.param == "temperature"
    assert caught.value.request_id.startswith("req_")


def test_an_error_in_mid_stream_raises(client, levers):
    levers(statuses=["OK"] * 4 + ["FATAL"])
    with pytest.raises(openai.APIError) as caught:
        list(client.chat.completions.create(model="any", messages=HELLO, max_tokens=50, stream=True))
    assert caught.value.code == "decode_failed"


def test_keys(serve, before, folder):
    key = new_key()
    (folder / "keys.yaml").write_text(entry("alice", key))
    gateway = before(serve(), "--api-key-file", str(folder / "keys.yaml"))
    assert client_of(gateway, api_key=key).models.list().data
    with pytest.raises(openai.AuthenticationError):
        client_of(gateway, api_key="wrong").models.list()


def test_leaving_a_stream_cancels_it(client, fake, levers):
    levers(step_ms=20)
    stream = client.chat.completions.create(model="any", messages=HELLO, max_tokens=1000, stream=True)
    next(iter(stream))
    assert n_busy(fake) == 1
    stream.close()
    eventually(lambda: n_busy(fake) == 0)


def test_a_time_out_of_the_client_cancels(gateway, fake, levers):
    levers(step_ms=20)
    with client_of(gateway, timeout=0.5) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="any", messages=HELLO, max_tokens=1000, extra_body={"ignore_eos": True})
    eventually(lambda: n_busy(fake) == 0)


def test_a_full_queue_is_retried_after_the_time_that_it_says(serve, before):
    daemon = serve("--parallel", "1", "--queue-interactive", "1", "--queue-background", "1")
    gateway = before(daemon)
    daemon.pull(step_ms=5)
    fill = {"model": "any", "messages": HELLO, "max_tokens": 60, "extra_body": {"ignore_eos": True}}
    with client_of(gateway) as client:
        threads = [threading.Thread(target=lambda: client.chat.completions.create(**fill)) for _ in range(2)]
        for n, thread in enumerate(threads, 1):
            thread.start()
            eventually(lambda n=n: n_busy(daemon) == n)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**fill)
        assert int(caught.value.response.headers["retry-after-ms"]) > 0
        patient = client.with_options(max_retries=5)
        assert patient.chat.completions.create(**fill).usage.completion_tokens == 60
        for thread in threads:
            thread.join()


def test_many_streams_at_once(gateway):
    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        text = ""
        stream = await client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": f"prompt {number % 4}"}],
            max_tokens=10,
            temperature=0,
            stream=True,
        )
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, n) for n in range(24)))

    texts = asyncio.run(all_of_them())
    assert all(len(text) == 10 for text in texts)
    assert [texts[n] for n in range(4)] * 6 == texts


def test_what_it_says_on_a_real_model(tiny_gateway):
    with client_of(tiny_gateway) as client:
        ask = {"model": "any", "messages": HELLO, "max_tokens": 24, "temperature": 0}
        whole = client.chat.completions.create(**ask)
        assert whole.choices[0].message.content.strip() and whole.model == "any"
        chunks = client.chat.completions.create(**ask, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
