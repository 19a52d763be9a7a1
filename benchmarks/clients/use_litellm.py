"""LiteLLM: the provider-neutral calls, over chats, /v1/responses and /v1/messages."""

import asyncio
import sys
from typing import Any

import litellm
from pydantic import BaseModel

URL = sys.argv[1]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bern", "Uri"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
MESSAGES = [{"role": "user", "content": "Hi"}]


class Trip(BaseModel):
    city: str


def ask(model: str, base: str, **fields: Any) -> Any:
    return litellm.completion(
        model=model, api_base=base, api_key="key", messages=MESSAGES, max_tokens=60, **fields
    )


for model, base in (("hosted_vllm/tiny", f"{URL}/v1"), ("openai/tiny", f"{URL}/v1"), ("anthropic/tiny", URL)):
    answer = ask(model, base)
    assert answer.choices[0].message.content, model
    assert answer.usage.completion_tokens > 0
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(model, base, stream=True)]
    assert "".join(pieces), model
    called = ask(model, base, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert called.choices[0].message.tool_calls[0].function.name == "weather", model
    assert called.choices[0].finish_reason == "tool_calls"
structured = ask("hosted_vllm/tiny", f"{URL}/v1", response_format=Trip, temperature=0.5)
assert Trip.model_validate_json(structured.choices[0].message.content)
response = litellm.responses(
    model="openai/tiny", api_base=f"{URL}/v1", api_key="key", input="Hi", max_output_tokens=9
)
assert response.output
message: Any = asyncio.run(
    litellm.anthropic.messages.acreate(
        model="anthropic/tiny", api_base=URL, api_key="key", messages=MESSAGES, max_tokens=9
    )
)
assert message["content"]
print("hosted_vllm, openai, anthropic: text, stream, tools; responses, messages, response_format")
