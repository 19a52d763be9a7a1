"""`tangram approve`: what a person sees before GPUs are cut and replicas move, and how to take it back."""

import asyncio
import copy
from types import SimpleNamespace

import pytest

from tangram.catalog import InputError
from tangram.cli.approve import consent
from tangram.cli.approve.shown_plan import shown_plan

UUID = "GPU-9b5d65b5-b425-5ac2-8374-d6a7f41870ad"
CUT = {
    "node": "n",
    "gpu": UUID,
    "index": 1,
    "before": {"migEnabled": False},
    "after": {"migEnabled": True, "instances": [{"profile": "1g.10gb", "start": s} for s in (4, 5, 6)]},
}
LEFT = {"node": "n", "gpu": "index-0", "before": {"migEnabled": False}, "after": {"migEnabled": False}}
ALPHA = {"owner": "default/alpha", "sku": "H100-80GB-SXM", "profile": "1g.10gb"}
MONEY = {"costBeforePerHour": "6.15", "costPerHour": "3.07"}


class Client:
    """The API server with these FleetPlans."""

    def __init__(self, *plans):
        self.plans = {plan["metadata"]["name"]: plan for plan in plans}
        self.patches = []

    async def get(self, _kind, _namespace, name):
        return copy.deepcopy(self.plans.get(name))

    async def list(self, _kind):
        return SimpleNamespace(items=list(self.plans.values()))

    async def merge(self, _kind, _namespace, name, patch, **_):
        self.patches.append((name, patch["spec"]))


def plan(name="31dba31ff0a3", state="Recommended", **spec):
    changes = {
        "changes": [CUT, LEFT],
        "pool": "h100",
        "disturbed": [ALPHA],
        "serves": ["default/beta", "team/c"],
    }
    return {
        "metadata": {"name": name, "resourceVersion": "7"},
        "spec": changes | MONEY | spec,
        "status": {"state": state, "message": "as it is"},
    }


def answer(*plans, name="31dba31ff0a3", approved=True):
    client = Client(*plans)
    return asyncio.run(consent._write(client, name, approved=approved)), client.patches


def test_a_consent_shows_gpus_who_moves_who_gains_and_the_money():
    text, patches = answer(plan())

    assert patches == [("31dba31ff0a3", {"approved": True})]
    assert text.splitlines() == [
        "31dba31ff0a3 is approved now",
        f"  n/1 ({UUID}): whole -> 3x1g.10gb@4,5,6",
        "  n, index-0: replicas leave it",
        "  replicas of default/alpha move to H100-80GB-SXM:1g.10gb",
        "  serves default/beta, team/c",
        "  these GPUs cost 6.15 $/h before, 3.07 $/h after: 3.08 $/h less",
    ]


def test_a_consent_to_a_restart_names_the_downtime():
    text, _ = answer(plan(disturbed=[ALPHA | {"restarts": True}]))

    assert "  DOWNTIME: replicas of default/alpha stop before their replacements serve" in text.splitlines()


@pytest.mark.parametrize(
    ("money", "line"),
    [
        (("3.07", "6.15"), "these GPUs cost 3.07 $/h before, 6.15 $/h after: 3.08 $/h more"),
        (("3.07", "3.07"), "these GPUs cost 3.07 $/h before, 3.07 $/h after"),
    ],
)
def test_money_that_is_not_saved_is_no_saving(money, line):
    assert (
        list(shown_plan({"changes": [CUT], "costBeforePerHour": money[0], "costPerHour": money[1]}))[-1]
        == line
    )


def test_a_plan_of_an_older_version_is_shown_without_what_it_lacks():
    lines = list(shown_plan({"changes": [{k: v for k, v in CUT.items() if k != "index"}]}))

    assert lines == [f"n, {UUID}: whole -> 3x1g.10gb@4,5,6", "no replica moves"]


def test_a_rejection_moves_nobody_and_says_how_to_undo_it():
    text, patches = answer(plan(), approved=False)

    assert patches == [("31dba31ff0a3", {"approved": False})]
    assert "replicas of" not in text
    assert "to have it proposed again: kubectl delete fleetplan 31dba31ff0a3" in text


@pytest.mark.parametrize(
    ("plans", "says"),
    [
        ([plan(state="Rejected", approved=False)], "kubectl delete fleetplan 31dba31ff0a3"),
        ([plan(state="Done")], "is Done (as it is): it does not wait for consent any more"),
        ([plan(changes=[]), plan("aa"), plan("bb", state="Done")], "these wait for consent: aa"),
        ([plan(changes=[]), plan("bb", state="Done")], "none waits for consent"),
    ],
)
def test_a_plan_that_does_not_wait_is_refused_with_what_helps(plans, says):
    with pytest.raises(InputError, match=r"approve") as refusal:
        answer(*plans)

    assert says in str(refusal.value)
