"""Answers that a grammar constrains, drawn from a random model, are what was asked for, in both modes."""

import json
import re
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tangram_engine.config import EngineConfig
from tangram_engine.kernels.ops import reference_ops
from tangram_engine.run.engine import LLMEngine
from tangram_engine.sample.grammar import Grammars
from tangram_engine.sample.params import SamplingParams
from tangram_engine.sample.vocabulary import Vocabulary
from tangram_engine.schedule import Request
from tangram_engine.serve.answers.answer_parser import AnswerFormat, AnswerParser
from tangram_engine.serve.text.grammar import GrammarError, build
from tangram_engine.serve.text.tokenizer import load_tokenizer
from tests.support.json_schema import violations
from tests.support.served_model import CONFIG, write_model

WIDE = {"type": "object", "properties": {f"a{n}": {"type": "string"} for n in range(20)}}
OBJECT = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Ury"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "properties": {
        "a": {"$ref": "#/$defs/pair"},
        "b": {"type": "array", "items": {"$ref": "#/$defs/pair"}, "maxItems": 2},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {
        "pair": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}, "y": {"enum": ["ä", '"', 1]}},
            "required": ["x", "y"],
            "additionalProperties": False,
        }
    },
}
VOCABULARY_SIZE = CONFIG["vocab_size"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("grammars") / "model")


@pytest.fixture(scope="module")
def tools(model):
    return load_tokenizer(model)


@pytest.fixture(scope="module", params=["same step", "one step behind", "recorded steps"])
def engine(request, model, tools):
    lag = 0 if request.param == "same step" else 1
    ops = reference_ops() if request.param == "recorded steps" else None
    config = EngineConfig(
        model, device="cpu", max_num_seqs=8, max_num_batched_tokens=64, kv_cache_bytes=8 << 20
    )
    engine = LLMEngine(config, lag, ops)
    tokens = tuple(map(tools.token_bytes, range(VOCABULARY_SIZE)))
    engine.use_vocabulary(Vocabulary(tokens, tuple(tools.special), (tools.end_token,)))
    return engine


def asked(grammar, count, **options) -> list[Request]:
    params = {"max_tokens": 200, "temperature": 2.0} | options
    return [
        Request(f"{seed}", (5, 6, 7 + seed % 200), SamplingParams(seed=seed, grammar=grammar, **params), 0.0)
        for seed in range(count)
    ]


def answers(engine, tools, requests: list[Request]) -> dict[str, tuple[str, str]]:
    """Text and finish reason of each request."""
    for request in requests:
        engine.add(request)
    ids: dict[str, list[int]] = {request.id: [] for request in requests}
    finish: dict[str, str] = {}
    while engine.has_work():
        for output in engine.step()[0]:
            assert output.request_id not in finish
            ids[output.request_id] += [output.token] if output.token >= 0 else []
            if output.finish is not None:
                finish[output.request_id] = output.finish
    engine.audit()
    assert finish.keys() == ids.keys()
    assert not engine._grammars
    return {name: (tools.decode(tokens), finish[name]) for name, tokens in ids.items()}


@pytest.mark.parametrize("schema", [OBJECT, NESTED], ids=["object", "nested"])
def test_an_answer_is_valid_by_its_schema(schema: dict[str, Any], engine, tools) -> None:
    grammar = build("json", json.dumps(schema), "none")
    given = answers(engine, tools, asked(grammar, 24))
    assert len({text for text, _ in given.values()}) > 10
    for text, finish in given.values():
        assert finish == "stop"
        assert violations(json.loads(text), schema) == []


