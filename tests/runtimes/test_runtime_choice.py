"""Which runtime serves: the bundled engine where it can, else the cheapest that may and can."""

import base64
import json
import zlib
from dataclasses import replace

import pytest

from tangram.api import facts_from_status, parse_report
from tangram.eligibility.runtime_request import runtimes_of, with_runtime
from tangram.eligibility.shapes.runtimes import launch
from tangram.fleet import (
    ApplyDeployment,
    ApplyService,
    CheckpointFacts,
    FactsKey,
    Intent,
    InvalidEngineRuntime,
    RuntimeOption,
    RuntimeRequest,
    SecretKey,
    Shape,
)
from tangram.plan import plan
from tangram.plan.fleet_input.documents.snapshot_file import read_snapshot, snapshot_document
from tangram.plan.fleet_input.fleet import read_fleet
from tangram.plan.offers.assessment import assessment
from tangram.plan.offers.node_offers import offers
from tangram.plan.status.status_block import facts_block
from tangram.shell.measure.predicted_capacities import CapacityInputs, PredictedCapacities
from tangram_engine.inspect import CONFIG_LIMIT, DOCUMENT_LIMIT, _compressed
from tests.catalog.real_checkpoints import real_checkpoints
from tests.support.fleet import FACTS_8B, IMAGE, NOW, claims, intent, node, shape, snapshot, workload
from tests.support.plans import run
from tests.support.runtimes import shipped

VLLM, SGLANG = shipped("vllm"), shipped("sglang")
MIXTRAL = "pvc://weights/mixtral"
OLMO = "pvc://weights/olmo"


def other_facts(repo):
    checkpoint = real_checkpoints()[repo]
    report = {
        "schema": 1,
        "error": {"reason": "UnknownArchitecture", "message": "config.json: not implemented"},
        "other": {
            "digest": "d",
            "weightBytes": 2 * checkpoint.parameters,
            "config": _compressed(checkpoint.config),
        },
    }
    facts = parse_report(json.dumps(report), NOW)
    assert isinstance(facts, CheckpointFacts), facts
    return facts


OLMO_FACTS = other_facts("allenai/OLMo-2-1124-7B")
OLMO_CONFIG = real_checkpoints()["allenai/OLMo-2-1124-7B"].config


def fleet(*runtimes, **changes):
    base = snapshot(
        node("a", gpu=4), node("b", mig_1g_10gb=2, mig_3g_40gb=2), runtimes=tuple(runtimes), **changes
    )
    return replace(base, facts=(*base.facts, (FactsKey("ns", OLMO, IMAGE), OLMO_FACTS)))


def decided(observed, wanted):
    named = with_runtime(wanted, runtimes_of(observed))
    result = plan(observed, (named,), NOW)
    applied = [action for action in result.actions if isinstance(action, ApplyDeployment)]
    return result.decisions[0], applied


def test_the_bundled_engine_serves_what_it_can():
    decision, (applied,) = decided(fleet(VLLM, SGLANG), intent(uri="image:///m/8b"))

    assert decision.shape.runtime == "tangram"
    assert applied.launch is None


def test_another_runtime_serves_what_the_bundled_engine_refuses():
    decision, (applied,) = decided(fleet(VLLM), intent(uri=OLMO))

    assert decision.placed == 1
    assert applied.shape.runtime == "vllm"
    assert applied.launch.runtime == VLLM
    assert applied.launch.weight_bytes == OLMO_FACTS.weight_bytes


def test_without_another_runtime_the_refusal_of_the_bundled_engine_stands():
    decision, applied = decided(fleet(), intent(uri=OLMO))

    assert not applied
    assert decision.placed_message.startswith("config.json: not implemented")


def test_of_two_runtimes_the_cheaper_one_serves_and_both_prices_are_told():
    decision, (applied,) = decided(fleet(VLLM, SGLANG), intent(uri=OLMO))

    assert applied.shape.runtime in ("vllm", "sglang")
    assert (
        f"runtime {applied.shape.runtime}: {applied.shape.runtime} is the cheapest" in decision.runtime_reason
    )
    assert "median error of TPOT" in decision.runtime_reason
    assert "sglang " in decision.runtime_reason
    assert "vllm " in decision.runtime_reason
    assert "tangram: config.json: not implemented" in decision.runtime_reason


