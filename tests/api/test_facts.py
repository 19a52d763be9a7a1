import json

import pytest

from tangram.api import facts_from_status, parse_report
from tangram.fleet import CheckpointFacts, FactsKey, InspectionFailure

FACTS = {
    "architecture": "LlamaForCausalLM",
    "digest": "sha256:" + "0" * 64,
    "dtype": "bf16",
    "layers": 16,
    "hiddenSize": 2048,
    "heads": 32,
    "kvHeads": 8,
    "headDim": 64,
    "vocabSize": 128256,
    "maxPositionEmbeddings": 8192,
    "parameters": 1235814400,
    "weightBytes": 2471645608,
    "embeddingBytes": 525336576,
    "tiedEmbeddings": True,
    "attentionBias": False,
    "qkNorm": False,
}


def test_a_report_of_facts_becomes_facts():
    facts = parse_report(json.dumps({"schema": 1, "facts": FACTS}), at=5.0)

    assert isinstance(facts, CheckpointFacts)
    assert (facts.kv_heads, facts.weight_bytes, facts.tied_embeddings) == (8, 2471645608, True)


def test_a_report_of_an_error_becomes_that_failure():
    text = json.dumps(
        {"schema": 1, "error": {"reason": "NotFound", "message": "/models/x: no such directory"}}
    )

    assert parse_report(text, 5.0) == InspectionFailure("NotFound", "/models/x: no such directory", 5.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Killed",
        "[]",
        "null",
        "{}",
        '{"schema": 2, "facts": {}}',
        '{"schema": 1}',
        json.dumps({"schema": 1, "facts": FACTS | {"layers": -1}}),
        json.dumps({"schema": 1, "facts": FACTS | {"weightBytes": 1e300}}),
        json.dumps({"schema": 1, "facts": FACTS | {"dtype": "int4"}}),
        json.dumps({"schema": 1, "error": {"reason": "Surprise", "message": "x"}}),
        "[" * 100_000,
    ],
)
def test_anything_else_is_a_failed_inspection_and_never_a_crash(text):
    result = parse_report(text, 5.0)

    assert isinstance(result, InspectionFailure)
    assert result.reason == "InspectionFailed"
    assert 0 < len(result.message) <= 1000


def test_a_report_with_half_a_surrogate_pair_is_kept_in_its_escaped_form():
    text = json.dumps({"schema": 1, "error": {"reason": "NotFound", "message": "a\ud800b"}})

    failure = parse_report(text, 5.0)

    assert failure.reason == "InspectionFailed"
    assert "a\\ud800b" in failure.message
    assert failure.message.encode()


def stored(**model):
    return {"metadata": {"namespace": "ns"}, "status": {"model": model}}


def test_facts_in_a_status_are_read_back_with_their_key():
    found = facts_from_status(stored(uri="pvc://c/d", engineImage="e:1", facts=FACTS))

    assert found is not None
    assert found[0] == FactsKey("ns", "pvc://c/d", "e:1")


def test_facts_about_the_image_belong_to_the_namespace_that_found_them():
    found = facts_from_status(stored(uri="image:///m", engineImage="e:1", facts=FACTS))

    assert found is not None
    assert found[0].namespace == "ns"


@pytest.mark.parametrize(
    "model", [{}, {"uri": "pvc://c/d"}, {"uri": "u", "engineImage": "e", "facts": {"layers": 1}}]
)
def test_unreadable_facts_are_no_facts(model):
    assert facts_from_status(stored(**model)) is None
    assert facts_from_status({"metadata": {"namespace": "ns"}}) is None
