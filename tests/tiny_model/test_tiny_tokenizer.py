"""The tokenizer takes any text and gives it back; the chat template frames it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

SPECIAL = ["<|begin|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"]
utf8 = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@pytest.fixture(scope="module")
def plain(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@given(text=utf8)
def test_any_text_survives_the_round_trip(plain, text):
    ids = plain.encode(text, add_special_tokens=False).ids

    assert plain.decode(ids, skip_special_tokens=False) == text


@given(parts=st.lists(utf8 | st.sampled_from(SPECIAL), max_size=8))
def test_text_that_spells_special_tokens_survives_too(plain, parts):
    text = "".join(parts)

    assert plain.decode(plain.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


@given(text=utf8)
def test_transformers_reads_the_same_ids_from_the_folder(plain, tokenizer, text):
    assert tokenizer(text)["input_ids"] == plain.encode(text).ids


@given(text=utf8)
def test_every_id_is_below_the_size_of_the_embedding(plain, text):
    assert all(token < 4096 for token in plain.encode(text).ids)


def test_the_vocabulary_fills_the_embedding(plain):
    assert plain.get_vocab_size() == 4096
    assert [plain.id_to_token(i) for i in range(6)] == SPECIAL


def test_english_prose_takes_fewer_than_one_token_per_three_bytes(plain, held_out_text):
    tokens = len(plain.encode(held_out_text).ids)

    assert tokens < len(held_out_text.encode()) / 3


def test_a_chat_is_framed_by_roles_and_left_open_for_the_assistant(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  Hi\n"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ]

    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)

    assert text == (
        "<|begin|><|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n"
        "<|assistant|>\nHello.<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n"
    )


def test_the_developer_role_is_read_as_system(tokenizer):
    text = tokenizer.apply_chat_template([{"role": "developer", "content": "Be brief."}], tokenize=False)

    assert text == "<|begin|><|system|>\nBe brief.<|end|>\n"


def test_an_unknown_role_is_refused_by_name(tokenizer):
    with pytest.raises(Exception, match="must be system, user or assistant, not tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "42"}], tokenize=False)
