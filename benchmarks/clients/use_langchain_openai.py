"""LangChain: chats, streams with usage, tools and structured output, over /v1/chat/completions and /v1/responses."""

import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class Trip(BaseModel):
    """A trip."""

    city: Literal["Bern", "Uri"]
    days: int = Field(ge=1, le=9)


@tool
def weather(city: Literal["Bern", "Uri"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


for responses in (False, True):
    llm = ChatOpenAI(
        base_url=f"{sys.argv[1]}/v1",
        model="tiny",
        max_tokens=60,
        temperature=0.7,
        use_responses_api=responses,
        stream_usage=True,
        max_retries=0,
    )
    answer = llm.invoke([("system", "Be brief."), ("user", "Hi")])
    assert answer.text
    assert answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] > 0
    chunks = list(llm.stream("Hi"))
    assert "".join(chunk.text for chunk in chunks)
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0

    called = llm.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False).invoke("Weather?")
    assert [call["name"] for call in called.tool_calls] == ["weather"]
    result = weather.invoke(called.tool_calls[0])
    assert isinstance(result, ToolMessage)
    assert llm.bind_tools([weather]).invoke([HumanMessage("Weather?"), called, result]).content is not None

    for method in ("json_schema", "function_calling"):
        trip = llm.with_structured_output(Trip, method=method).invoke("A trip")  # type: ignore[arg-type]
        assert isinstance(trip, Trip), trip
print("chat and responses: text, stream, tools, structured output")
