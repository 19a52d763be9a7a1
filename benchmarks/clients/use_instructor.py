"""Instructor: pydantic objects by tools and by JSON."""

import contextlib
import sys
from typing import Any, Literal

import instructor
import openai
from instructor.v2.core.errors import IncompleteOutputException
from pydantic import BaseModel, ConfigDict, Field


class Trip(BaseModel):
    city: Literal["Bern", "Uri"]
    days: int = Field(ge=1, le=9)


class Anything(BaseModel):
    """`json_object` promises an object; which keys it has is the model's choice."""

    model_config = ConfigDict(extra="allow")


def create(mode: instructor.Mode, model: type[BaseModel], **fields: Any) -> BaseModel:
    openai_client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="key", max_retries=0)
    client = instructor.from_openai(openai_client, mode=mode)
    messages: Any = [{"role": "user", "content": "A trip"}]
    return client.chat.completions.create(
        model="tiny", response_model=model, messages=messages, max_retries=0, **fields
    )


for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    assert isinstance(create(mode, Trip, max_tokens=100), Trip), mode
tries = 0
for seed in range(10):  # a model of two million weights does not always come to an end
    with contextlib.suppress(IncompleteOutputException):
        tries += 1
        assert isinstance(
            create(instructor.Mode.JSON, Anything, max_tokens=300, temperature=1.5, seed=seed), Anything
        )
        break
else:
    raise AssertionError("no object in ten answers")
print(f"TOOLS, TOOLS_STRICT, JSON_SCHEMA; JSON at try {tries}, with any keys")
