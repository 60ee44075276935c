"""The instructor program that tests/gateway/test_instructor.py runs.

It is not a test, because instructor needs another jiter than the current openai.
"""

from __future__ import annotations

import json
import sys

import instructor
import openai
from pydantic import BaseModel, Field


class Form(BaseModel):
    """Age and kind of an animal."""

    age: int = Field(ge=0, le=9)
    kind: str = Field(pattern="^(cat|dog)$")


class Chat(BaseModel):
    text: str = Field(max_length=20)


ASKED = [{"role": "user", "content": "A cat of three years"}]


def client_of(url: str, mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=mode)


def ask(url: str, mode: instructor.Mode, made: type[BaseModel], **fields):
    client = client_of(url, mode)
    return client.create(
        **{
            "model": "any",
            "messages": ASKED,
            "response_model": made,
            "max_tokens": 400,
            "temperature": 0,
            "max_retries": 0,
            **fields,
        }
    )


def forms(url: str) -> object:
    """Request forms by a schema of the answer, and by a tool."""
    modes = (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT)
    return {mode.name: ask(url, mode, Form).model_dump() for mode in modes}


def stream(url: str) -> object:
    client = client_of(url, instructor.Mode.JSON_SCHEMA)
    parts = client.create_partial(
        model="any", messages=ASKED, response_model=Form, max_tokens=400, temperature=0, max_retries=0
    )
    return [part.model_dump() for part in parts]


def error(url: str) -> object:
    try:
        ask(url, instructor.Mode.JSON_SCHEMA, Form, temperature=1000)
    except Exception as caught:
        return str(caught)
    return None


def endless(url: str) -> object:
    for _ in client_of(url, instructor.Mode.JSON_SCHEMA).create_partial(
        model="any", messages=ASKED, response_model=Chat, max_tokens=2000, max_retries=0
    ):
        print("begun", flush=True)
    return None


if __name__ == "__main__":
    print(json.dumps({"forms": forms, "stream": stream, "error": error, "endless": endless}[sys.argv[1]](sys.argv[2])))
