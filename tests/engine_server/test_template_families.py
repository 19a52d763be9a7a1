"""The engine renders chat templates as transformers does, byte by byte, and refuses what they refuse."""

import json
from pathlib import Path
from typing import Any, cast

import jinja2
import pytest
import yaml
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tangram_engine.messages import EngineInfo
from tangram_engine.serve.http.body import parse
from tangram_engine.serve.http.defaults import SamplingDefaults
from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.http.params import ChatRequest
from tangram_engine.serve.prepare_requests import RequestPreparer
from tangram_engine.serve.text.client import TextClient
from tangram_engine.serve.text.template import ChatTemplate

DATA: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "chat_templates.yaml").read_text("utf-8"))
FAMILIES: list[dict[str, Any]] = DATA["families"]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
Messages = list[dict[str, Any]]


class RenderingText:
    """The text process without tokenization: a prompt is its characters."""

    has_template = True

    def __init__(self, template: str) -> None:
        self.template = ChatTemplate(template, SPECIAL)
        self.features = self.template.features

    def chat(
        self,
        messages: Messages,
        options: dict[str, Any],
        limit: int,
        *,
        inputs: Any = None,
        continued: bool = False,
        **_: Any,
    ) -> tuple[int, ...]:
        return tuple(map(ord, self.template.render(messages, options, inputs, continued=continued)))


def engine(template: str, messages: Messages, kwargs: dict[str, Any], **fields: Any) -> str:
    """The prompt of a chat request, from its JSON on."""
    text, info = RenderingText(template), cast("EngineInfo", type("Info", (), {"max_model_len": 1 << 20}))
    preparer = RequestPreparer(cast("TextClient", text), cast("Any", None), info, SamplingDefaults())
    body = {"model": "m", "messages": messages, "chat_template_kwargs": kwargs, **fields}
    return "".join(map(chr, preparer.chat_prompt(parse(json.dumps(body).encode(), ChatRequest))))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(unk_token="<unk>")), **SPECIAL)


def shaped(messages: Messages, content: str) -> Messages:
    """Messages with the content that the template is made for; transformers passes on what it is given."""
    shapes = {
        "string": lambda value: value if isinstance(value, str) else "\n".join(p["text"] for p in value),
        "parts": lambda value: [{"type": "text", "text": value}] if isinstance(value, str) else value,
        "either": lambda value: value,
    }
    return [message | {"content": shapes[content](message["content"])} for message in messages]


def cases(key: str) -> list[Any]:
    return [
        pytest.param(family, DATA["conversations"][talk], id=f"{family['family']}-{talk}")
        for family in FAMILIES
        for talk in family.get(key, ())
    ]


def test_there_are_thirty_families() -> None:
    assert len({family["family"] for family in FAMILIES}) >= 30


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family["family"])
def test_the_syntax_tree_says_what_content_a_template_takes(family: dict[str, Any]) -> None:
    assert ChatTemplate(family["template"], {}).content_format.value == family["content"]


@pytest.mark.parametrize(("family", "messages"), cases("talks"))
def test_a_prompt_is_that_of_transformers(
    family: dict[str, Any], messages: Messages, tokenizer: PreTrainedTokenizerFast
) -> None:
    template = family["template"]
    for kwargs in ({}, family["kwargs"]) if "kwargs" in family else ({},):
        expected = tokenizer.apply_chat_template(
            shaped(messages, family["content"]),
            chat_template=template,
            tokenize=False,
            **{"add_generation_prompt": True, **kwargs},
        )
        assert engine(template, messages, kwargs) == expected
        assert expected


