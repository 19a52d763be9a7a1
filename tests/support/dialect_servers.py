"""A server whose engine repeats its prompt, for tests of the dialects of the API."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai

from tests.support.engine_process import EngineProcess, engine_process
from tests.support.served_model import write_model

# The answer is what the messages say. The marks of the format stand where they are never rendered.
TEMPLATE = (
    "{% for m in messages %}{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}</s>"
    "{{ tools | length if tools else '' }}{% if false %}<tool_call></think>{% endif %}"
)
REASONING = "H\u00f6?"
ANSWER = (
    f"<think>\n{REASONING}\n</think>\n\nYes.\n"
    '<tool_call>\n{"name": "f", "arguments": {"a": "\U0001f389"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "string"}}}


@contextmanager
def repeating_server(folder: Path, *flags: str, **behaviour: Any) -> Iterator[EngineProcess]:
    """A ready server; its model calls tools as Hermes does, and reasons between tags."""
    model = write_model(folder / "model")
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    with engine_process(model, folder / "log", *flags, fake=behaviour) as running:
        yield running
        assert running.process.poll() is None, (folder / "log").read_text()


@contextmanager
def openai_client(server: EngineProcess) -> Iterator[openai.OpenAI]:
    """The official client, which loads no certificates and tries once."""
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http, max_retries=0) as client,
    ):
        yield client
