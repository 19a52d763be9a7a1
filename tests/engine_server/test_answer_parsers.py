"""Content, reasoning and tool calls of an answer, which do not depend on how its text was cut into tokens."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_engine.__main__ import main
from tangram_engine.serve.answers.answer_parser import AnswerFormat, AnswerParser
from tangram_engine.serve.answers.formats import PARSERS
from tangram_engine.serve.answers.parts import ELEMENT_LIMIT

TOOLS = {
    "f": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": ["integer", "null"]}}},
    "g": None,
}
LONG = "x" * ELEMENT_LIMIT
# Format, text, content, calls.
ANSWERS: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Only text, < and <tool.\n", "Only text, < and <tool.\n", []),
    (
        "hermes",
        'Yes.\n<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>\\"{", "n": [1]}}\n</tool_call>\n'
        '<tool_call>{"arguments": {"z": "ä"}, "name": "g"}</tool_call>\n',
        "Yes.",
        [("f", '{"a": "</tool_call>\\"{", "n": [1]}'), ("g", '{"z": "ä"}')],
    ),
    ("hermes", '<tool_call>{"name": "g"}</tool_call>', "", [("g", "{}")]),
    ("hermes", '<tool_call>{"name": "g", "arguments": "{\\"b\\": 1}"}</tool_call>', "", [("g", '{"b": 1}')]),
    ("hermes", "<tool_call>soon</tool_call> x", "<tool_call>soon</tool_call> x", []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "cut', "", [("f", '{"a": "cut')]),
    ("hermes", f"<tool_call>{LONG}</tool_call>", f"<tool_call>{LONG}</tool_call>", []),
    (
        "llama3_json",
        ' {"name": "f", "parameters": {"a": "}"}}; {"name": "g", "parameters": {}}',
        "",
        [("f", '{"a": "}"}'), ("g", "{}")],
    ),
    ("llama3_json", '<|python_tag|>{"type": "function", "name": "g", "parameters": {}}', "", [("g", "{}")]),
    (
        "llama3_json",
        '{"name": "Ann", "parameters": {"b": 2}} x',
        '{"name": "Ann", "parameters": {"b": 2}} x',
        [],
    ),
    ("llama3_json", 'No {"name": "f", "parameters": {}}', 'No {"name": "f", "parameters": {}}', []),
    ("llama3_json", '{"a": "' + LONG + '"}', '{"a": "' + LONG + '"}', []),
    (
        "mistral",
        'Ok [TOOL_CALLS][{"name": "f", "arguments": {"a": "]"}}, {"arguments": {}, "name": "g"}]',
        "Ok",
        [("f", '{"a": "]"}'), ("g", "{}")],
    ),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]12[ARGS]{}',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    ("mistral", "[TOOL_CALLS] are brackets", "[TOOL_CALLS]are brackets", []),
    (
        "qwen3_coder",
        '<tool_call>\n<function=f>\n<parameter=a>\nline "1"\n\n2\n</parameter>\n<parameter=n>\n3\n'
        "</parameter>\n</function>\n</tool_call>\n<tool_call><function=g><parameter=q></parameter></function></tool_call>",
        "",
        [("f", '{"a": "line \\"1\\"\\n\\n2", "n": 3}'), ("g", '{"q": ""}')],
    ),
    (
        "qwen3_coder",
        "Hm <function=f><parameter=n>None</parameter><parameter=a>1</parameter></function>",
        "Hm",
        [("f", '{"n": null, "a": "1"}')],
    ),
    ("qwen3_coder", "<function=f><parameter=n>three</parameter></function>", "", [("f", '{"n": "three"}')]),
    (
        "qwen3_coder",
        f"<function=f><parameter=n>{LONG}y</parameter></function>",
        "",
        [("f", f'{{"n": "{LONG}y"}}')],
    ),
    ("qwen3_coder", '<tool_call> {"x"} </tool_call>', '<tool_call> {"x"} </tool_call>', []),
    ("deepseek", "Only <｜tool", "Only <｜tool", []),
    (  # V3.1
        "deepseek",
        'Ok\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "}\\""}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜> {}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Ok",
        [("f", '{"a": "}\\""}'), ("function", "{}")],
    ),
    (  # V3
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"a": "```"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜> Done.",
        "Done.",
        [("f", '{"a": "```"}'), ("g", "{}")],
    ),
    ("deepseek", '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "cut', "", [("f", '{"a": "cut')]),
    ("deepseek", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>[1]<｜tool▁call▁end｜>", "", [("f", "[1]")]),
    (
        "deepseek",
        "<｜tool▁call▁begin｜>no <b> name<｜tool▁sep｜>{}",
        "<｜tool▁call▁begin｜>no <b> name<｜tool▁sep｜>{}",
        [],
    ),
    (
        "deepseek",
        f"<｜tool▁call▁begin｜>{LONG}<｜tool▁sep｜>{{}}",
        f"<｜tool▁call▁begin｜>{LONG}<｜tool▁sep｜>{{}}",
        [],
    ),
    ("harmony", "No channel at all.\n", "No channel at all.\n", []),
    (
        "harmony",
        "<|channel|>commentary<|message|>I look. <|end|><|start|>assistant<|channel|>commentary to=functions"
        '.f <|constrain|>json<|message|>{"a": "<b>"}<|call|><|start|>assistant to=functions.g'
        "<|channel|>commentary json<|message|>{}<|call|>",
        "I look.",
        [("f", '{"a": "<b>"}'), ("g", "{}")],
    ),
    (
        "harmony",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
        "<|return|>",
        "I look.\n\nYes.",
        [],
    ),
    ("harmony", "<|channel|>final<|message|>a<|start|>assistant<|chan", "a", []),
    ("harmony", "<|channel|>commentary to=browser.open<|message|>x", "x", []),
    ("harmony", f"<|channel|>{LONG}", f"<|channel|>{LONG}", []),
]
# What the text of an answer may begin with; more of it is drawn.
OPENINGS = {
    "hermes": ("", "<tool_call>"),
    "llama3_json": ("", '{"name": "f", "parameters": {'),
    "mistral": ("", "[TOOL_CALLS]"),
    "qwen3_coder": ("", "<tool_call>", "<function=f>"),
    "deepseek": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
    ),
    "harmony": (
        "<|channel|>analysis<|message|>",
        "<|start|>",
        "<|channel|>commentary to=functions.f<|message|>",
    ),
}
TAGS = re.findall(r"<[|｜][^>]*>", "".join(text for _, text, _, _ in ANSWERS if len(text) < 1000))
NAMES = [f"{form}-{text[:30]}" for form, text, _, _ in ANSWERS]


def parsed(form: AnswerFormat, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    """Content, reasoning, and name and arguments of each call."""
    parser = AnswerParser(form)
    content, reasoning = "", ""
    calls: list[list[str]] = []
    for number, piece in enumerate(pieces):
        parts = parser.push(piece, last=number == len(pieces) - 1)
        content, reasoning = content + parts.content, reasoning + parts.reasoning
        for call in parts.calls:
            if call.name is not None:
                calls.append([call.name, ""])
            assert call.index == len(calls) - 1
            calls[-1][1] += call.arguments
    return content, reasoning, [(name, arguments) for name, arguments in calls]


def cut(text: str, at: set[int]) -> list[str]:
    places = sorted({place % (len(text) + 1) for place in at})
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize(("form", "text", "content", "calls"), ANSWERS, ids=NAMES)
@given(places=st.sets(st.integers(0, 400), max_size=12))
def test_calls_are_the_same_for_every_cut(
    form: str, text: str, content: str, calls: list[tuple[str, str]], places: set[int]
) -> None:
    answer = AnswerFormat(form, TOOLS)
    assert parsed(answer, [text]) == (content, "", calls)
    assert parsed(answer, cut(text, places)) == (content, "", calls)
    if len(text) < 1000:
        assert parsed(answer, list(text)) == (content, "", calls)


@pytest.mark.parametrize(
    ("text", "opened", "content", "reasoning"),
    [
        ("<think>\nSo <b> </th.\n</think>\n\nYes.\n", False, "Yes.\n", "So <b> </th."),
        ("So.\n</think>Yes.", True, "Yes.", "So."),
        ("\n\nSo. </thi", True, "", "So. </thi"),
        ("<think>\n\n</think>\n\nYes.", False, "Yes.", ""),
        ("Yes, <think> is a tag </think>.", False, "Yes, <think> is a tag </think>.", ""),
        ("<thin", False, "<thin", ""),
        ("<think>a" + " " * 3000 + "b</think>c", False, "c", "a" + " " * 3000 + "b"),
    ],
)  # fmt: skip
@given(places=st.sets(st.integers(0, 60), max_size=8))
def test_reasoning_is_the_same_for_every_cut(
    text: str, opened: bool, content: str, reasoning: str, places: set[int]
) -> None:
    for call_format in (None, "hermes", "llama3_json"):
        form = AnswerFormat(call_format, TOOLS, thinks=True, opened=opened)
        for pieces in ([text], cut(text, places), [*text[:100], text[100:]]):
            assert parsed(form, pieces) == (content, reasoning, [])


CHANNELS = (
    "<|channel|>analysis<|message|>So <b>.\n<|end|><|start|>assistant<|channel|>analysis<|message|>"
    "Then.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    '{"a": 1}<|call|>'
)


@pytest.mark.parametrize(
    ("tools", "content", "calls"), [(TOOLS, "", [("f", '{"a": 1}')]), ({}, '{"a": 1}', [])], ids=["tools", ""]
)
@given(places=st.sets(st.integers(0, len(CHANNELS)), max_size=12))
def test_the_channel_of_analysis_is_reasoning_however_it_is_cut(
    tools: dict[str, Any], content: str, calls: list[tuple[str, str]], places: set[int]
) -> None:
    form = AnswerFormat("harmony", tools)
    for pieces in ([CHANNELS], cut(CHANNELS, places), list(CHANNELS)):
        assert parsed(form, pieces) == (content, "So <b>.\n\nThen.", calls)
    hidden = AnswerFormat("harmony", tools, shows_reasoning=False)
    assert parsed(hidden, cut(CHANNELS, places)) == (content, "", calls)


def test_the_command_line_offers_each_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--tool-call-parser", "x"])
    offered = capsys.readouterr().err.rpartition("choose from")[2]
    assert {*re.findall(r"\w+", offered)} == {*PARSERS, "auto", "none"}


def test_tokens_of_the_analysis_are_counted_as_reasoning() -> None:
    parser = AnswerParser(AnswerFormat("harmony"))
    tokens = ["<|channel|>", "analysis", "<|message|>", "So", ".", "<|end|>", "<|start|>", "assistant"]
    for token in [*tokens, "<|channel|>", "final", "<|message|>", "Yes", "."]:
        parser.push(token, last=False)
    assert parser.reasoning_tokens == 4  # from the end of the header to the end of the message


@given(
    places=st.sets(st.integers(0, 200), max_size=12),
    text=st.lists(st.sampled_from([*"<tol_ca{}\"'[]:,nameTrgus \\\n>=/", *TAGS]).map(str), max_size=100).map(
        "".join
    ),
)
def test_no_text_is_read_otherwise_for_its_cuts(places: set[int], text: str) -> None:
    for call_format in PARSERS:
        for opening in OPENINGS[call_format]:
            whole: Any = AnswerFormat(call_format, TOOLS, thinks=True)
            assert parsed(whole, cut(opening + text, places)) == parsed(whole, [opening + text])


def test_calls_behind_the_first_are_left_out_where_the_client_wants_one() -> None:
    text = "".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in "fg")
    assert parsed(AnswerFormat("hermes", TOOLS, parallel=False), [text]) == ("", "", [("f", "{}")])


@pytest.mark.parametrize(("form", "length", "prefix"), [("mistral", 9, ""), ("hermes", 29, "call_")])
def test_an_id_has_the_form_that_the_template_takes(form: str, length: int, prefix: str) -> None:
    parser = AnswerParser(AnswerFormat(form, TOOLS))
    assert parser.call_id(0) == parser.call_id(0)
    assert parser.call_id(0) != parser.call_id(1)
    assert len(parser.call_id(0)) == length
    assert parser.call_id(1).startswith(prefix)
    assert parser.call_id(0).removeprefix(prefix).isalnum()


def test_arguments_come_while_they_are_written() -> None:
    parser = AnswerParser(AnswerFormat("hermes", TOOLS))
    parser.push('<tool_call>{"name": "f", "arguments": {"a": "', last=False)
    parts = parser.push("one two", last=False)
    assert [(call.name, call.arguments) for call in parts.calls] == [(None, "one two")]
