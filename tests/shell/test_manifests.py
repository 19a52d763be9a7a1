"""Rendered manifests, and when a live object is up to date with one."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.api import facts_from_status
from tangram.fleet import (
    ApplyDeployment,
    EvaluationKey,
    FactsKey,
    Intent,
    MIGPolicy,
    Shape,
    Spread,
    StartEvaluation,
)
from tangram.fleet.quantity import cpu_quantity, memory_quantity, parse_quantity
from tangram.shell.objects import manifests
from tangram.shell.objects.manifest_match import contains, up_to_date
from tangram.shell.objects.node_affinity import targeted_nodes
from tangram.shell.objects.owned_objects import UnknownShape, generation_of, shape_of
from tangram.shell.settings import Settings
from tangram_engine import __main__ as engine_command
from tangram_engine.serve import client, server
from tangram_engine.serve import http_responses as events
from tests.support.apiserver import FACTS

SETTINGS = Settings(engine_image="registry/engine:1")
WHOLE = Shape("H100-80GB-SXM", "gpu", 2)
SLICE = Shape("H100-80GB-SXM", "1g.10gb")
RECORDED = {"engineImage": "e", "facts": FACTS}


def intent(uri: str = "image:///models/tiny") -> Intent:
    return Intent(
        uid="uid-1",
        namespace="ns",
        name="chat",
        generation=7,
        created_at=0.0,
        model_uri=uri,
        served_name="chat",
        max_model_len=None,
        max_running_requests=64,
        ttft=None,
        tpot=None,
        allowed_skus=(),
        denied_skus=(),
        mig=MIGPolicy.ALLOWED,
        min_replicas=1,
        max_replicas=1,
        paused=False,
    )


def action(shape: Shape = WHOLE, replicas: int = 3) -> ApplyDeployment:
    return ApplyDeployment("uid-1", shape, replicas, ("NVIDIA-H100-80GB-HBM3",), 4096)


def container(obj: dict[str, Any]) -> dict[str, Any]:
    return obj["spec"]["template"]["spec"]["containers"][0]


def test_a_deployment_requests_its_shape_and_no_privileges() -> None:
    rendered = manifests.deployment(intent(), action(), SETTINGS)

    assert rendered["metadata"]["name"] == f"chat-{WHOLE.variant}"
    assert container(rendered)["resources"]["limits"] == {
        "nvidia.com/gpu": "2",
        "cpu": "16",
        "memory": "128Gi",
    }
    pod = rendered["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    assert container(rendered)["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("seconds", [10, 600, 86_400])
def test_the_grace_period_exceeds_the_time_limit_of_a_request(seconds: int) -> None:
    """The engine's own reading of its command line, with all that follows the last request."""
    rendered = manifests.deployment(replace(intent(), max_request_s=seconds), action(), SETTINGS)
    options = engine_command._parser().parse_args(container(rendered)["args"])
    pod = rendered["spec"]["template"]["spec"]

    assert options.max_request_seconds == seconds
    last_words = events._LAST_WORDS_S + server._FAREWELL_S + 2 * client._JOIN_SECONDS
    longest = options.drain_seconds + options.max_request_seconds + last_words
    assert pod["terminationGracePeriodSeconds"] > longest
    # In place, a new pod starts when an old one has ended.
    start = container(rendered)["startupProbe"]
    deadline = rendered["spec"]["progressDeadlineSeconds"]
    assert (
        deadline > pod["terminationGracePeriodSeconds"] + start["failureThreshold"] * start["periodSeconds"]
    )


def test_pods_never_serve_random_weights() -> None:
    rendered = manifests.deployment(intent(), action(), SETTINGS)
    options = engine_command._parser().parse_args(container(rendered)["args"])

    assert options.load_format == "auto"
    assert "--load-format" not in container(rendered)["args"]


@pytest.mark.parametrize("precision", ["bf16", "fp8", "int4"])
def test_the_engine_takes_the_format_of_its_shape(precision: str) -> None:
    rendered = manifests.deployment(intent(), action(replace(SLICE, precision=precision)), SETTINGS)
    options = engine_command._parser().parse_args(container(rendered)["args"])

    assert options.quantize == (None if precision == "bf16" else precision)


