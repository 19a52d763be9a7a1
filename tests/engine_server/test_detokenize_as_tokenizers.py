"""Text that is decoded token by token is the text of the whole, by the library's own decoders."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from tangram_engine.serve.text.detokenize import Detokenizer
from tangram_engine.serve.text.tokenizer import TextTools, load_tokenizer
from tests.support.served_model import byte_tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["\u2581red", "\u2581", "\u2581\u2581", "green", "blue", ",", "\u00e9", "a\u2581b"]
SPECIAL = ["<s>", "</s>", "<\uff5cend\u2581of\u2581turn\uff5c>"]
ORDINARY = ["<tool\u2581call>", "\u0120think"]
LLAMA = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
DECODERS = {
    "byte level": decoders.ByteLevel(),
    "Metaspace": decoders.Metaspace(),
    "Metaspace, no space before the text": decoders.Metaspace(prepend_scheme="never"),
    "Llama": decoders.Sequence(LLAMA),
    "Llama, strips two spaces": decoders.Sequence([*LLAMA[:3], decoders.Strip(" ", 2, 0)]),
    "byte fallback, spaces as they are": decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]),
}


def sentence_pieces(decoder: object) -> Tokenizer:
    vocabulary = ["<unk>", *BYTES, *WORDS]
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoder
    return tokenizer


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextTools]:
    loaded = {}
    for name, decoder in DECODERS.items():
        tokenizer = byte_tokenizer() if name == "byte level" else sentence_pieces(decoder)
        tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ORDINARY])
        directory = tmp_path_factory.mktemp("tokenizer")
        tokenizer.save(str(directory / "tokenizer.json"))
        loaded[name] = load_tokenizer(directory)
    return loaded


def ids_of(tools: TextTools, unit: str) -> list[int]:
    """A piece as it is, else its characters, or those that no piece has as bytes."""
    token = tools.tokenizer.token_to_id(unit)
    if token is not None:
        return [token]
    if tools.longest_token is not None:
        return tools.encode(unit, add_special_tokens=False)
    return [tools.tokenizer.token_to_id(BYTES[byte]) for byte in unit.encode()]


UNITS = st.lists(
    st.sampled_from([*WORDS, *SPECIAL, *ORDINARY])
    | st.sampled_from(["\u4f60", "\U0001f600", "\u00e4", " ", "dog"]),
    max_size=14,
)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=150, deadline=None)
@given(prompt=UNITS, answer=UNITS, skip=st.booleans(), missing=st.integers(0, 14))
def test_the_pieces_are_the_text_of_the_whole(
    name: str, prompt: list[str], answer: list[str], skip: bool, missing: int, tools: dict[str, TextTools]
) -> None:
    tool = tools[name]
    before, after = ([token for unit in units for token in ids_of(tool, unit)] for units in (prompt, answer))
    after.insert(missing, 100_000)  # a row of the embedding that no token has
    decode = partial(tool.decode, skip_special_tokens=skip)
    detokenizer = Detokenizer(decode, before, partial(tool.drops, skip_special_tokens=skip))
    text = "".join(detokenizer.push(token) for token in after) + detokenizer.flush()
    assert text == decode(before + after)[len(decode(before)) :]


@pytest.mark.parametrize("name", DECODERS)
def test_the_bytes_of_tokens_are_their_text_between_others(name: str, tools: dict[str, TextTools]) -> None:
    tool = tools[name]
    (fence,) = ids_of(tool, "o" if name == "byte level" else "green")
    for token in range(tool.tokenizer.get_vocab_size()):
        text = tool.decode([fence, token, fence], skip_special_tokens=False)
        raw = tool.token_bytes(fence) + tool.token_bytes(token) + tool.token_bytes(fence)
        assert raw.decode(errors="replace") == text


def test_tokens_without_text_are_decoded_a_bounded_number_of_times() -> None:
    decoded = 0

    def decode(ids: list[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return "".join("" if token else "a" for token in ids)

    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.push(token) for token in [*[1] * 2000, 0]]
    assert "".join(pieces) == "a"
    assert decoded < 2001 * 200


def test_special_tokens_at_the_end_of_a_prompt_do_not_hide_its_text(tools: dict[str, TextTools]) -> None:
    tool = tools["Llama"]
    red, special = ids_of(tool, "\u2581red")[0], ids_of(tool, SPECIAL[0])[0]
    assert Detokenizer(tool.decode, [red, *[special] * 100], tool.drops).push(red) == " red"
    assert Detokenizer(tool.decode, [special] * 100, tool.drops).push(red) == "red"