@pytest.mark.parametrize(
    ("kind", "value", "pattern"),
    [
        ("regex", "[a-c]{2,4}/[0-9]", "[a-c]{2,4}/[0-9]"),
        ("choice", ['say "yes"', "nö\n"], 'say "yes"|nö\n'),
        ("grammar", 'start: "a" rest\nrest: "b" | "c" rest', "ac*b"),
        ("grammar", 'root ::= "x" | "y"', "x|y"),
    ],
)
def test_an_answer_matches_its_expression(kind: str, value: Any, pattern: str, engine, tools) -> None:
    for text, finish in answers(engine, tools, asked(build(kind, value, "none"), 8)).values():
        assert finish == "stop"
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize("form", ["hermes", "llama3_json"])
@pytest.mark.parametrize("parallel", [False, True])
def test_calls_that_have_to_be_made_are_calls(form: str, parallel: bool, engine, tools) -> None:
    schemas = {"f": OBJECT, "g": {"type": "object", "properties": {}, "additionalProperties": False}}
    grammar = build("calls", {"format": form, "tools": schemas, "parallel": parallel}, "none")
    counts = set()
    for text, finish in answers(engine, tools, asked(grammar, 8, max_tokens=400)).values():
        parts = AnswerParser(AnswerFormat(form, schemas)).push(text, last=True)
        assert parts.content == ""
        names = [call.name for call in parts.calls if call.name is not None]
        counts.add(len(names))
        if finish == "length":  # in the middle of one of many calls
            continue
        for index, name in enumerate(names):
            whole = "".join(call.arguments for call in parts.calls if call.index == index)
            assert violations(json.loads(whole), schemas[name]) == []
    assert counts == {1} if not parallel else len(counts) > 1


@pytest.mark.parametrize(
    ("reasoning", "prefix"), [("begun", "hm</think>\n\n"), ("optional", "<think>hm</think>")]
)
def test_reasoning_goes_before_what_a_grammar_constrains(reasoning: str, prefix: str) -> None:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    class Bytes:
        eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)
        tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")

        def __call__(self, text):
            raise NotImplementedError

    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(Bytes())), build("choice", ["yes"], reasoning))
    assert matcher.consume_tokens(list(f"{prefix}yes".encode()))
    assert matcher.is_accepting()


def test_requests_with_and_without_a_grammar_share_steps_and_do_not_change_each_other(engine, tools) -> None:
    free = [
        Request(f"free {n}", (9, 8, n), SamplingParams(max_tokens=30, seed=n, ignore_eos=True), 0.0)
        for n in range(4)
    ]
    alone = answers(engine, tools, free)
    bound = asked(build("json", json.dumps(OBJECT), "none"), 4)
    expected = answers(engine, tools, bound)
    assert answers(engine, tools, [*free, *bound]) == alone | expected


def test_logprobs_are_those_of_the_model_and_not_of_the_grammar(engine) -> None:
    requests = asked(build("choice", ["the dog"], "none"), 1, logprobs=5)
    engine.add(requests[0])
    outputs = []
    while engine.has_work():
        outputs += engine.step()[0]
    assert all(output.logprob > -30 for output in outputs)
    assert any(output.token != output.top_logprobs[0][0] for output in outputs)