def test_the_last_lines_of_an_engine_that_ends_are_its_termination_message() -> None:
    rendered = manifests.deployment(intent(), action(), SETTINGS)

    assert container(rendered)["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_engine_takes_the_command_line_of_an_evaluate_job() -> None:
    key = EvaluationKey("ns", "pvc://claim/model", "d", "H100-80GB-SXM", "int4")
    start = StartEvaluation("uid-1", key, replace(SLICE, precision="int4"), ("NVIDIA-H100-80GB-HBM3",))
    rendered = manifests.evaluate_job(intent(key.uri), start, SETTINGS)
    options = engine_command._parser().parse_args(container(rendered)["args"])

    assert (str(options.model), options.quantize) == ("/mnt/model/model", "int4")
    assert str(options.termination_log) == container(rendered)["terminationMessagePath"]


def test_another_time_limit_replaces_the_pods() -> None:
    first, other = (
        manifests.deployment(replace(intent(), max_request_s=seconds), action(), SETTINGS)["spec"]["template"]
        for seconds in (600, 601)
    )

    assert first != other


def test_a_hung_engine_is_restarted_without_the_grace_of_running_requests() -> None:
    probe = container(manifests.deployment(intent(), action(), SETTINGS))["livenessProbe"]

    assert probe["httpGet"]["path"] == "/health"
    assert probe["terminationGracePeriodSeconds"] < intent().termination_grace_s


def test_a_slice_gets_its_share_of_the_host() -> None:
    limits = container(manifests.deployment(intent(), action(SLICE), SETTINGS))["resources"]["limits"]

    assert limits["nvidia.com/mig-1g.10gb"] == "1"
    assert parse_quantity(limits["cpu"]) < 8 / 4
    assert parse_quantity(limits["memory"]) < 2**36 / 4


def test_a_claim_is_mounted_read_only() -> None:
    rendered = manifests.deployment(intent("pvc://weights/llama/8b"), action(), SETTINGS)

    assert {"name": "model", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}} in rendered[
        "spec"
    ]["template"]["spec"]["volumes"]
    assert {"name": "model", "mountPath": "/mnt/model", "readOnly": True} in container(rendered)[
        "volumeMounts"
    ]
    assert "/mnt/model/llama/8b" in container(rendered)["args"]


def test_shape_and_generation_are_read_back_from_a_deployment() -> None:
    rendered = manifests.deployment(intent(), action(SLICE), SETTINGS)

    assert shape_of(rendered) == SLICE
    assert generation_of(rendered) == 7


