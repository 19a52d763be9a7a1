"""Plans on a simulated Kubernetes with random events: every round keeps the invariants; plans get stable."""

from collections import Counter, defaultdict
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog.prices import Prices
from tangram.eligibility.shapes.bundled_engine import on_bundled_engine
from tangram.eligibility.shapes.serving_requirements import requirements_of
from tangram.eligibility.shapes.serving_shapes import assessed_shapes
from tangram.fleet import ApplyDeployment, MIGPolicy, Objective, Pool, Traffic
from tangram.plan import plan
from tangram.plan.fleet_input.fleet import read_fleet
from tangram.plan.offers.node_offers import offers
from tangram.plan.place.now.joint_assignment import assign_devices
from tests.support.fleet import CHECKPOINTS, NOW, intent, node
from tests.support.kubernetes import Kubernetes

POOLS = (
    Pool("both", (("half", "yes"),)),
    Pool("left", (("side", "left"),), sku="H100-80GB-SXM"),
    Pool("right", (("side", "right"),), 9.0),
)
H100 = "H100-80GB-SXM"
CALM = ("scale", "change", "new", "delete", "nothing")
ROUGH = (*CALM, "cordon", "lose", "regain", "regain", "foreign pod", "foreign pod", "foreign pod ends")
KEPT_FIELDS = (
    "tpot", "denied_skus", "mig", "priority", "pools", "traffic", "budget_per_hour", "model_uri",
    "min_replicas",
)  # fmt: skip
REST_ROUNDS = 30


def nodes(rng):
    fleet_nodes = []
    for i in range(rng.randint(1, 4)):
        sku = rng.choice([H100, H100, "L4", "A10"])
        profiles = ["gpu", "mig_1g_10gb", "mig_1g_20gb", "mig_3g_40gb"]
        chosen = rng.sample(profiles, rng.randint(1, 3)) if sku == H100 else ["gpu"]
        offer = {profile: rng.randint(1, 4) for profile in chosen}
        left, right = ("side", "left"), ("side", "right")
        labels = rng.choice([(), (left,), (right,), (("half", "yes"), left)])
        fleet_nodes.append(replace(node(f"n{i}", sku, **offer), labels=labels))
    return fleet_nodes


def an_intent(rng, number, *, pooled, frugal):
    low = rng.randint(1, 2)
    return intent(
        f"m{number}",
        rng.choice(["image:///m/1b"] * 3 + ["image:///m/8b"]),
        created_at=NOW - rng.randint(0, 2),
        min_replicas=low,
        max_replicas=low + rng.choice([0, 1, 3, 6]),
        tpot=rng.choice([None, None, Objective(90, 5), Objective(90, 9)]),
        denied_skus=rng.choice([(), (), ("L4",), (H100,)]),
        mig=rng.choice([MIGPolicy.ALLOWED] * 4 + [MIGPolicy.FORBIDDEN, MIGPolicy.REQUIRED]),
        priority=rng.choice([0, 0, 0, 5]),
        pools=rng.choice([(), (), ("left",), ("left", "right"), ("both",)]) if pooled else (),
        traffic=Traffic(requests_per_second=rng.choice([None, None, 0.5, 30.0])),
        budget_per_hour=rng.choice([None, None, None, 1.0, 2.0, 6.0]) if frugal else None,
    )


def _is_declared(node):
    return node.sku == H100 and ("side", "left") in node.labels