def test_a_runtime_that_has_replicas_stays_whichever_is_cheaper():
    wanted = intent(uri=OLMO)
    for runtime in ("vllm", "sglang"):
        at = Shape("H100-80GB-SXM", "gpu", 1, "bf16", runtime)
        observed = fleet(VLLM, SGLANG, workloads=(workload(wanted, at),), claims=claims(wanted, at, "a"))

        decision, (applied,) = decided(observed, wanted)

        assert applied.shape.runtime == runtime
        assert f"runtime {runtime}: its replicas run" in decision.runtime_reason


def test_a_named_runtime_serves_what_the_bundled_engine_could():
    wanted = intent(uri="pvc://weights/8b", runtime=RuntimeRequest("vllm"))
    observed = fleet(VLLM)
    observed = replace(observed, facts=(*observed.facts, (FactsKey("ns", wanted.model_uri, IMAGE), FACTS_8B)))

    decision, (applied,) = decided(observed, wanted)

    assert decision.shape.runtime == "vllm"
    assert applied.launch.max_batched_tokens > 0


@pytest.mark.parametrize(
    ("runtime", "request_", "sentence"),
    [
        (None, RuntimeRequest("vllm"), "EngineRuntime vllm does not exist; name one of tangram"),
        (replace(VLLM, namespaces=("team",)), RuntimeRequest("vllm"), "may not be used in the namespace ns"),
        (replace(VLLM, image=""), RuntimeRequest("vllm"), "has no image, so it is off"),
        (InvalidEngineRuntime("vllm", "spec.x: bad"), RuntimeRequest("vllm"), "is not accepted: spec.x: bad"),
        (
            VLLM,
            RuntimeRequest("vllm", (RuntimeOption("--max-num-seqs", "8"),)),
            "spec.runtime.arguments[0]: EngineRuntime vllm sets --max-num-seqs already",
        ),
        (
            VLLM,
            RuntimeRequest("vllm", (RuntimeOption("--max_num_seqs", "8"),)),
            "spec.runtime.arguments[0]: EngineRuntime vllm sets --max_num_seqs already",
        ),
        (
            VLLM,
            RuntimeRequest("vllm", (RuntimeOption("--trust-remote-code", None),)),
            "--trust-remote-code is never admissible",
        ),
        (
            VLLM,
            RuntimeRequest("vllm", (RuntimeOption("--tool-call-parser", "hermes\n--trust-remote-code"),)),
            "--tool-call-parser has a line break",
        ),
        (
            VLLM,
            RuntimeRequest("vllm", (RuntimeOption("--limit-mm-per-prompt", '{"trust_remote_code": 1}'),)),
            "sets trust_remote_code",
        ),
        (
            VLLM,
            RuntimeRequest("vllm", (RuntimeOption("--enable-lora", None),)),
            "does not list --enable-lora (it lists --enable-auto-tool-choice",
        ),
        (VLLM, RuntimeRequest("vllm", (), (RuntimeOption("HOME", "/x"),)), "sets HOME already"),
        (
            VLLM,
            RuntimeRequest("vllm", (), (RuntimeOption("VLLM_SERVER_DEV_MODE", "1"),)),
            "spec.runtime.variables[0]: VLLM_SERVER_DEV_MODE runs code",
        ),
    ],
)
def test_a_request_that_its_runtime_does_not_allow_is_one_sentence_and_replicas_stay(
    runtime, request_, sentence
):
    wanted = intent(uri=OLMO, runtime=request_)
    at = Shape("H100-80GB-SXM", "gpu", 1, "bf16", "vllm")
    changes = {"workloads": (workload(wanted, at),), "claims": claims(wanted, at, "a")}
    if isinstance(runtime, InvalidEngineRuntime):
        observed = fleet(invalid_runtimes=(runtime,), **changes)
    else:
        observed = fleet(*(() if runtime is None else (runtime,)), **changes)

    decision, applied = decided(observed, wanted)

    assert not decision.accepted
    assert sentence in decision.accepted_message
    assert decision.accepted_message.endswith("running replicas stay unchanged")
    assert not applied


