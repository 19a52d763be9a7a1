"""An EngineRuntime is checked before a pod starts: flags, holes, what must be set and what must never be."""

import json
import time

import pytest

from tangram.api import parse_engine_runtime, runtime_in_force
from tangram.fleet import EngineRuntime
from tangram.runtimes.flag_tables import flag_table, known_flags, known_versions
from tangram.runtimes.forbidden import FLAGS, forbidden_flag, forbidden_value
from tests.support.runtimes import (
    OTHERS,
    parsed,
    refusal,
    runtime_cases,
    runtime_object,
    shipped,
    shipped_spec,
)


def words(name: str) -> list[str]:
    arguments: list[str] = shipped_spec(name)["arguments"]
    return arguments


@pytest.mark.parametrize("name", OTHERS)
def test_the_runtimes_of_the_chart_are_accepted_and_off_without_an_image(name):
    spec = shipped_spec(name)
    del spec["image"]

    assert shipped(name).is_on
    without = parse_engine_runtime(runtime_object(name, spec))
    assert isinstance(without, EngineRuntime)
    assert not without.is_on


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "word",
    [
        "--trust-remote-code",
        "--trust_remote_code",
        "--trust-remote-code=true",
        "--no-trust-remote-code",
        "--trust-rem",  # argparse takes the beginning of a name
        "--tru",
        "--config",
        "--config=/models/weights/options.yaml",
        "--conf",
        "--hf-overrides",
        '--hf-overrides={"auto_map": {"AutoModel": "code.Model"}}',
        "--hf-overrides.trust_remote_code",
        "--hf_overrides",
        "--worker-cls=evil.Worker",
        "--enable-custom-logit-processor",
        "--middleware",
        "-O3",
        '{"trust_remote_code": true}',
        r'{"\u0074rust_remote_code": true}',
        '{"a": {"b": ["{\\"trust-remote-code\\": 1}"]}}',
        "TrustRemoteCode=1",
        "trust_remote_code: true",
        "--served-model-name\n--trust-remote-code",
        "--chat-template\u2028x",
    ],
)
def test_what_runs_code_of_a_checkpoint_is_admissible_in_no_spelling(name, word):
    for field in ("arguments", "command"):
        spec = shipped_spec(name)
        spec[field] = [*spec.get(field, []), word]

        message = refusal(name, **{field: spec[field]})

        assert message.startswith(f"spec.{field}[{len(spec[field]) - 1}]"), message
        assert "\n" not in message
    variables = [*shipped_spec(name)["variables"], {"name": "EXTRA", "value": word}]
    assert refusal(name, variables=variables).startswith(f"spec.variables[{len(variables) - 1}]")


@pytest.mark.parametrize(
    "variable",
    [
        *("NIM_TRUST_CUSTOM_CODE", "nim_trust_custom_code", "HF_TRUST_REMOTE_CODE", "VLLM_SERVER_DEV_MODE"),
        *("PYTHONPATH", "LD_PRELOAD", "VLLM_PLUGINS", "HF_TOKEN", "VLLM_API_KEY", "TANGRAM_POD_UID"),
    ],
)
def test_variables_that_run_code_or_hold_secrets_are_neither_set_nor_listed(variable):
    assert variable in refusal("nim", variables=[{"name": variable, "value": "1"}])
    assert refusal("nim", allowedVariables=[variable]).startswith("spec.allowedVariables[0]")


def test_a_flag_that_begins_like_a_forbidden_one_stands_for_itself():
    assert forbidden_flag("--config-format", known_flags("vLLM")) == ""
    assert forbidden_flag("--config-format") == ""
    assert forbidden_flag("--conf", known_flags("vLLM")) == "--config"


def test_every_forbidden_flag_that_no_known_version_has_is_there_on_purpose():
    known = known_flags("vLLM") | known_flags("SGLang")

    # Of other versions and of NIM; everything else is spelled as the released wheels spell it.
    assert {flag for flag in FLAGS if flag.startswith("--") and flag not in known} <= {
        *("--mcp-server", "--sidecar", "--enable-sidecar"),
    }


def test_a_retired_flag_is_refused_for_a_known_version_and_warned_of_for_another():
    arguments = [*words("sglang"), "--collect-tokens-histogram"]

    assert "--collect-tokens-histogram is no flag of SGLang 0.5.23" in refusal("sglang", arguments=arguments)
    other = shipped("sglang", arguments=arguments, version="0.4.9")
    assert "--collect-tokens-histogram" in other.warnings[0]
    assert "not for the version 0.4.9" in other.warnings[0]


def test_a_flag_of_one_known_version_is_named_where_another_lacks_it():
    newest, previous = (flag_table("vLLM", version) for version in known_versions("vLLM"))
    assert newest is not None
    assert previous is not None
    (gone, *_) = sorted(previous.canonical.keys() - newest.canonical.keys()) or [""]
    if not gone:
        (gone, *_) = sorted(newest.canonical.keys() - previous.canonical.keys())
        newest, previous = previous, newest

    assert newest.problem(gone) == f"{gone} is a flag of vLLM {previous.version}, not of {newest.version}"