def test_pods_of_named_pools_run_on_nodes_of_any_of_them() -> None:
    pools = ((("pool", "a"),), (("pool", "b"), ("tier", "gold")))
    rendered = manifests.deployment(intent(), replace(action(), node_selectors=pools), SETTINGS)

    affinity = rendered["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    selectors = [{e["key"]: e["values"] for e in term["matchExpressions"]} for term in terms]
    product = {
        "nvidia.com/gpu.product": ["NVIDIA-H100-80GB-HBM3"],
        "nvidia.com/gpu.sharing-strategy": ["time-slicing", "mps"],
    }
    assert selectors == [product | {"pool": ["a"]}, product | {"pool": ["b"], "tier": ["gold"]}]


def test_pods_may_run_on_nodes_without_a_product_label_in_pools_that_declare_the_model() -> None:
    bare = ((("pool", "bare"),), (("pool", "old"), ("tier", "gold")))
    deployment = manifests.deployment(intent(), replace(action(), declared=bare), SETTINGS)
    alone = manifests.deployment(intent(), replace(action(), products=(), declared=bare), SETTINGS)

    def terms(rendered: dict[str, Any]) -> list[list[tuple[str, str, tuple[str, ...]]]]:
        affinity = rendered["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        return [
            [(e["key"], e["operator"], tuple(e.get("values", ()))) for e in term["matchExpressions"]]
            for term in affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        ]

    shared = ("nvidia.com/gpu.sharing-strategy", "NotIn", ("time-slicing", "mps"))
    absent = ("nvidia.com/gpu.product", "DoesNotExist", ())
    assert terms(deployment)[0] == [("nvidia.com/gpu.product", "In", action().products), shared]
    assert (
        terms(alone)
        == terms(deployment)[1:]
        == [
            [absent, shared, ("pool", "In", ("bare",))],
            [absent, shared, ("pool", "In", ("old",)), ("tier", "In", ("gold",))],
        ]
    )
    assert targeted_nodes(deployment["spec"]["template"]) == (action().products, bare)
    assert targeted_nodes(alone["spec"]["template"]) == ((), bare)


@pytest.mark.parametrize(
    "affinity",
    [
        None,
        [],
        {"nodeAffinity": None},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": None}}},
    ],
)
def test_a_template_without_own_affinity_terms_targets_no_nodes(affinity: Any) -> None:
    assert targeted_nodes({"spec": {"affinity": affinity}}) == ((), ())
    assert targeted_nodes({}) == ((), ())


def test_pods_prefer_to_spread_over_nodes_and_zones_and_still_run_if_they_cannot() -> None:
    def constraints(spread: Spread) -> list[dict[str, Any]]:
        rendered = manifests.deployment(intent(), replace(action(), spread=spread), SETTINGS)
        pod: dict[str, Any] = rendered["spec"]["template"]["spec"]
        return pod.get("topologySpreadConstraints", [])

    assert constraints(Spread()) == []
    assert [c["topologyKey"] for c in constraints(Spread(node=0.5))] == ["kubernetes.io/hostname"]
    on_both = constraints(Spread(0.5, 0.5))
    assert [c["topologyKey"] for c in on_both] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert {c["whenUnsatisfiable"] for c in on_both} == {"ScheduleAnyway"}
    assert on_both[0]["labelSelector"]["matchLabels"]["tangram.dev/llmdeployment"] == "chat"


def test_manifests_without_pools_and_spread_are_unchanged() -> None:
    """An upgrade of the operator must not roll every model."""
    pod = manifests.deployment(intent(), action(), SETTINGS)["spec"]["template"]["spec"]

    assert "topologySpreadConstraints" not in pod
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert [(e["key"], e["operator"]) for e in term["matchExpressions"]] == [
        ("nvidia.com/gpu.product", "In"),
        ("nvidia.com/gpu.sharing-strategy", "NotIn"),
    ]


@pytest.mark.parametrize("broken", ["", "{}", "[]", "null", '{"sku":1}', "not json"])
def test_a_deployment_without_a_variant_has_no_shape(broken: str) -> None:
    deployment = {"metadata": {"name": "x", "annotations": {"tangram.dev/shape": broken}}}
    with pytest.raises(UnknownShape):
        shape_of(deployment)


def test_a_new_generation_alone_does_not_touch_the_pods() -> None:
    first = manifests.deployment(intent(), action(), SETTINGS)
    changed = Intent(**{field: getattr(intent(), field) for field in Intent.__slots__} | {"generation": 8})
    other = manifests.deployment(changed, action(), SETTINGS)

    assert first["spec"] == other["spec"]
    assert not up_to_date(first, other)


def test_the_inspect_job_runs_the_engine_image_without_rights() -> None:
    key = FactsKey("ns", "image:///models/tiny", "registry/engine:1")
    job = manifests.inspect_job(manifests.owner_identity(intent()), key, SETTINGS)

    assert job["metadata"]["name"] == manifests.inspect_job_name(key)
    assert container(job)["image"] == "registry/engine:1"
    assert container(job)["args"][0] == "inspect"
    assert job["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert not any(name.startswith("nvidia") for name in container(job)["resources"]["limits"])


@pytest.mark.parametrize("uri", ["image:///m", "pvc://c/m"])
def test_a_checkpoint_has_one_inspect_job_in_each_namespace(uri: str) -> None:
    first, again, elsewhere = (
        facts_from_status({"metadata": {"namespace": ns}, "status": {"model": RECORDED | {"uri": uri}}})
        for ns in ("a", "a", "b")
    )
    assert first is not None
    assert again is not None
    assert elsewhere is not None

    assert manifests.inspect_job_name(first[0]) == manifests.inspect_job_name(again[0])
    assert manifests.inspect_job_name(first[0]) != manifests.inspect_job_name(elsewhere[0])


def test_a_rollout_starts_a_surge_pod_first() -> None:
    strategy = manifests.deployment(intent(), action(), SETTINGS)["spec"]["strategy"]

    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


def test_a_rollout_in_a_full_pool_is_in_place_and_keeps_the_template() -> None:
    usual = manifests.deployment(intent(), action(), SETTINGS)["spec"]
    in_place = manifests.deployment(intent(), replace(action(), max_unavailable=2), SETTINGS)["spec"]

    assert in_place["strategy"]["rollingUpdate"] == {"maxUnavailable": 2, "maxSurge": 0}
    assert in_place["template"] == usual["template"]


def test_defaults_and_foreign_fields_of_a_live_object_are_no_difference() -> None:
    rendered = manifests.deployment(intent(), action(), SETTINGS)
    live = copy.deepcopy(rendered)
    live["metadata"] |= {"uid": "x", "resourceVersion": "5"}
    live["metadata"]["annotations"]["team"] = "blue"
    live["spec"]["template"]["spec"]["containers"].insert(0, {"name": "sidecar"})
    container_of_ours = live["spec"]["template"]["spec"]["containers"][1]
    container_of_ours["terminationMessagePath"] = "/dev/termination-log"
    live["status"] = {"replicas": 1}

    assert up_to_date(live, rendered)


PATHS = [
    ("spec", "replicas"),
    ("spec", "template", "spec", "containers", 0, "image"),
    ("spec", "template", "spec", "containers", 0, "args", 3),
    ("spec", "template", "spec", "containers", 0, "resources", "limits", "cpu"),
    ("metadata", "labels", "tangram.dev/llmdeployment"),
    ("metadata", "annotations", "tangram.dev/shape"),
]


@pytest.mark.parametrize("path", PATHS, ids=[".".join(map(str, path)) for path in PATHS])
def test_a_foreign_edit_of_an_own_field_is_a_difference(path: tuple[Any, ...]) -> None:
    rendered = manifests.deployment(intent(), action(), SETTINGS)
    live = copy.deepcopy(rendered)
    part = live
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = "foreign"

    assert not up_to_date(live, rendered)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_every_object_covers_itself(value: Any) -> None:
    assert contains(value, json.loads(json.dumps(value)))


@given(st.integers(1, 10**6))
def test_quantities_are_canonical_and_never_rounded_down(milli: int) -> None:
    assert parse_quantity(cpu_quantity(milli / 1000)) * 1000 == pytest.approx(milli)
    text = memory_quantity(milli * 2**20)
    assert parse_quantity(text) == milli * 2**20
    assert not (text.endswith("Mi") and milli % 1024 == 0)