def test_a_runtime_reads_no_file_of_api_keys():
    wanted = intent(uri=OLMO, runtime=RuntimeRequest("vllm"), api_keys=SecretKey("keys", "keys"))

    assert "reads no file of API keys" in decided(fleet(VLLM), wanted)[0].accepted_message
    open_choice = replace(wanted, runtime=RuntimeRequest())
    assert "vllm: engine.apiKeySecretRef" in decided(fleet(VLLM), open_choice)[0].placed_message


def test_a_runtime_that_is_deleted_under_its_replicas_changes_nothing_of_them():
    wanted = intent(uri=OLMO)
    at = Shape("H100-80GB-SXM", "gpu", 1, "bf16", "vllm")
    observed = fleet(workloads=(workload(wanted, at),), claims=claims(wanted, at, "a"))

    result = plan(observed, (wanted,), NOW)

    assert [type(action) for action in result.actions] == [ApplyService]
    assert not result.faults


@pytest.mark.parametrize(
    ("serves", "sentence"),
    [
        (
            {"architectures": ("LlamaForCausalLM",)},
            "spec.serves.architectures does not name Olmo2ForCausalLM",
        ),
        ({"precisions": ("fp8",)}, "spec.serves.precisions does not name bf16"),
    ],
)
def test_what_a_runtime_does_not_serve_is_told(serves, sentence):
    runtime = replace(VLLM, serves=replace(VLLM.serves, **serves))

    assert sentence in decided(fleet(runtime), intent(uri=OLMO))[0].placed_message


def test_predictions_of_a_runtime_are_by_its_coefficients():
    wanted = intent(uri="pvc://weights/8b")
    observed = fleet(VLLM)
    observed = replace(observed, facts=(*observed.facts, (FactsKey("ns", wanted.model_uri, IMAGE), FACTS_8B)))

    own, _ = decided(observed, wanted)
    on_vllm, _ = decided(observed, replace(wanted, runtime=RuntimeRequest("vllm")))

    assert own.shape.key == on_vllm.shape.key
    assert own.predicted_tpot_ms != on_vllm.predicted_tpot_ms


def test_the_scaling_law_predicts_replicas_of_a_runtime_by_its_coefficients():
    wanted, predicted = intent(uri="image:///m/8b"), PredictedCapacities()
    inputs = CapacityInputs({wanted.uid: FACTS_8B}, runtimes={"vllm": VLLM, "sglang": SGLANG})
    shapes = [Shape("H100-80GB-SXM", "gpu", 1, "bf16", name) for name in ("tangram", "vllm", "sglang")]

    steps = {predicted.of(wanted, at, inputs).steps.coefficients.step_s for at in shapes}

    assert len(steps) == 3


def test_the_report_about_most_published_models_fits_a_termination_message():
    lengths = {repo: len(_compressed(c.config)) for repo, c in real_checkpoints().items()}
    too_long = {repo for repo, length in lengths.items() if length > CONFIG_LIMIT}

    assert len(lengths) > 80
    assert len(too_long) <= 4
    assert CONFIG_LIMIT + 2 * 300 + 300 <= DOCUMENT_LIMIT


def test_facts_of_another_checkpoint_survive_the_status_of_an_llm_deployment():
    status = {"model": {"uri": OLMO, "engineImage": IMAGE, "facts": facts_block(OLMO_FACTS)}}

    assert facts_from_status({"metadata": {"namespace": "ns"}, "status": status}) == (
        FactsKey("ns", OLMO, IMAGE),
        OLMO_FACTS,
    )


@pytest.mark.parametrize(
    "config",
    [
        "no base64!",
        base64.b64encode(b"no zlib").decode(),
        base64.b64encode(zlib.compress(b"[1]")).decode(),
        base64.b64encode(zlib.compress(b'{"architectures":["NoSuch"]}')).decode(),
        base64.b64encode(zlib.compress(b'{"a":' + b" " * (2 << 20) + b"1}", 9)).decode(),  # a bomb
        _compressed(OLMO_CONFIG | {"num_hidden_layers": 4096, "hidden_size": 10**9, "head_dim": 128}),
    ],
)
def test_a_config_that_cannot_be_planned_is_one_sentence(config):
    other = {"digest": "d", "weightBytes": 1, "config": config}
    report = {"schema": 1, "error": {"reason": "UnknownArchitecture", "message": "no"}, "other": other}

    failure = parse_report(json.dumps(report), NOW)

    assert failure.reason == "UnknownArchitecture"
    assert failure.message.startswith("no; other runtimes cannot be planned either")


