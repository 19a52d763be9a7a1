"""Quotas that appear, change and disappear under running fleets: plans keep them, and use what they leave."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.plan import plan
from tests.support.fleet import NOW, intent, node
from tests.support.kubernetes import Kubernetes

GPUS = 12
ROUND_S = 60.0  # back-offs of refused pods last 300 s at most


class Tenant:
    """LLMDeployments of one namespace with a quota for pods."""

    def __init__(self, seed, *, quota_visible):
        self.rng, self.now, self.memory = Random(seed), NOW, ()
        self.world = Kubernetes([node("n", gpu=GPUS)], (), [], self.rng)
        self.world.shows_quota = quota_visible
        for i in range(self.rng.randint(1, 3)):
            low = self.rng.randint(1, 3)
            m = intent(f"m{i}", min_replicas=low, max_replicas=9, created_at=NOW - i)
            self.world.change(m)
            self.world.desired[m.uid] = self.rng.randint(low, 9)
        self.world.quota = self.rng.randint(0, 14)

    def happen(self):
        world, rng = self.world, self.rng
        uid = rng.choice(sorted(world.intents))
        match rng.choice(("quota", "wish", "template")):
            case "quota":
                world.quota = rng.randint(0, 14)
            case "wish":
                world.desired[uid] = rng.randint(world.intents[uid].min_replicas, 9)
            case "template":
                old = world.intents[uid]
                length = 2048 if old.max_model_len == 4096 else 4096
                world.change(replace(old, max_model_len=length, generation=old.generation + 1))

    def round(self, *, promptly=False):
        world = self.world
        before = {key: max(d.replicas, len(d.living)) for key, d in world.deployments.items()}
        serving = {uid: self.serving(uid) for uid in world.intents}
        new_plan = plan(replace(world.seen(), back_offs=self.memory), tuple(world.intents.values()), self.now)
        self.memory = tuple(sorted(back_off for d in new_plan.decisions for back_off in d.back_offs))
        used = world.used()
        world.perform(new_plan)
        for uid, m in world.intents.items():
            assert self.serving(uid) >= min(serving[uid], m.min_replicas)
        if world.shows_quota:
            more = sum(max(0, d.replicas - before.get(key, 0)) for key, d in world.deployments.items())
            assert more <= max(0, world.quota - used), "planned beyond the quota"
        world.pass_time(promptly=promptly)
        self.now += ROUND_S
        return new_plan

    def serving(self, uid):
        deployments = (d for d in self.world.deployments.values() if d.owner.uid == uid)
        return sum(min(d.available, d.replicas) for d in deployments)


@pytest.mark.parametrize("quota_visible", [True, False], ids=["seen", "unseen"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_plans_never_exceed_quotas_and_finally_use_them(quota_visible, seed):
    tenant = Tenant(seed, quota_visible=quota_visible)
    world = tenant.world
    for _ in range(tenant.rng.randint(1, 8)):
        tenant.happen()
        for _ in range(tenant.rng.randint(0, 4)):
            tenant.round()
    for _ in range(30):
        new_plan = tenant.round(promptly=True)

    desired = sum(d.desired for d in new_plan.decisions)
    allowed = min(desired, GPUS)
    ends = sum(d.available for d in world.deployments.values())
    assert ends >= min(allowed, world.quota)
    for d in new_plan.decisions:
        if d.placed_reason == "Placed":
            assert tenant.serving(d.owner_uid) >= d.desired
