"""Long tokens of a checkpoint: their texts are booked before they exist, and written a part at a time."""

import json
from pathlib import Path
from typing import Any

import pytest

from tangram_engine.checkpoint import CheckpointError
from tangram_engine.serve.answers.deltas import Delta
from tangram_engine.serve.api import MAX_DETOKENIZED
from tangram_engine.serve.generation import TokenLogprob
from tangram_engine.serve.http import jsonio
from tangram_engine.serve.replies import Chat, Completion
from tangram_engine.serve.text.tokenizer import TextTools, load_tokenizer
from tests.support.served_model import write_model

VOCAB = 320
LONG = 298  # the id of the added token
ACCEPTED = 1024  # characters
PIECE = 400_000  # bytes; as JSON, some milliseconds


def with_long_token(model: Path, characters: int) -> Path:
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokenizer["added_tokens"].append({"id": LONG, "content": "\u00e9" * characters, **flags})
    path.write_text(json.dumps(tokenizer))
    return model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return with_long_token(write_model(tmp_path / "model"), ACCEPTED)


class Pieces:
    """Records the length of all JSON that one call writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lengths: list[int] = []
        monkeypatch.setattr(jsonio, "_ENCODER", self)
        one_string = jsonio.string
        monkeypatch.setattr(jsonio, "string", lambda text: self._recorded(one_string(text)))

    def encode(self, value: Any) -> str:
        return self._recorded(json.dumps(value, separators=(",", ":")))

    def _recorded(self, written: Any) -> Any:
        self.lengths.append(len(written))
        return written


def test_longer_tokens_make_the_checkpoint_invalid(tmp_path: Path) -> None:
    model = with_long_token(write_model(tmp_path / "model"), ACCEPTED + 1)
    with pytest.raises(CheckpointError, match="token of 1025 characters; at most 1024 are accepted"):
        load_tokenizer(model)


def test_a_token_id_that_only_a_large_table_would_hold_makes_the_checkpoint_invalid(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    piece = max(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    tokenizer["model"]["vocab"][piece] = 1 << 31
    path.write_text(json.dumps(tokenizer))

    with pytest.raises(CheckpointError, match="token id 2147483648; at most 4194303 is accepted"):
        load_tokenizer(model)


@pytest.mark.parametrize("tokens", [[LONG], [LONG, 5, 9] * 50, [297, 3, 7, 250] * 99, [VOCAB, 1 << 31, 5]])
def test_the_bound_of_a_text_holds_without_decoding(model: Path, tokens: list[int]) -> None:
    tools = load_tokenizer(model)
    text = tools.decode(tokens, skip_special_tokens=False)
    assert text
    assert len(text) <= tools.most_characters(tokens) <= 3 * len(text) + len(tokens)


def test_tokens_without_a_decoder_are_bounded_with_the_blanks_between_them(model: Path) -> None:
    path = model / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder": None}))
    tools = load_tokenizer(model)
    tokens = list(range(5, LONG + 1))
    assert len(tools.decode(tokens)) <= tools.most_characters(tokens)


def test_many_tokens_are_decoded_by_the_call_that_gives_the_interpreter_away(model: Path) -> None:
    """`decode` of the library keeps the lock, for 0.4 s at eight million characters."""
    real = load_tokenizer(model).tokenizer
    lengths: list[int] = []

    class Recorded:
        def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
            lengths.append(len(ids))
            return str(real.decode(ids, skip_special_tokens=skip_special_tokens))

        def decode_batch(self, batch: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
            return real.decode_batch(batch, skip_special_tokens=skip_special_tokens)

    tools = TextTools(Recorded(), longest_token=None)  # type: ignore[arg-type]
    for count in (2, 20, 500, 5000):
        ids = [5 + number % 293 for number in range(count)]
        assert tools.decode(ids) == real.decode(ids)
    assert max(lengths) < 100


def test_a_long_string_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '\u00e9\U0001f389\ud800"\n' * 200_000
    pieces = Pieces(monkeypatch)
    raw = jsonio.dumps_in_pieces({"prompt": text})
    assert json.loads(raw) == {"prompt": text}
    assert len(raw) > 10 * PIECE
    assert max(pieces.lengths) <= PIECE


@pytest.mark.parametrize("dialect", [Chat, Completion])
@pytest.mark.parametrize("streamed", [True, False])
def test_logprobs_of_long_tokens_are_written_in_pieces(
    dialect: type[Chat | Completion], streamed: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = load_tokenizer(model)
    top = tuple((LONG, -1.0) for _ in range(20))
    delta = Delta(0, "x", tuple(TokenLogprob(LONG, -1.0, top, at) for at in range(100)))
    pieces = Pieces(monkeypatch)
    answer = dialect("tiny", tools, usage_in_chunks=False)
    raw = answer.chunk(delta) if streamed else answer.whole([[delta]], {})
    assert len(json.loads(raw)["choices"][0]["logprobs"]) > 1
    assert max(pieces.lengths) <= PIECE


def test_texts_are_booked_before_they_are_decoded(model: Path, start: Any) -> None:
    server = start("--max-body-bytes-in-flight", str(8 << 20), model=model)
    tools = load_tokenizer(model)
    assert len(tools.decode([LONG])) == ACCEPTED
    for count, status in ((300, 200), (1000, 503), (MAX_DETOKENIZED // ACCEPTED, 400)):
        answer = server.post("/detokenize", {"tokens": [LONG] * count})
        assert answer.status_code == status, answer.text[:200]
    assert answer.json()["error"]["param"] == "tokens"
    sampled = {"temperature": 0.0, "max_tokens": 100, "n": 4}
    assert server.complete("the", **sampled).status_code == 200
    booked = server.complete(["the"] * 16, **sampled, logprobs=20)
    assert (booked.status_code, booked.json()["error"]["code"]) == (503, "too_many_body_bytes")
    assert server.metric("tangram_engine_body_bytes") == 0
