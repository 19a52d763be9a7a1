"""Tokens that files beside tokenizer.json declare are those of transformers, with their ids and flags."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from msgspec import Raw

from tangram_engine.checkpoint import CheckpointError
from tangram_engine.messages import EngineInfo
from tangram_engine.serve.http.defaults import SamplingDefaults
from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.http.params import ChatRequest, CompletionRequest
from tangram_engine.serve.prepare_requests import RequestPreparer
from tangram_engine.serve.text.declared_tokens import read_declared_tokens
from tangram_engine.serve.text.tokenizer import TextTools, load_chat_template, load_tokenizer
from tests.support.served_model import byte_tokenizer

TEXT = "<s> the <|new|> dog  <|more|>\tfox</s> over <|tool|><e>the"
INFO = EngineInfo(16, 64, 512, 8, 512, 320, "float32", "fake", 0.0, 0.0)
SIZE = byte_tokenizer().get_vocab_size()


def token(content: str, **flags: bool) -> dict[str, Any]:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {"content": content, **plain, **flags}


def written_out(content: str) -> dict[str, Any]:
    return {"__type": "AddedToken", **token(content)}


def write(directory: Path, files: dict[str, Any]) -> Path:
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


ADDED = {str(SIZE): token("<|new|>"), str(SIZE + 1): token("<|more|>", special=False)}
FILES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "by id": {"tokenizer_config": {"added_tokens_decoder": ADDED}},
    "by id, of which some are in tokenizer.json": {
        "tokenizer_config": {"added_tokens_decoder": {"0": token("<s>"), "1": token("</s>"), **ADDED}}
    },
    "by id, with other flags than in tokenizer.json": {
        "tokenizer_config": {"added_tokens_decoder": {"0": token("<s>", rstrip=True), "1": token("</s>")}}
    },
    "by id, with spaces around": {
        "tokenizer_config": {
            "added_tokens_decoder": {
                str(SIZE): token("<|new|>", lstrip=True),
                str(SIZE + 1): token("<|more|>", rstrip=True, special=False),
            }
        }
    },
    "by id, special by its name": {
        "tokenizer_config": {
            "eos_token": "<|new|>",
            "added_tokens_decoder": {str(SIZE): token("<|new|>", special=False, normalized=True)},
        }
    },
    "by id, and the older files are not read": {
        "tokenizer_config": {"eos_token": "</s>", "added_tokens_decoder": ADDED},
        "special_tokens_map": {"bos_token": "<s>", "eos_token": "<|more|>"},
        "added_tokens": {"<|tool|>": SIZE},
    },
    "added_tokens.json": {"added_tokens": {"<|more|>": SIZE + 1, "<|new|>": SIZE}},
    "added_tokens.json, special by the map": {
        "added_tokens": {"<|more|>": SIZE + 1, "<|new|>": SIZE},
        "special_tokens_map": {"eos_token": token("<|new|>")},
    },
    "added_tokens.json repeats tokenizer.json": {"added_tokens": {"<s>": 0, "</s>": 1, "<|new|>": SIZE}},
    "special names alone": {"tokenizer_config": {"eos_token": "<|new|>", "pad_token": "<|more|>"}},
    "a special name of an ordinary entry": {"tokenizer_config": {"eos_token": "the"}},
    "special names written out": {"tokenizer_config": {"eos_token": written_out("<|new|>")}},
    "extra special tokens": {"tokenizer_config": {"extra_special_tokens": ["<|new|>", "<|tool|>"]}},
    "additional special tokens": {"tokenizer_config": {"additional_special_tokens": ["<|new|>", "<|tool|>"]}},
    "extra special tokens with names": {"tokenizer_config": {"extra_special_tokens": {"e_token": "<e>"}}},
    "a model's own special token": {"tokenizer_config": {"tool_token": "<|tool|>", "add_bos_token": True}},
    "the map alone": {"special_tokens_map": {"bos_token": "<s>", "eos_token": token("<|more|>")}},
    "the map against tokenizer_config": {
        "tokenizer_config": {"bos_token": "<|user|>", "eos_token": None, "pad_token": "<e>"},
        "special_tokens_map": {"bos_token": "<s>", "eos_token": "</s>"},
    },
}


@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
def test_declared_tokens_are_those_of_transformers(files: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, files)
    oracle = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    tools = load_tokenizer(tmp_path)
    ids = oracle(TEXT, add_special_tokens=False)["input_ids"]
    assert tools.encode(TEXT, add_special_tokens=False) == ids
    assert tools.decode(ids) == oracle.decode(ids, skip_special_tokens=True)
    assert tools.end_token == oracle.eos_token_id
    assert read_declared_tokens(tmp_path).texts == oracle.special_tokens_map


def test_a_template_gets_the_special_tokens_of_every_file(tmp_path: Path) -> None:
    write(tmp_path, {"special_tokens_map": {"bos_token": token("<s>"), "sep_token": "<|new|>"}})
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ sep_token }}{{ eos_token }}")
    template = load_chat_template(tmp_path)
    assert template is not None
    assert template.render([], {}) == "<s><|new|>"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an id of another token": (
        {"tokenizer_config": {"added_tokens_decoder": {"7": token("<|new|>")}}},
        "tokenizer_config.json declares '<|new|>' as token 7, and tokenizer.json has",
    ),
    "another id of a token": (
        {"added_tokens": {"<s>": SIZE}},
        f"added_tokens.json declares '<s>' as token {SIZE}, and tokenizer.json makes it 0",
    ),
    "a gap": ({"added_tokens": {"<|new|>": SIZE + 3}}, f"makes it {SIZE}: ids must follow without a gap"),
    "no id": (
        {"tokenizer_config": {"added_tokens_decoder": {"x": token("<|new|>")}}},
        "added_tokens_decoder: 'x' is no token id",
    ),
    "ids that are no numbers": ({"added_tokens": {"<|new|>": "1"}}, "added_tokens.json: "),
    "a negative id": ({"added_tokens": {"<|new|>": -1}}, "added_tokens.json: "),
    "a token without content": (
        {"tokenizer_config": {"added_tokens_decoder": {"300": {}}}},
        "tokenizer_config.json: added_tokens_decoder: ",
    ),
    "a name of a number": ({"special_tokens_map": {"eos_token": 1}}, "special_tokens_map.json: eos_token: "),
}


@pytest.mark.parametrize(("files", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_added_is_refused_by_its_file(
    files: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(write(tmp_path, files))
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("fields", "stops"),
    [({}, (9,)), ({"stop_token_ids": [5]}, (5, 9)), ({"stop_token_ids": [5], "ignore_eos": True}, (5,))],
)
def test_the_end_token_of_the_tokenizer_ends_answers(fields: dict[str, Any], stops: tuple[int, ...]) -> None:
    tools = TextTools(None, longest_token=None, end_token=9)  # type: ignore[arg-type]
    preparer = RequestPreparer(None, tools, INFO, SamplingDefaults())  # type: ignore[arg-type]
    (request,) = preparer.requests(CompletionRequest(model="m", prompt=[1, 2], **fields), arrival=0.0)
    assert request.params.stop_token_ids == stops


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (CompletionRequest(model="m", prompt="a [PAD]"), "prompt"),
        (CompletionRequest(model="m", prompt=[5, 320]), "prompt"),
        (ChatRequest(model="m", messages=[Raw(b'{"role":"user","content":"a [PAD]"}')]), "messages"),
    ],
)
def test_a_prompt_with_a_token_beyond_the_embedding_is_refused(request_: Any, field: str) -> None:
    text = SimpleNamespace(
        has_template=True, chat=lambda *_, **__: (5, 320), encode=lambda *_, **__: (5, 320)
    )
    preparer = RequestPreparer(text, None, INFO, SamplingDefaults())  # type: ignore[arg-type]
    with pytest.raises(APIError, match=f"{field}: token id 320 is outside the vocabulary of 320") as caught:
        preparer.requests(request_, arrival=0.0)
    assert caught.value.status == 400