class Life:
    """One cluster under random events: users, the scaling law, nodes and foreign pods."""

    def __init__(self, seed, *, rough, pooled, frugal):
        self.rng, self.events = Random(seed), ROUGH if rough else CALM
        self.rough, self.kind = rough, {"pooled": pooled, "frugal": frugal}
        fleet_nodes = nodes(self.rng)
        if pooled:  # some nodes on the left have no product label: their pool says which GPU they have
            bare = Random(seed)
            fleet_nodes = [
                replace(n, product="") if _is_declared(n) and bare.random() < 0.5 else n for n in fleet_nodes
            ]
        self.world = Kubernetes(fleet_nodes, POOLS if pooled else (), [], self.rng)
        self.born, self.loads = 0, {}
        for _ in range(self.rng.randint(1, 4)):
            self.new()

    def new(self):
        self.world.change(an_intent(self.rng, self.born, **self.kind))
        self.born += 1

    def happen(self):
        """One random event. Rounds need not have completed the last one."""
        event, rng, world = self.rng.choice(self.events), self.rng, self.world
        uids, names = sorted(world.intents), sorted(world.nodes)
        match event:
            case "new":
                self.new()
            case "scale" if uids:
                self._scale(world.intents[rng.choice(uids)])
            case "change" if uids:
                self._change(world.intents[rng.choice(uids)])
            case "delete" if uids:
                world.delete(rng.choice(uids))
            case "cordon" | "lose" | "regain":
                getattr(world, event)(rng.choice(names))
            case "foreign pod":
                world.foreign_pod_starts()
            case "foreign pod ends":
                world.foreign_pod_ends()

    def _scale(self, m):
        """The scaling law sets the desired replicas."""
        count = self.rng.randint(m.min_replicas, m.max_replicas)
        self.world.desired[m.uid] = count
        self.loads.pop(m.uid, None)
        if m.uid in self.world.counted and count > m.min_replicas:
            self.loads[m.uid] = (count, self.world.counted[m.uid])

    def _change(self, old):
        new = an_intent(self.rng, int(old.name[1:]), **self.kind)
        kept_fields = self.rng.sample(KEPT_FIELDS, 7)
        new = replace(new, **{key: getattr(old, key) for key in (*kept_fields, "created_at")})
        new = replace(
            new,
            generation=old.generation + 1,
            max_replicas=max(new.min_replicas, new.max_replicas),
            max_model_len=self.rng.choice([4096, 4096, 2048]),
        )
        self.world.change(new)
        self.loads.pop(new.uid, None)

    def round(self, *, promptly=False):
        """Observe, plan and perform, with the invariants checked; then time passes."""
        observed = self.world.seen()
        new_plan = plan(observed, tuple(self.world.intents.values()), NOW)
        self._same_in_any_order(observed, new_plan)
        self._no_device_is_assigned_twice(observed, new_plan)
        self._no_replica_is_preempted(observed, new_plan)
        served, cost = self._served(), self._cost(observed)
        counted, desired = dict(self.world.counted), dict(self.world.desired)
        carried = self._carried(new_plan, counted, desired)
        self.world.perform(new_plan)
        now_carried = self._carried(new_plan, counted, desired)
        for uid, before in carried.items():
            assert now_carried[uid] >= min(before, 1) - 1e-9, "a move drops capacity"
        now_served, now_cost = self._served(), self._cost(self.world.seen())
        for m in self.world.intents.values():
            assert now_served[m.uid] >= min(served[m.uid], m.min_replicas)
            if m.budget_per_hour is not None:  # prices change with the pools named, and budgets are lowered
                assert now_cost[m.uid] <= max(m.budget_per_hour, cost[m.uid]) + 1e-6
        self.world.pass_time(promptly=promptly)
        return new_plan

    def _served(self):
        available = Counter()
        for deployment in self.world.deployments.values():
            available[deployment.owner.uid] += min(deployment.available, deployment.replicas)
        return available

    def _carried(self, new_plan, counted, desired):
        """Share of the desired replicas that is available, for moves between two known shapes."""
        carried = {}
        for d in new_plan.decisions:
            deployments = [
                deployment
                for deployment in self.world.deployments.values()
                if deployment.owner.uid == d.owner_uid
            ]
            whole = {counted.get(d.owner_uid): desired.get(d.owner_uid), d.shape: d.desired}
            m = self.world.intents[d.owner_uid]
            if (
                d.shape
                and m.budget_per_hour is None
                and {deployment.shape for deployment in deployments} <= set(whole)
            ):
                parts = (
                    min(deployment.available, deployment.replicas) / whole[deployment.shape]
                    for deployment in deployments
                )
                carried[m.uid] = sum(parts)
        return carried

    def _cost(self, observed):
        offered, costs = offers(read_fleet(observed)), Counter()
        for w in observed.workloads:
            pools = self.world.intents[w.owner_uid].pools
            costs[w.owner_uid] += w.replicas * (offered.replica_hour(w.shape, pools) or 0.0)
        return costs

    def _same_in_any_order(self, observed, new_plan):
        def mixed(items):
            return tuple(self.rng.sample(list(items), len(items)))

        if self.rng.random() < 0.3:
            assign_devices.cache_clear()
        other = replace(
            observed,
            workloads=mixed(observed.workloads),
            claims=mixed(observed.claims),
            nodes=mixed(observed.nodes),
        )
        assert plan(other, mixed(self.world.intents.values()), NOW + 5) == new_plan

    def _no_device_is_assigned_twice(self, observed, new_plan):
        """Replicas that are added have free devices beside all that is held and placed."""
        available, held = Counter(), defaultdict(Counter)
        usable = {n.name: n for n in observed.nodes if n.usable}
        for n in usable.values():
            for resource, count in n.allocatable:
                available[n.sku, resource] += count
        for claim in observed.claims:
            n = usable.get(claim.node)
            if n is not None and claim.owner_uid in self.world.intents:
                held[n.sku, claim.resource][claim.owner_uid] += claim.count
            elif n is not None:
                available[n.sku, claim.resource] -= claim.count
        before = {(w.owner_uid, w.shape): w.replicas for w in observed.workloads}
        for kind in {
            (a.shape.sku, a.shape.resource)
            for a in new_plan.actions
            if isinstance(a, ApplyDeployment) and a.replicas > before.get((a.owner_uid, a.shape), 0)
        }:
            for d in new_plan.decisions:
                if d.shape is not None and (d.shape.sku, d.shape.resource) == kind:
                    held[kind][d.owner_uid] = max(held[kind][d.owner_uid], d.placed)
            assert sum(held[kind].values()) <= available[kind]

    def _no_replica_is_preempted(self, observed, new_plan):
        """Replicas are removed only above the desired number, or above the own budget."""
        before = {(w.owner_uid, w.shape): w.replicas for w in observed.workloads}
        desired = {d.owner_uid: d.desired for d in new_plan.decisions}
        for a in new_plan.actions:
            if isinstance(a, ApplyDeployment) and self.world.intents[a.owner_uid].budget_per_hour is None:
                assert a.replicas >= min(before.get((a.owner_uid, a.shape), 0), desired[a.owner_uid])

    def until_stable(self):
        """Without further events, plans become stable after a few rounds and do not oscillate."""
        decisions, before, unchanged = defaultdict(list), None, 0
        for _ in range(REST_ROUNDS):
            new_plan = self.round(promptly=True)
            for d in new_plan.decisions:
                if decisions[d.owner_uid][-1:] != [(d.shape, d.desired)]:
                    decisions[d.owner_uid].append((d.shape, d.desired))
            now = new_plan, self.world.state()
            unchanged = unchanged + 1 if now == before else 0
            before = now
            if unchanged == 3:
                break
        assert unchanged == 3, "plans never become stable"
        assert all(len(changes) <= 2 for changes in decisions.values()), f"plans oscillate: {dict(decisions)}"
        return new_plan

    def placed_reasons_are_true(self, new_plan):
        for d in new_plan.decisions:
            deployments = [
                deployment
                for deployment in self.world.deployments.values()
                if deployment.owner.uid == d.owner_uid
            ]
            if d.placed_reason == "Placed":
                assert [deployment.shape for deployment in deployments] == [d.shape]
            if not self.rough and d.shape is not None:
                assert (
                    sum(deployment.available for deployment in deployments if deployment.shape == d.shape)
                    >= d.placed
                )
            if d.placed_reason == "Placed" and d.owner_uid in self.loads:
                self._carries_the_ordered_load(d)

    def _carries_the_ordered_load(self, d):
        """Shortage, moves and returns lose no capacity that the scaling law ordered."""
        m, (count, of) = self.world.intents[d.owner_uid], self.loads[d.owner_uid]
        facts = CHECKPOINTS[m.model_uri]
        model = architecture_from_facts(facts)
        needs = on_bundled_engine(requirements_of(m, model))
        shapes = assessed_shapes(needs, (), Prices())
        then, now = shapes.rate(of), shapes.rate(d.shape)
        if then and now and d.desired < m.max_replicas:
            assert d.desired * now >= count * then * (1 - 1e-6)


@pytest.mark.parametrize(
    ("rough", "pooled", "frugal"),
    [(False, False, False), (False, True, True), (True, False, False), (True, True, True)],
)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_every_round_keeps_the_invariants_and_plans_become_stable(rough, pooled, frugal, seed):
    life = Life(seed, rough=rough, pooled=pooled, frugal=frugal)
    for _ in range(life.rng.randint(1, 10)):
        life.happen()
        for _ in range(life.rng.randint(0, 4)):
            life.round()
    life.placed_reasons_are_true(life.until_stable())
