"""Requests that set no sampling parameter get those that the checkpoint recommends, as with vLLM."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_engine.checkpoint import CheckpointError
from tangram_engine.messages import EngineInfo
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule.request import defect
from tangram_engine.serve.http.body import parse
from tangram_engine.serve.http.defaults import GENERATION_CONFIG, SamplingDefaults, read_defaults
from tangram_engine.serve.http.params import ChatRequest, CompletionRequest
from tangram_engine.serve.prepare_requests import RequestPreparer
from tangram_engine.serve.text.client import TextClient
from tangram_engine.serve.text.tokenizer import TextTools, load_tokenizer
from tests.support.engine_process import engine_process

RECOMMENDED = {
    "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05,
    "do_sample": True, "eos_token_id": [1],
}  # fmt: skip
INFO = EngineInfo(16, 1024, 512, 8, 512, 320, "float32", "cpu", 0.0, 0.0)


def written(directory: Path, config: dict[str, Any]) -> Path:
    (directory / GENERATION_CONFIG).write_text(json.dumps(config))
    return directory


Parts = tuple[TextClient, TextTools]


@pytest.fixture(scope="module")
def parts(served_model: Path) -> Iterator[Parts]:
    with closing(TextClient(served_model, 320, workers=1)) as text:
        text.start()
        yield text, load_tokenizer(served_model)


def params(
    parts: Parts, defaults: SamplingDefaults, request: CompletionRequest | ChatRequest
) -> SamplingParams:
    (prepared,) = RequestPreparer(*parts, INFO, defaults).requests(request, arrival=0.0)
    assert defect(prepared, INFO.vocab_size, INFO.max_model_len) is None
    return prepared.params


def test_what_a_request_does_not_set_comes_from_the_checkpoint(parts: Parts, tmp_path: Path) -> None:
    defaults = read_defaults(written(tmp_path, RECOMMENDED), "auto")
    unset = params(parts, defaults, CompletionRequest(model="tiny", prompt="the"))
    assert (unset.temperature, unset.top_p, unset.top_k, unset.min_p, unset.repetition_penalty) == (
        0.6, 0.95, 20, 0.05, 1.05,
    )  # fmt: skip
    own = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    request = msgspec.convert({"model": "tiny", "prompt": "the", **own}, CompletionRequest)
    answered = params(parts, defaults, request)
    assert {name: getattr(answered, name) for name in own} == own


def test_with_vllm_as_the_source_the_checkpoint_recommends_nothing(tmp_path: Path) -> None:
    assert read_defaults(written(tmp_path, RECOMMENDED), "vllm") == SamplingDefaults()
    assert read_defaults(tmp_path / "none", "auto") == SamplingDefaults()


def test_max_new_tokens_bounds_every_answer(parts: Parts) -> None:
    defaults = SamplingDefaults(max_new_tokens=40)
    completion = {"model": "tiny", "prompt": "the"}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "the"}]}

    def longest(request: CompletionRequest | ChatRequest) -> int:
        return params(parts, defaults, request).max_tokens

    assert longest(msgspec.convert(completion, CompletionRequest)) == 16
    assert longest(msgspec.convert(completion | {"max_tokens": 100}, CompletionRequest)) == 40
    assert longest(parse(msgspec.json.encode(chat), ChatRequest)) == 40
    assert longest(parse(msgspec.json.encode(chat | {"max_completion_tokens": 5}), ChatRequest)) == 5


@pytest.mark.parametrize("name", SamplingDefaults.__struct_fields__)
@pytest.mark.parametrize("value", [-1.5, "hot", True, [0.5], {}, 10**400, 1e308])
def test_a_value_out_of_bounds_is_ignored_with_a_warning(
    name: str, value: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"temperature": 0.5, "top_p": 0.5} | {name: value}
    defaults = read_defaults(written(tmp_path, config), "auto")
    expected = {"temperature": 0.5, "top_p": 0.5} | {name: None}
    assert {key: getattr(defaults, key) for key in expected} == expected
    assert f"{name} is ignored" in caplog.text


values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))


@given(config=st.dictionaries(st.sampled_from([*SamplingDefaults.__struct_fields__, "other"]), values))
def test_no_generation_config_makes_a_request_that_the_engine_refuses(
    config: dict[str, Any], parts: Parts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.getbasetemp()
    try:
        defaults = read_defaults(written(directory, config), "auto")
    except CheckpointError:
        return
    params(parts, defaults, CompletionRequest(model="tiny", prompt="the"))


@pytest.mark.parametrize(("flags", "tokens"), [((), 3), (("--generation-config", "vllm"), 16)])
def test_a_server_serves_with_hostile_recommendations(
    flags: tuple[str, ...], tokens: int, served_model: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(served_model, tmp_path / "model")
    written(model, {"temperature": -1, "top_p": "x", "top_k": 1e308, "max_new_tokens": 3})
    with engine_process(model, tmp_path / "log", *flags, fake={}) as server:
        answer = server.complete("the quick")
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == tokens


def test_whole_numbers_that_are_written_as_floats_are_recommendations(tmp_path: Path) -> None:
    defaults = read_defaults(written(tmp_path, {"top_k": 20.0, "max_new_tokens": 512.0, "top_p": 1}), "auto")
    assert (defaults.top_k, defaults.max_new_tokens, defaults.top_p) == (20, 512, 1.0)
    assert (
        read_defaults(written(tmp_path, {"top_k": 20.5, "max_new_tokens": True}), "auto")
        == SamplingDefaults()
    )