def test_a_misspelled_flag_is_refused_with_the_one_that_is_meant():
    message = refusal("vllm", arguments=[*words("vllm"), "--enable-prefix-cachin"])

    assert message.endswith("; is --enable-prefix-caching meant?")


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        *(("vllm", flag) for flag in ("--max-num-batched-tokens", "--max-num-seqs", "--shutdown-timeout")),
        *(("vllm", flag) for flag in ("--gpu-memory-utilization", "--load-format", "--served-model-name")),
        *(("sglang", flag) for flag in ("--host", "--enable-metrics", "--admin-api-key", "--tp-size")),
    ],
)
def test_a_flag_that_must_be_set_is_missed(name, flag):
    arguments = words(name)
    position = arguments.index(flag)
    del arguments[position : position + (1 if flag == "--enable-metrics" else 2)]

    assert refusal(name, arguments=arguments).startswith(f"spec.arguments: must set {flag}")


def test_a_flag_that_the_plan_fills_has_no_value_of_its_own_and_is_set_once():
    arguments = words("vllm")
    arguments[arguments.index("{maxBatchedTokens}")] = "2048"
    assert "must have the value {maxBatchedTokens}" in refusal("vllm", arguments=arguments)

    twice = [*words("vllm"), "-tp", "{tensorParallel}"]
    assert "sets --tensor-parallel-size a second time" in refusal("vllm", arguments=twice)


def without_stages(name):
    return [
        word
        for word in words(name)
        if word not in {"--pipeline-parallel-size", "--pp-size", "{pipelineParallel}"}
    ]


@pytest.mark.parametrize(("name", "spelling"), [("vllm", "-pp"), ("sglang", "--pp-size")])
def test_stages_are_those_of_the_plan_or_one(name, spelling):
    """A fixed number of stages would need GPUs that the pod does not have."""
    assert not parsed(name, arguments=without_stages(name)).has_stages

    fixed = [*without_stages(name), spelling, "2"]
    assert "--pipeline-parallel-size must have the value {pipelineParallel}" in refusal(name, arguments=fixed)

    listed = {"arguments": without_stages(name), "allowedArguments": [spelling]}
    assert f"only spec.arguments may set {spelling}" in refusal(name, **listed)


def test_weights_are_loaded_from_safetensors_alone():
    arguments = [word if word != "safetensors" else "auto" for word in words("vllm")]

    assert "--load-format must have the value safetensors" in refusal("vllm", arguments=arguments)


def test_an_unknown_hole_is_refused_and_braces_of_json_are_none():
    assert "{modelPth} is not one of {modelPath}" in refusal("nim", arguments=["--model", "{modelPth}"])
    assert "a word of its own" in refusal("sglang", arguments=[*words("sglang"), "x{ttftEdgeWords}"])


def test_what_llm_deployments_may_add_is_not_what_the_runtime_sets():
    assert refusal("vllm", allowedArguments=["--max-num-seqs"]).endswith(
        "spec.arguments sets --max-num-seqs already"
    )
    assert refusal("vllm", allowedArguments=["-tp"]).endswith("spec.arguments sets -tp already")
    assert refusal("vllm", allowedVariables=["HOME"]).endswith("spec.variables sets HOME already")


@pytest.mark.parametrize(
    "image", ["vllm/vllm-openai:latest", "vllm/vllm-openai", "x@sha256:12", f"a b@sha256:{'0' * 64}"]
)
def test_an_image_has_a_digest(image):
    assert refusal("vllm", image=image).startswith("spec.image")


def test_the_name_of_the_bundled_engine_is_taken():
    spec = shipped_spec("vllm")

    assert (
        "'tangram' is the name of the bundled engine"
        in parse_engine_runtime(runtime_object("tangram", spec)).message
    )
    assert isinstance(parsed("tangram"), EngineRuntime)


def test_a_broken_edit_leaves_the_last_accepted_spec_in_force():
    good = shipped_spec("vllm")
    obj = runtime_object(
        "vllm", good | {"arguments": []}, acceptedSpec={"generation": 3, "spec": json.dumps(good)}
    )

    runtime = runtime_in_force(obj)

    assert isinstance(runtime, EngineRuntime)
    assert runtime.arguments
    assert "must set --max-num-batched-tokens" in runtime.refused_edit
    assert runtime.refused_edit.endswith("the spec of generation 3 stays in force")


def test_the_longest_spec_is_checked_in_a_tenth_of_a_second():
    nested = "[" * 500 + "]" * 500
    arguments = [
        *words("vllm"),
        *(["x" * 1024] * 50),
        *([nested] * 20),
        *(['{"a":' * 150 + "1" + "}" * 150] * 20),
    ]
    began = time.process_time()

    parsed("vllm", arguments=arguments[:128])

    assert time.process_time() - began < 0.1
    assert "spec.arguments" in refusal("vllm", arguments=["x"] * 129)
    assert "spec.arguments" in refusal("vllm", arguments=["x" * 1025])


def test_deep_json_hides_nothing_and_raises_nothing():
    assert forbidden_value('{"a":' * 200 + '{"trust_remote_code":1}' + "}" * 200)
    assert forbidden_value("[" * 10_000) == ""


@pytest.mark.parametrize("case", runtime_cases(), ids=lambda case: case["name"])
def test_the_parser_judges_as_the_api_server_does(case):
    name = case["name"] if case["verdict"] == "accepted" else "vllm"
    runtime = parse_engine_runtime(runtime_object(name, case["spec"]))

    assert isinstance(runtime, EngineRuntime) == (case["verdict"] == "accepted")
    assert isinstance(runtime, EngineRuntime) or case["message"] in runtime.message