def test_an_aborted_request_leaves_no_matcher_and_no_block(engine) -> None:
    requests = asked(build("regex", "a{100}", "none"), 3)
    for request in requests:
        engine.add(request)
    assert engine.abort(requests[0].id)  # while it is compiled
    for _ in range(4):
        engine.step()
    assert all(engine.abort(request.id) for request in requests[1:])
    while engine.has_work():
        engine.step()
    engine.audit()
    assert not engine._grammars


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("json", '{"type": "object", "not": {}}', "not"),
        ("json", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json", '{"properties": {"a": {"if": {}, "then": {}}}}', '"if", "then"'),
        ("json", '{"type": "foo"}', "foo"),
        ("json", '{"enum": []}', "anyOf is empty"),
        ("json", "[1]", "no JSON object"),
        ("json", "{", "no JSON"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", "(", "unclosed"),
        ("grammar", "start: nope", "nope"),
        ("grammar", "root ::= a", "a"),
        ("grammar", "start: a\na: b\nb: a", "no text is allowed"),
        ("regex", "[^\\s\\S]", "no text is allowed"),
        ("grammar", "start: <|another|>", 'unknown special token: "<|another|>"'),
        (
            "calls",
            {"format": "hermes", "parallel": False, "tools": {"f": {"$ref": "#"}}},
            "no text is allowed",
        ),
        (
            "calls",
            {"format": "hermes", "parallel": True, "tools": {f"f{n}": WIDE for n in range(512)}},
            "too complex",
        ),
    ],
)
def test_a_grammar_that_cannot_be_honoured_is_refused_by_what_is_wrong(
    kind: str, value: Any, words: str
) -> None:
    with pytest.raises(GrammarError, match=re.escape(words)) as caught:
        build(kind, value, "none")
    assert "backtrace" not in str(caught.value)


@pytest.mark.parametrize("reasoning", ["none", "optional", "begun"])
@pytest.mark.parametrize(
    ("kind", "value"), [("json", '{"not": {}}'), ("grammar", "start: no"), ("regex", "(")]
)
def test_a_refusal_shows_no_rules_that_the_client_did_not_write(
    kind: str, value: Any, reasoning: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        build(kind, value, reasoning)
    message = str(caught.value).replace(value, "")
    assert not re.search(r"start: |thought|gap|\d\(\d+\)| \d \| |verbose", message)


def test_a_grammar_of_a_token_that_the_model_lacks_ends_its_answer_without_a_log_line(
    engine, tools, caplog
) -> None:
    grammar = build("grammar", "start: <|tool|>", "none")
    assert answers(engine, tools, asked(grammar, 1))["0"][1] == "grammar"
    assert not caplog.records


def test_a_text_of_100_000_characters_without_a_choice_costs_a_step_little(tools) -> None:
    grammars = Grammars(1 << 12)
    letters = [bytes([letter]) for letter in range(1, 256)]
    grammars.use(Vocabulary((b"", *letters, *(b"a" * length for length in (2, 3, 31, 300))), (0,), (0,)))
    grammars.begin("long", grammars.compile(build("regex", "a{100000}", "none")).result())
    begin = time.process_time()
    for _ in range(8):
        assert np.unpackbits(grammars.bits(["long"]).view(np.uint8)).any()
        assert grammars.advance("long", ord("a"))
    assert (time.process_time() - begin) / 8 < 0.02


def test_a_grammar_that_becomes_too_complex_ends_its_answer_alone(engine, tools) -> None:
    """`build` refuses it; another one may become so on the way."""
    many = json.dumps({"type": "object", "properties": {f"p{n}": {} for n in range(1_000)}})
    with pytest.raises(GrammarError, match="too complex"):
        build("json", many, "none")
    alone = answers(engine, tools, [*asked(None, 1, max_tokens=9)])
    [complex_one] = asked(f"start: body\nbody: %json {many}", 1)
    given = answers(engine, tools, [*asked(None, 1, max_tokens=9), replace(complex_one, id="complex")])
    assert given["complex"][1] == "grammar"
    assert given["0"] == alone["0"]


def test_an_answer_ends_whose_grammar_takes_too_long_for_a_token(engine, tools, monkeypatch) -> None:
    grammar = build("regex", "[ab]{100}", "none")
    assert answers(engine, tools, asked(grammar, 1, max_tokens=9))["0"][1] == "length"
    monkeypatch.setattr("tangram_engine.sample.grammar.ADVANCE_CPU_S", 0.0)
    assert answers(engine, tools, asked(grammar, 1, max_tokens=9))["0"][1] == "grammar"


def test_an_end_token_that_follows_a_failed_mask_ends_no_answer_well(engine, tools, monkeypatch) -> None:
    grammar = build("regex", "[ab]{2}", "none")
    assert answers(engine, tools, asked(grammar, 1))["0"][1] == "stop"
    monkeypatch.setattr(type(engine._grammars), "failed", lambda *_: True)
    assert answers(engine, tools, asked(grammar, 1))["0"][1] == "grammar"