@pytest.mark.parametrize(("family", "messages"), cases("refuses"))
def test_a_refusal_has_the_words_of_the_template(
    family: dict[str, Any], messages: Messages, tokenizer: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(jinja2.TemplateError) as theirs:
        tokenizer.apply_chat_template(messages, chat_template=family["template"], tokenize=False)

    with pytest.raises(APIError) as ours:
        engine(family["template"], messages, {})

    error = ours.value
    assert (error.status, error.param, error.code) == (400, "messages", "chat_template_error")
    assert error.message == f"messages: {theirs.value}"


def as_sent(messages: Messages) -> Messages:
    """OpenAI's API has the arguments of calls as JSON in a string."""
    sent: Messages = json.loads(json.dumps(messages))
    for message in sent:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return sent


def test_a_format_without_a_parser_is_not_taken_for_another_one() -> None:
    source = "<｜DSML｜function_calls>{{ messages }}<｜tool▁calls▁begin｜><tool_call></think>"
    features = ChatTemplate(source, SPECIAL).features
    assert (features.call_format, features.thinks) == (None, True)


@pytest.mark.parametrize("talk", DATA["tool_conversations"])
@pytest.mark.parametrize("family", DATA["tool_families"], ids=lambda family: family["family"])
def test_a_prompt_with_tools_is_that_of_transformers(
    family: dict[str, Any], talk: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    template, messages = family["template"], DATA["tool_conversations"][talk]
    assert ChatTemplate(template, SPECIAL).features.call_format == family["format"]
    # transformers passes on what it is given.
    given = as_sent(messages) if family.get("arguments") == "text" else messages
    for tools in (DATA["tools"], None):
        expected = tokenizer.apply_chat_template(
            given, tools=tools, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        assert engine(template, as_sent(messages), {}, tools=tools) == expected


@pytest.mark.parametrize("text", ["It is", "It is \n", [{"type": "text", "text": "It "}]], ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family["family"])
def test_a_message_is_continued_as_in_transformers(
    family: dict[str, Any], text: Any, tokenizer: PreTrainedTokenizerFast
) -> None:
    template = family["template"]
    messages: Messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
    options: Any = {"chat_template": template, "tokenize": False, "continue_final_message": True}
    try:
        expected = tokenizer.apply_chat_template(shaped(messages, family["content"]), **options)
    except (ValueError, jinja2.TemplateError):  # the template does not write it
        with pytest.raises(APIError):
            engine(template, messages, {}, continue_final_message=True)
        return
    expected = str(expected).replace("CONTINUE_FINAL_MESSAGE_TAG ", "")  # where it is written twice
    assert engine(template, messages, {}, continue_final_message=True) == expected


def test_documents_reach_the_template_as_in_transformers(tokenizer: PreTrainedTokenizerFast) -> None:
    template = "{% for d in documents %}{{ d | tojson }}{% endfor %}{{ messages[0].content }}"
    documents = [{"title": "A", "text": "ä"}, {"text": "b", "n": 1}]
    messages = [{"role": "user", "content": "x"}]
    expected = tokenizer.apply_chat_template(
        messages, documents=documents, chat_template=template, tokenize=False
    )
    assert engine(template, messages, {}, documents=documents) == expected


@pytest.mark.parametrize(
    ("template", "effort", "rendered"),
    [
        ("{{ reasoning_effort }}", "low", "low"),
        ("{{ enable_thinking }}", "none", "False"),
        ("{{ enable_thinking }}", "high", "True"),
        ("{{ enable_thinking }}", None, ""),
        ("{% if not thinking is defined %}{% set thinking = 0 %}{% endif %}{{ thinking }}", "low", "True"),
        ("x", "none", "x"),
    ],
)
def test_a_template_gets_the_reasoning_effort_by_the_name_that_it_reads(
    template: str, effort: str | None, rendered: str
) -> None:
    messages = [{"role": "user", "content": "x"}]
    assert engine(template, messages, {}, reasoning_effort=effort) == rendered
    assert engine(
        template,
        messages,
        dict.fromkeys(("enable_thinking", "thinking", "reasoning_effort"), 5),
        reasoning_effort=effort,
    ) in (
        "5",
        "x",
    )
