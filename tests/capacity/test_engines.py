"""Engines by any name, and what old ones spend beside their kernels."""

import pytest

from tangram.capacity.accuracy.as_served import kv_tokens, served
from tangram.capacity.hardware import hardware
from tangram.capacity.memory.engine_buffers import EngineSettings
from tangram.capacity.steps.calibration import Basis, coefficients_for
from tangram.capacity.steps.engines import EngineVersion, aged, engine, year
from tangram.capacity.steps.step_model import Coefficients
from tangram.catalog import InputError, known_model


@pytest.mark.parametrize(
    ("name", "version", "means"),
    [
        ("TensorRT-LLM", "1.0.0rc3", EngineVersion("trtllm", "1.0.0rc3")),
        ("trt-llm", None, EngineVersion("trtllm", None)),
        ("tensorrt_llm", "", EngineVersion("trtllm", "")),
        ("vLLM", "v0.18.0", EngineVersion("vllm", "0.18.0")),
        ("vLLM v0.6.3", "", EngineVersion("vllm", "0.6.3")),
        ("vllm-0.6.3.post1", None, EngineVersion("vllm", "0.6.3.post1")),
        ("vllm", "0.18.0+cu128", EngineVersion("vllm", "0.18.0")),
        ("SGLang 0.5.6", "", EngineVersion("sglang", "0.5.6")),
        ("TGI", "2.0", EngineVersion("tgi", "2.0")),
        ("text-generation-inference", None, EngineVersion("tgi", None)),
        ("LMDeploy (TurboMind)", None, EngineVersion("lmdeploy", None)),
        ("roofline", None, EngineVersion("roofline", None)),
        (None, None, EngineVersion("", None)),
    ],
)
def test_an_engine_is_understood_in_any_spelling(
    name: str | None, version: str | None, means: EngineVersion
) -> None:
    assert engine(name, version) == means


@pytest.mark.parametrize(
    ("name", "version", "since"),
    [
        ("vllm", "0.2.7", 2023),
        ("vllm", "0.6.3", 2024),
        ("vllm", "0.8.5", None),
        ("vllm", "0.18.0", None),
        ("vllm", "2024", 2024),
        ("vllm", "2025-03", None),
        ("vllm", "", None),
        ("vllm", None, None),
        ("vllm", "nightly", None),
        ("sglang", "0.3.5", 2024),
        ("sglang", "0.5.1.post1", None),
        ("trtllm", "0.12.0", 2024),
        ("trtllm", "1.0.0rc3", None),
        ("tgi", "2.3.1", 2024),
        ("lmdeploy", "0.2.0", None),
        ("lmdeploy", "2024", None),
        ("anything", "0.1", None),
    ],
)
def test_a_version_tells_an_engines_age(name: str, version: str | None, since: int | None) -> None:
    assert year(EngineVersion(name, version)) == since


def test_an_old_engine_is_slower_beside_its_kernels_and_marked() -> None:
    new, old = coefficients_for("vllm", "0.19.1"), coefficients_for("vLLM v0.6.3", "")

    assert old.coefficients == aged(new.coefficients, 2024)
    assert old.coefficients.layer_s == pytest.approx(2 * new.coefficients.layer_s)
    assert old.coefficients.weights == new.coefficients.weights
    assert (old.basis, old.key, old.unverified) == (Basis.ENGINE, "vllm, slowed to 2024", True)
    assert not new.unverified
    assert aged(Coefficients(), None) == Coefficients()


def test_what_ran_is_predicted_even_where_our_rules_would_not_start_it() -> None:
    """Eight bits on an A100 are unpacked, and Qwen padded the checkpoint that would be cut within a block."""
    model = known_model("Qwen2.5-72B")
    assert model is not None
    on = hardware("A100-80GB-SXM", ranks=2)

    eight, cut = (served(model, form, "vllm", 2, on) for form in ("FP8", "GPTQ-Int4"))

    assert (eight.compute, cut.compute) == ("bf16", "bf16")
    assert 36e9 < eight.weight_bytes < 40e9
    assert 18e9 < cut.weight_bytes < 23e9
    with pytest.raises(InputError, match="does not divide"):
        served(model, "fp16", "vllm", 3, on)


def test_the_cache_of_what_ran_held_a_request_at_least() -> None:
    model = known_model("Llama-3.1-70B")
    assert model is not None
    on = hardware("H100-80GB-SXM")

    assert kv_tokens(served(model, "fp16", "vllm", 1, on), on, EngineSettings(max_model_len=2048)) == 2048
