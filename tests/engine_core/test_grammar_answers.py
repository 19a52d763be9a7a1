"""Sampled answers of every kind of schema are valid by a validator that knows nothing of llguidance.

Most are drawn by the grammar layer and random logits: masks, tokens and ends are those of the engine, without
its sampler, its upload of masks and its order of steps. A share runs through the whole engine, in both modes.
"""

import json
from random import Random
from typing import Any

import numpy as np
import pytest

from tangram_engine.config import EngineConfig
from tangram_engine.run.engine import LLMEngine
from tangram_engine.sample.grammar import Grammars
from tangram_engine.sample.params import SamplingParams
from tangram_engine.sample.vocabulary import Vocabulary
from tangram_engine.schedule import Request
from tangram_engine.serve.text.grammar import build
from tangram_engine.serve.text.tokenizer import load_tokenizer
from tests.support.schema_kinds import KINDS, validator
from tests.support.served_model import CONFIG, write_model

SIZE = CONFIG["vocab_size"]
MOST_TOKENS = 700
TEMPERATURES = (0.5, 2.0, 8.0)  # of standard normal logits
# Schemas, and answers of each, of one kind: a share, and the campaign's 500.
SHARES = [(2, 8), pytest.param((25, 20), marks=pytest.mark.campaign)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("answers") / "model")


@pytest.fixture(scope="module")
def tools(model):
    return load_tokenizer(model)


@pytest.fixture(scope="module")
def vocabulary(tools):
    return Vocabulary(tuple(map(tools.token_bytes, range(SIZE))), tuple(tools.special), (tools.end_token,))


@pytest.fixture(scope="module")
def grammars(vocabulary):
    layer = Grammars(SIZE)
    layer.use(vocabulary)
    return layer


def drawn(grammars: Grammars, grammar: str, count: int, end: int, seed: int) -> list[list[int] | None]:
    """Tokens of so many answers, step by step together; None for one that does not end."""
    random = np.random.default_rng(seed)
    running = {str(number): number for number in range(count)}
    answers: list[list[int] | None] = [[] for _ in range(count)]
    for name in running:
        grammars.begin(name, grammars.compile(grammar).result())
    for _ in range(MOST_TOKENS):
        bits = grammars.bits(list(running))
        allowed = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, :SIZE].astype(bool)
        assert allowed.any(axis=1).all()
        noise = random.gumbel(size=allowed.shape)
        logits = random.normal(size=allowed.shape) / TEMPERATURES[seed % len(TEMPERATURES)]
        tokens = np.where(allowed, logits + noise, -np.inf).argmax(axis=1)
        for (name, number), token in zip(list(running.items()), tokens.tolist(), strict=True):
            if token != end:
                answers[number].append(token)  # type: ignore[union-attr]
            if token == end or not grammars.advance(name, token):
                del running[name]
                grammars.end(name)
        if not running:
            break
    for name, number in running.items():
        grammars.end(name)
        answers[number] = None
    return answers


@pytest.mark.parametrize("share", SHARES, ids=["share", "campaign"])
@pytest.mark.parametrize("kind", KINDS)
def test_random_answers_are_valid_by_their_schema(
    kind: str, share: tuple[int, int], grammars: Grammars, tools
) -> None:
    schemas, count = share
    texts, cut = set(), 0
    for seed in range(schemas):
        schema = KINDS[kind](Random(f"{kind} {seed}"))
        judge = validator(schema)
        for tokens in drawn(
            grammars, build("json", json.dumps(schema), "none"), count, tools.end_token, seed
        ):
            if tokens is None:
                cut += 1
                continue
            text = tools.decode(tokens)
            texts.add((seed, text))
            errors = [error.message for error in judge.iter_errors(json.loads(text))]
            assert errors == [], (schema, text)
    assert cut <= schemas * count / 20
    assert len(texts) > schemas * count / 4


def asked(count: int, grammar: str, first: int) -> list[Request]:
    return [
        Request(
            f"{first + seed}",
            (5, 6, 7 + seed),
            SamplingParams(max_tokens=300, temperature=1.0 + seed % 2, seed=seed, grammar=grammar),
            0.0,
        )
        for seed in range(count)
    ]


def answered(engine: LLMEngine, requests: list[Request]) -> dict[str, list[int]]:
    ids: dict[str, list[int]] = {request.id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work():
        for output in engine.step()[0]:
            ids[output.request_id].append(output.token)
    engine.audit()
    return ids


@pytest.mark.parametrize(
    "kinds", [["nested"], pytest.param(list(KINDS), marks=pytest.mark.campaign)], ids=str
)
def test_the_engine_gives_the_same_valid_answers_in_both_modes(
    kinds: list[str], model, tools, vocabulary
) -> None:
    config: Any = EngineConfig(
        model, device="cpu", max_num_seqs=32, max_num_batched_tokens=256, kv_cache_bytes=16 << 20
    )
    given = []
    for lag in (0, 1):
        engine = LLMEngine(config, lag)
        engine.use_vocabulary(vocabulary)
        requests = [
            request
            for number, kind in enumerate(kinds)
            for request in asked(
                16, build("json", json.dumps(KINDS[kind](Random(kind))), "none"), 16 * number
            )
        ]
        given.append(answered(engine, requests))
    assert given[0] == given[1]
    ended = 0
    for name, tokens in given[0].items():
        if len(tokens) < 300:
            ended += 1
            judge = validator(KINDS[kinds[int(name) // 16]](Random(kinds[int(name) // 16])))
            judge.validate(json.loads(tools.decode(tokens)))
    assert ended > 0.9 * len(given[0])
