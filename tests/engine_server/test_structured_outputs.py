"""Answers with a structure, over HTTP, from a random model: they have it, or a 400 says why not."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from typing_extensions import TypedDict

from tests.support.engine_process import EngineProcess, engine_process, eventually
from tests.support.served_model import write_model

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | length if tools else '' }}"
    "{% if false %}<tool_call>{% endif %}"
)
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Ury"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
LONG = {"type": "object", "properties": {"a": {"type": "string", "minLength": 400}}, "required": ["a"]}
RESPONSES_TOOL = {"type": "function", "name": "f", "parameters": LONG}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": LONG}}
MESSAGES_TOOL = {"name": "f", "input_schema": LONG}
USER = {"role": "user", "content": "x"}
TOOLS: Any = [
    {"type": "function", "function": {"name": "trip", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]


class Trip(TypedDict):
    city: str
    days: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("structured")
    model = write_model(folder / "model")
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    with engine_process(model, folder / "log", "--device", "cpu", "--max-num-seqs", "8") as running:
        yield running
        assert running.process.poll() is None


@pytest.fixture(scope="module")
def client(server: EngineProcess) -> Iterator[openai.OpenAI]:
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http, max_retries=0) as client,
    ):
        yield client


def said(client: openai.OpenAI, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": "x"}]
    return client.chat.completions.create(model="tiny", messages=messages, **{"max_tokens": 300, **fields})


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_valid_by_the_schema_of_response_format(client: openai.OpenAI, stream: bool) -> None:
    answer = said(client, response_format=FORMAT, n=4, stream=stream)
    texts = ["", "", "", ""]
    finish = [""] * 4
    for chunk in answer if stream else [answer]:
        for choice in chunk.choices:
            texts[choice.index] += (choice.delta if stream else choice.message).content or ""
            finish[choice.index] = choice.finish_reason or ""
    for text in texts:
        trip: Trip = json.loads(text)
        assert trip["city"] in ("Bern", "Ury")
        assert 1 <= trip["days"] <= 9
    assert finish == ["stop"] * 4


def test_grammars_are_those_of_a_chat_in_the_other_apis(client: openai.OpenAI, server: EngineProcess) -> None:
    form: Any = {"type": "json_schema", "name": "trip", "schema": SCHEMA}
    function: Any = {"type": "function", "name": "trip", "parameters": SCHEMA, "strict": True}
    written = client.responses.create(model="tiny", input="x", text={"format": form})
    called = client.responses.create(
        model="tiny", input="x", tools=[function], tool_choice="required", parallel_tool_calls=False
    )
    tool = {"name": "trip", "input_schema": SCHEMA}
    body = {"model": "tiny", "max_tokens": 300, "messages": [{"role": "user", "content": "x"}]}
    choice = {"type": "tool", "name": "trip"}
    message = server.post("/v1/messages", body | {"tools": [tool], "tool_choice": choice}).json()
    structured = server.post("/v1/messages", body | {"output_config": {"format": form}}).json()
    assert (message["stop_reason"], structured["stop_reason"]) == ("tool_use", "end_turn")
    for trip in (
        json.loads(written.output_text),
        json.loads(called.output[0].arguments),  # type: ignore[union-attr]
        message["content"][0]["input"],
        json.loads(structured["content"][0]["text"]),
    ):
        assert trip["city"] in ("Bern", "Ury")


@pytest.mark.parametrize(
    ("structure", "pattern"),
    [
        ({"regex": "[ab]{3}"}, "[ab]{3}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'root ::= "x" | "yz"'}, "x|yz"),
        ({"json": {"type": "boolean"}}, "true|false"),
        ({"json": json.dumps({"type": "boolean"})}, "true|false"),
        ({"json_object": True}, r"\{.*"),
    ],
    ids=str,
)
def test_an_answer_has_the_form_of_structured_outputs(
    structure: dict[str, Any], pattern: str, client: openai.OpenAI
) -> None:
    extra = {"structured_outputs": structure}
    answers = [
        said(client, extra_body=extra, max_tokens=30).choices[0].message.content,
        client.completions.create(model="tiny", prompt="x", max_tokens=30, extra_body=extra).choices[0].text,
    ]
    for text in answers:
        assert re.fullmatch(pattern, text, re.DOTALL), text


@pytest.mark.parametrize(
    ("choice", "parallel", "names"),
    [
        ("required", True, ("trip", "now")),
        ("required", False, ("trip", "now")),
        ({"type": "function", "function": {"name": "trip"}}, None, ("trip",)),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_required_is_made(
    choice: Any, parallel: bool, names: tuple[str, ...], stream: bool, client: openai.OpenAI
) -> None:
    fields: Any = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel, "max_tokens": 400}
    if stream and not parallel:  # many calls may be cut by max_tokens, which raises in this client
        with client.chat.completions.stream(
            model="tiny", messages=[{"role": "user", "content": "x"}], **fields
        ) as events:
            answer: Any = events.until_done().get_final_completion().choices[0]
    else:
        answer = said(client, **fields).choices[0]
    message = answer.message
    calls = message.tool_calls or []
    assert not message.content or answer.finish_reason == "length"  # the head of a call that was cut
    assert calls
    assert len(calls) == 1 or parallel  # of a function with a name there is one call
    assert {call.function.name for call in calls} <= set(names)
    for call in calls[:1] if parallel else calls:  # max_tokens may cut the last one of many
        arguments = json.loads(call.function.arguments)
        assert arguments == {} if call.function.name == "now" else arguments["city"] in ("Bern", "Ury")


ONE_OF_SIX: Any = [
    {"anyOf": [{"properties": {f"a{n}{m}": {"type": "null"}}} for m in range(6)]} for n in range(6)
]
# Schema, and what is said of it: the first takes a second of CPU time, the second has 46,656 forms.
EXPLODING: list[tuple[Any, str]] = [
    ({"type": "integer", "multipleOf": 99_999_999}, "takes longer than 1 s of CPU time"),
    ({"type": "object", "properties": {f"property {n}": {} for n in range(18_000)}}, "at most 262144 bytes"),
    ({"allOf": ONE_OF_SIX}, "too large"),
    ({"type": "object", "properties": {f"p{n}": {} for n in range(1_000)}}, "too complex"),
    ({"$ref": "#"}, "no text is allowed"),
]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format",
            "not",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"structured_outputs": {"regex": "(?=a)"}}, "structured_outputs", "look-around"),
        ({"structured_outputs": {"regex": "(a?){3000}a{3000}"}}, "structured_outputs", "too complex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", ""),
        ({"structured_outputs": {"regex": "a" * (1 << 19)}}, "structured_outputs", "bytes"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", ""),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "",
        ),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format", "tools"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            "tool_choice",
            "not",
        ),
        *(
            ({"structured_outputs": {"json": schema}}, "structured_outputs", said)
            for schema, said in EXPLODING
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(
    fields: dict[str, Any], param: str, words: str, server: EngineProcess
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    answer = server.post("/v1/chat/completions", body | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert words in answer.json()["error"]["message"]
    assert server.get("/health").status_code == 200


def test_biased_tokens_come_and_no_others_where_they_alone_are_allowed(
    client: openai.OpenAI, server: EngineProcess
) -> None:
    ids = server.post("/tokenize", {"prompt": "the dog"}).json()["tokens"]
    favoured = client.completions.create(
        model="tiny", prompt="x", max_tokens=4, logit_bias={str(ids[0]): 100}
    )
    allowed = client.completions.create(
        model="tiny", prompt="x", max_tokens=4, extra_body={"allowed_token_ids": [ids[-1]]}
    )
    assert favoured.choices[0].text == "the" * 4
    assert allowed.choices[0].text == " dog" * 4


def test_bad_words_do_not_come_whether_of_one_token_or_of_several(client: openai.OpenAI) -> None:
    def said(**fields: Any) -> str:
        answer = client.completions.create(
            model="tiny", prompt="the", max_tokens=30, temperature=0, extra_body=fields
        )
        return answer.choices[0].text

    assert "Lthe" in said()
    assert "L" in said(bad_words=["Lthe"])
    assert "Lthe" not in said(bad_words=["Lthe"])
    assert "L" not in said(bad_words=["L"])


def test_an_echo_scores_an_answer_as_it_was_scored_when_it_was_made(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model="tiny",
        prompt="the quick",
        max_tokens=12,
        temperature=0,
        logprobs=0,
        extra_body={"return_token_ids": True},
    ).choices[0]
    ids = [*made.prompt_token_ids, *made.token_ids]  # type: ignore[attr-defined]
    read = client.completions.create(model="tiny", prompt=ids, max_tokens=0, logprobs=1, echo=True).choices[0]
    assert made.logprobs is not None
    assert read.logprobs is not None
    assert made.logprobs.token_logprobs is not None
    scored = read.logprobs.token_logprobs
    assert scored is not None
    assert scored[-12:] == pytest.approx(made.logprobs.token_logprobs, abs=1e-4)
    greedy = zip(scored[-12:], read.logprobs.top_logprobs[-12:], strict=True)  # type: ignore[index]
    assert all(own == max(top.values()) for own, top in greedy)


def test_a_recursive_schema_is_served(client: openai.OpenAI) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    schema = {"$defs": {"node": node}, "$ref": "#/$defs/node"}
    answer = said(
        client, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    )
    assert answer.choices[0].message.content.startswith("{")


@pytest.mark.parametrize(
    "asked",
    [
        {"regex": "(((a+)+)+)+(b|c)"},
        {"regex": "(a|b)*a(a|b){20}"},
        {"grammar": 'start: s\ns: s s | "a" | s s s | ""'},
        {"json": {"type": "object", "patternProperties": {"^(a+)+$": {"type": "string"}}}},
        {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 100_000}},
        {"json": {"enum": [f"v{n}" for n in range(9_000)]}},
    ],
    ids=lambda asked: json.dumps(asked)[:40],
)
def test_an_answer_with_an_expensive_structure_ends_and_another_client_is_served_meanwhile(
    asked: Any, client: openai.OpenAI, server: EngineProcess
) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            server.chat, "x", max_tokens=300, temperature=1.5, seed=1, structured_outputs=asked
        )
        assert server.complete("the", max_tokens=4).status_code == 200
    error = answer.result().json().get("error", {"code": "grammar_error"})
    assert (answer.result().status_code, error["code"]) in [(200, "grammar_error"), (400, "grammar_error")]
    eventually(server.quiet, "no KV block is lost")


LEFT: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER], "tools": [CHAT_TOOL], "tool_choice": "required"},
    "/v1/responses": {"input": "x", "tools": [RESPONSES_TOOL], "tool_choice": "required"},
    "/v1/messages": {"messages": [USER], "tools": [MESSAGES_TOOL], "tool_choice": {"type": "any"}},
    "/v1/completions": {"prompt": "x", "structured_outputs": {"regex": "a{400}"}},
}


@pytest.mark.parametrize("path", LEFT)
def test_a_client_that_leaves_in_the_middle_of_a_call_leaves_nothing_behind(
    path: str, server: EngineProcess
) -> None:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {"model": "tiny", "stream": True, limit: 450, **LEFT[path]}
    before = server.metric("vllm:generation_tokens_total")
    with (
        httpx.Client(trust_env=False) as http,
        http.stream("POST", server.url + path, json=body) as response,
    ):
        assert response.status_code == 200
        next(response.iter_lines())
    eventually(server.quiet, "the request ends")
    assert server.metric("vllm:generation_tokens_total") - before < 450
