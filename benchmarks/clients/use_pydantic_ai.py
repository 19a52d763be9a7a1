"""Pydantic AI: agents with tools and typed output, over the three APIs."""

import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

URL = sys.argv[1]


class Trip(BaseModel):
    city: Literal["Bern", "Uri"]
    days: Literal[1, 2, 3]


provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="key")
models = {
    "chat": OpenAIChatModel("tiny", provider=provider),
    "responses": OpenAIResponsesModel("tiny", provider=provider),
    "messages": AnthropicModel("tiny", provider=AnthropicProvider(base_url=URL, api_key="key")),
}
settings = ModelSettings(max_tokens=120, temperature=0.7, parallel_tool_calls=False)
for name, model in models.items():
    text = Agent(model, instructions="Be brief.", model_settings=settings).run_sync("Hi")
    assert text.output, name
    assert text.usage.output_tokens > 0, name
    for output in (ToolOutput(Trip), NativeOutput(Trip)):
        if name == "messages" and isinstance(output, NativeOutput):
            continue  # the client knows by the model's name whether it may ask for it
        trip = Agent(model, output_type=output, model_settings=settings).run_sync("A trip").output
        assert isinstance(trip, Trip), (name, trip)
    stream = Agent(model, model_settings=settings).run_stream_sync("Hi")
    assert "".join(stream.stream_text(delta=True, debounce_by=None)), name
print("chat, responses, messages: text, stream, typed output")
