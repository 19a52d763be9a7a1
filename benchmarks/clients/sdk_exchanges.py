"""Record what the official SDKs send and what they read, through a proxy on loopback.

    make clients CLIENTS=sdk_exchanges

It runs in an environment with `openai` and `anthropic` alone. Each answer of the engine is validated by the types of
the SDK, which checks nothing by itself. The exchanges go to a file; `tests/engine_server/test_sdk_exchanges.py` sends the
requests again and compares the answers with those that were recorded.
"""

import http.client
import http.server
import json
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import anthropic
import openai
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.message_create_params import MessageCreateParamsBase
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.exchanges import read_events, without_chance

ANSWER = "<think>\nHm\n</think>\n\nYes.\n" + "".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    for name, arguments in (("weather", '{"city": "Bern"}'), ("now", "{}"))
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"name": "weather", "description": "of a city", "input_schema": SCHEMA},
    {"name": "now", "input_schema": {"type": "object"}},
]
FUNCTIONS = [
    {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": tool["input_schema"],
        "strict": False,
    }
    for tool in TOOLS
]
USER = [{"role": "user", "content": ANSWER}]
COMMAND = "make clients CLIENTS=sdk_exchanges"
KEPT_HEADERS = ("content-type", "anthropic-version", "anthropic-beta", "x-api-key", "authorization")


class Recorder(http.server.BaseHTTPRequestHandler):
    """Passes a request on, and keeps it with its answer."""

    upstream = ""
    exchanges: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        connection = http.client.HTTPConnection(self.upstream)
        connection.request("POST", self.path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        raw = answer.read()
        headers = {name: self.headers[name] for name in KEPT_HEADERS if name in self.headers}
        stream = answer.headers["content-type"].startswith("text/event-stream")
        self.exchanges.append(
            {
                "path": urlsplit(self.path).path,
                "headers": headers,
                "request": json.loads(body),
                "status": answer.status,
                "answer": read_events(raw.decode()) if stream else json.loads(raw),
            }
        )
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers["content-type"])
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def responses(client: openai.OpenAI) -> dict[str, Callable[[], Any]]:
    create = client.responses.create
    history = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {
            "type": "function_call",
            "call_id": "c1",
            "id": "fc_1",
            "name": "weather",
            "arguments": '{"city": "Bern"}',
            "status": "completed",
        },
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]

    def streamed() -> Any:
        with client.responses.stream(model="tiny", input=ANSWER, tools=FUNCTIONS) as stream:  # type: ignore[arg-type]
            assert [event.type for event in stream][-1] == "response.completed"
            final = stream.get_final_response()
        assert [item.type for item in final.output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]

    return {
        "text": lambda: create(model="tiny", input="Hi", instructions="Be brief.", max_output_tokens=5),
        "tools": lambda: create(model="tiny", input=ANSWER, tools=FUNCTIONS, tool_choice="auto"),  # type: ignore[call-overload]
        "stream": streamed,
        "history": lambda: create(
            model="tiny", input=history, tools=FUNCTIONS, reasoning={"summary": "auto"}
        ),  # type: ignore[call-overload]
        "cut stream": lambda: list(create(model="tiny", input="Hi there", max_output_tokens=3, stream=True)),
        "refused": lambda: fails(
            400, lambda: create(model="tiny", input="Hi", previous_response_id="resp_1")
        ),
        "refused model": lambda: fails(404, lambda: create(model="other", input="Hi")),
    }


def messages(client: anthropic.Anthropic) -> dict[str, Callable[[], Any]]:
    create: Any = client.messages.create
    history = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": ""},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "sunny"}],
                },
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    common: Any = {"model": "tiny", "max_tokens": 400}

    def streamed() -> None:
        with client.messages.stream(messages=USER, tools=TOOLS, **common) as stream:
            assert "".join(stream.text_stream) == "Yes."
            final = stream.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert final.content[2].input == {"city": "Bern"}  # type: ignore[union-attr]
        assert final.stop_reason == "tool_use"

    return {
        "text": lambda: create(**common | {"max_tokens": 5}, system="Be brief.", messages=history[:1]),
        "tools": lambda: create(**common, messages=USER, tools=TOOLS, tool_choice={"type": "auto"}),
        "stream": streamed,
        "history": lambda: create(
            **common, messages=history, tools=TOOLS, thinking={"type": "enabled", "budget_tokens": 1024}
        ),
        "stop": lambda: create(
            **common, messages=[{"role": "user", "content": "a b c"}], stop_sequences=[" b"]
        ),
        "cut stream": lambda: list(create(**common | {"max_tokens": 1}, messages=history[:1], stream=True)),
        "count": lambda: client.messages.count_tokens(model="tiny", messages=history, tools=TOOLS),  # type: ignore[arg-type]
        "refused": lambda: fails(400, lambda: create(**common, messages=history[2:])),
        "refused model": lambda: fails(404, lambda: create(**common | {"model": "other"}, messages=USER)),
    }


def fails(status: int, call: Callable[[], Any]) -> None:
    try:
        call()
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        if error.status_code == status:
            return
        raise
    raise AssertionError(f"no error {status}")


def validate(exchange: dict[str, Any]) -> None:
    """By the types of the SDK, strictly: a field that is missing or of another type is an error."""
    if exchange["status"] != 200 or exchange["path"].endswith("count_tokens"):
        return
    kinds: dict[str, tuple[Any, Any]] = {
        "/v1/responses": (Response, ResponseStreamEvent),
        "/v1/messages": (Message, RawMessageStreamEvent),
    }
    whole, event = kinds[exchange["path"]]
    answer = exchange["answer"]
    for value in answer if isinstance(answer, list) else [answer]:
        kind = event if isinstance(answer, list) else whole
        TypeAdapter(kind).validate_json(json.dumps(value), strict=True)


def main() -> None:
    url, target = sys.argv[1:]
    Recorder.upstream = urlsplit(url).netloc
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    proxy = f"http://127.0.0.1:{server.server_port}"
    clients: list[dict[str, Callable[[], Any]]] = [
        responses(openai.OpenAI(base_url=f"{proxy}/v1", api_key="key", max_retries=0)),
        messages(anthropic.Anthropic(base_url=proxy, api_key="key", max_retries=0)),
    ]
    recorded = []
    for client in clients:
        for name, call in client.items():
            call()
            exchange = Recorder.exchanges.pop()
            validate(exchange)
            recorded.append({"name": name, **exchange, "answer": without_chance(exchange["answer"])})
    versions = {name: version(name) for name in ("openai", "anthropic")}
    fields = {"/v1/messages": sorted(MessageCreateParamsBase.__annotations__)}
    head = json.dumps({"command": COMMAND, "versions": versions, "fields": fields})
    lines = ",\n".join(json.dumps(exchange) for exchange in recorded)
    Path(target).write_text(f'{head[:-1]}, "exchanges": [\n{lines}\n]}}\n')
    print(f"{len(recorded)} exchanges")


if __name__ == "__main__":
    main()