def test_a_recorded_config_that_cannot_be_read_is_inspected_again():
    facts = facts_block(OLMO_FACTS) | {"config": _compressed({"architectures": ["OfANewerVersion"]})}
    status = {"model": {"uri": OLMO, "engineImage": IMAGE, "facts": facts}}

    assert facts_from_status({"metadata": {"namespace": "ns"}, "status": status}) is None


def test_shapes_of_runtimes_are_variants_of_their_own():
    assert shape().variant == replace(shape(), runtime="tangram").variant
    assert len({replace(shape(), runtime=name).variant for name in ("tangram", "vllm", "sglang")}) == 3
    assert isinstance(intent(), Intent)


def test_a_request_for_more_gpus_than_the_runtime_shares_a_model_over_is_one_sentence():
    wanted = intent(uri=OLMO, tensor_parallel=(4, 8))
    words = tuple(word for word in VLLM.arguments if "ipeline" not in word)
    runtime = replace(VLLM, arguments=words, serves=replace(VLLM.serves, max_tensor_parallel=2))

    message = decided(fleet(runtime), wanted)[0].placed_message

    assert (
        "vllm: placement.tensorParallel asks for 4 or 8 GPUs per replica, and a replica gets 2 at most"
        in message
    )


@pytest.mark.parametrize(
    ("heads", "degree", "most", "fits"),
    [(32, 2, 8, True), (32, 2, 1, False), (32, 4, 8, True), (30, 4, 8, False)],
)
def test_a_degree_that_divides_the_heads_and_the_runtime_serves_is_a_shape(heads, degree, most, fits):
    runtime = replace(VLLM, serves=replace(VLLM.serves, max_tensor_parallel=most))
    facts = replace(FACTS_8B, heads=heads, kv_heads=heads, hidden_size=heads * 128)
    wanted = intent(uri="pvc://weights/8b", runtime=RuntimeRequest("vllm"))

    assessed = assessment(wanted, facts, offers(read_fleet(fleet(runtime))), {}, (), (runtime,))

    shapes = [serving.shape for serving in assessed.serving if serving.shape.tensor_parallel == degree]
    assert bool(shapes) is fits
    assert all(shape.profile == "gpu" and shape.runtime == "vllm" for shape in shapes)
    if fits:
        assert launch(assessed, shapes[0], 1).static_memory_share < 0.9
    elif most == 8:
        (rejection,) = {r.message for r in assessed.rejected if r.shape.tensor_parallel == degree}
        assert str(degree) in rejection


def test_a_snapshot_of_a_fleet_with_runtimes_is_written_and_read_back():
    wanted = intent(uri=OLMO, runtime=RuntimeRequest("vllm", (RuntimeOption("--enforce-eager"),)))
    at = Shape("H100-80GB-SXM", "gpu", 1, "bf16", "vllm")
    observed = fleet(VLLM, SGLANG, invalid_runtimes=(InvalidEngineRuntime("x", "spec: bad"),))
    observed = replace(observed, workloads=(workload(wanted, at),), claims=claims(wanted, at, "a"))

    document = json.loads(json.dumps(snapshot_document(observed, (wanted,))))

    assert read_snapshot(document, "snapshot") == (observed, (wanted,))


def test_explain_says_which_runtime_serves_and_why(tmp_path):
    wanted = intent(uri=OLMO)
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(snapshot_document(fleet(VLLM, SGLANG), (wanted,))))

    status, told, _ = run("explain", "m", "-n", "ns", "-f", file, columns=100)
    text = " ".join(told.split())

    assert status == 0
    assert "is the cheapest: sglang" in text
    assert "tangram: config.json: not implemented" in text
