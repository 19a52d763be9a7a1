"""A repository is pinned when it is inspected, and its pin is what pods fetch until a person changes it."""

from dataclasses import replace
from typing import Any

from tangram.api import parse
from tangram.eligibility.acceptance import specs_in_force
from tangram.fleet import (
    ApplyDeployment,
    FactsKey,
    Inspection,
    Intent,
    InvalidIntent,
    PinnedRevision,
    PodNeeds,
    StartInspection,
)
from tangram.plan import plan
from tests.support.fleet import FACTS_1B, IMAGE, NOW, intent, node, snapshot
from tests.support.views import llm_deployment, one_round, running

URI, COMMIT = "hf://org/model", "c" * 40
PINNED = replace(FACTS_1B, pin=PinnedRevision(COMMIT, 2_500_000_000))
KEY = FactsKey("ns", URI, IMAGE)


def actions(observed: Any, *intents: Intent, kind: type = StartInspection) -> list[Any]:
    return [action for action in plan(observed, intents, NOW).actions if isinstance(action, kind)]


def test_an_inspection_has_the_secret_of_its_llmdeployment() -> None:
    wanted = intent(uri=URI, model_secret="hub")
    assert actions(snapshot(), wanted) == [StartInspection(wanted.uid, KEY, "hub")]


def test_the_inspection_of_an_edit_has_the_secret_of_the_edit() -> None:
    last = intent(uri="hf://org/old", model_secret="old")
    edit = replace(intent(uri=URI, model_secret="new"), generation=2)
    facts = ((FactsKey("ns", "hf://org/old", IMAGE), PINNED),)
    known = dict(facts)
    (in_force,) = specs_in_force(
        (edit,), {edit.uid: last}, PodNeeds(), lambda i: FactsKey("ns", i.model_uri, IMAGE) in known
    )
    assert isinstance(in_force, Intent)
    assert actions(snapshot(facts=facts), in_force) == [StartInspection(edit.uid, KEY, "new")]


def test_pods_fetch_what_was_inspected() -> None:
    observed = snapshot(node("a", gpu=1), facts=((KEY, PINNED),))
    (applied,) = actions(observed, intent(uri=URI), kind=ApplyDeployment)
    assert applied.pin == PINNED.pin


def test_another_engine_image_inspects_the_pinned_revision() -> None:
    observed = snapshot(engine_image="engine:2", facts=((KEY, PINNED),), pins=((("ns", URI), COMMIT),))
    wanted = intent(uri=URI)
    key = FactsKey("ns", URI, "engine:2")
    assert actions(observed, wanted) == [StartInspection(wanted.uid, key, "", COMMIT)]


def test_another_namespace_pins_for_itself() -> None:
    observed = snapshot(pins=((("other", URI), COMMIT),))
    assert actions(observed, intent(uri=URI))[0].revision == ""


def test_the_pin_is_in_the_status_and_stays_while_the_engine_image_changes() -> None:
    from tangram.packing.problem.codec import camel, to_json

    model = {"uri": URI, "engineImage": "engine:0", "revision": COMMIT, "facts": to_json(PINNED, camel)}
    view = running("a", spec={"model": {"uri": URI}}).view()
    (obj,) = view.llm_deployments
    view = replace(view, llm_deployments=(obj | {"status": {"model": model}},))
    first = one_round(view)
    (status,) = first.statuses.values()
    assert (status["model"]["engineImage"], status["model"]["revision"]) == (IMAGE, COMMIT)
    assert "facts" not in status["model"]  # another image inspects it
    (start,) = (a for a in first.plan.actions if isinstance(a, StartInspection))
    assert start.revision == COMMIT

    again = one_round(replace(view, llm_deployments=(obj | {"status": status},)))
    (start,) = (a for a in again.plan.actions if isinstance(a, StartInspection))
    assert start.revision == COMMIT


def test_model_ready_names_the_pin() -> None:
    finished = Inspection(KEY, "ns", "tangram-inspect-1", "ju", NOW - 60, PINNED)
    (decision,) = plan(snapshot(inspections=(finished,)), (intent(uri=URI),), NOW).decisions
    assert decision.model_message.endswith(f"2.47 GB of bf16, pinned to {COMMIT}")


def test_the_revision_of_the_spec_is_part_of_what_is_inspected() -> None:
    spec = {"model": {"uri": URI, "revision": "v2", "secretRef": {"name": "hub"}}}
    parsed = parse(llm_deployment("a", **spec))
    assert not isinstance(parsed, InvalidIntent)
    assert (parsed.model_uri, parsed.model_secret) == (f"{URI}@v2", "hub")
