"""The operator is away for a while: models go on serving, and it finds everything as it should be."""

import pytest

from e2e.demo import install
from e2e.kube import Kube, wait_until
from e2e.tests.support import ask, condition, deployment, dry_run, newest_plan, operator_scaled_to

pytestmark = pytest.mark.cluster


def test_a_plan_that_stays_is_written_once(model: Kube) -> None:
    plan = wait_until(lambda: newest_plan(model, "InForce"), 90, "the plan of what runs")
    assert plan["spec"]["deployments"][0]["name"] == install.NAME
    before = model.get("fleetplans")["items"]
    model.kubectl("rollout", "restart", "-n", install.SYSTEM, "deploy/tangram")
    model.kubectl("rollout", "status", "-n", install.SYSTEM, "deploy/tangram", "--timeout=90s")
    wait_until(lambda: condition(model, "Ready")["status"] == "True", 60, "the new operator's word")
    after = model.get("fleetplans")["items"]
    assert [(p["metadata"]["name"], p["metadata"]["resourceVersion"]) for p in before] == [
        (p["metadata"]["name"], p["metadata"]["resourceVersion"]) for p in after
    ]


def test_serving_goes_on_and_a_lost_pod_is_replaced_while_the_operator_is_away(model: Kube) -> None:
    with operator_scaled_to(model, 0):
        assert dry_run(model, deployment("second", "image:///models/tangram-tiny")) == []
        old = model.kubectl("get", "pods", "-l", "app.kubernetes.io/component=engine", "-o", "name").split()
        assert ask(model)
        model.kubectl("delete", *old, "--wait")
        model.kubectl(
            "rollout", "status", "deploy", "-l", f"tangram.dev/llmdeployment={install.NAME}", "--timeout=120s"
        )
        assert ask(model)


def test_it_writes_nothing_new_when_it_comes_back(model: Kube) -> None:
    before = _versions(model)
    with operator_scaled_to(model, 0):
        pass
    model.kubectl("rollout", "restart", "deploy/tangram", "-n", install.SYSTEM)
    model.kubectl("rollout", "status", "deploy/tangram", "-n", install.SYSTEM, "--timeout=90s")
    wait_until(lambda: _leader_renews(model), 40, "the new leader")

    assert _versions(model) == before


def test_a_deletion_while_it_was_away_is_noticed(model: Kube) -> None:
    with operator_scaled_to(model, 0):
        model.kubectl("delete", "svc", install.NAME)

    wait_until(lambda: model.exists("svc", install.NAME), 60, "the Service to be made again")


def _versions(kube: Kube) -> dict[str, str]:
    """Generations of what the operator owns: they move only when somebody writes a spec."""
    items = kube.get("deploy,svc,llmdep", "-n", "default", "-l", "app.kubernetes.io/managed-by=tangram")[
        "items"
    ]
    return {f"{i['kind']}/{i['metadata']['name']}": str(i["metadata"].get("generation", "")) for i in items}


def _leader_renews(kube: Kube) -> bool:
    leases = kube.get("lease", "-n", install.SYSTEM)["items"]
    held = [lease["spec"].get("holderIdentity") for lease in leases]
    return any(held)
