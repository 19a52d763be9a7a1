"""On random fleets: what a warning says is what the operator then does; what is refused is not accepted."""

import copy
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.admission import (
    LONGEST_WARNING,
    Review,
    ReviewedFleet,
    ReviewedObjects,
    placement_warnings,
    refusal,
)
from tangram.api import accepted_block, parse, parse_pool, parse_quota, priority_classes
from tangram.eligibility.acceptance import acceptance, by_age
from tangram.eligibility.pool_conditions import accepted as pool_accepted
from tangram.fleet import Intent, Node, PodNeeds, Pool, claiming_pools
from tangram.plan import plan
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.watch.mirror_view import MirrorView
from tests.support.fleet import CHECKPOINTS, NOW, Cluster, intent, node, snapshot

RUNS = re.compile(
    r"new runs on (.+): (?:1 replica at (.+) \$/h|(\d+) replicas at .+ \$/h each, (.+) \$/h in all)"
)
EDIT = re.compile(r"(with|without) (.+) it would run on (.+): (\d+) replicas? at ")
SEEDS = 100
LAWS = (
    "runs",
    "edit",
    "nothing runs",
    "refused",
    "admitted",
    "refused by quota",
    "pool refused",
    "pool admitted",
)
SEEN = Counter()  # what the examples were about
DAY = "2026-01-0{}T00:00:00Z"


POOLS = (Pool("left", (("side", "left"),), 4.0), Pool("right", (("side", "right"),)))
OFFERS = (
    ("H100-80GB-SXM", {"gpu": 2}),
    ("H100-80GB-SXM", {"mig_1g_10gb": 4, "mig_3g_40gb": 1}),
    ("A10", {"gpu": 1}),
    ("L4", {"gpu": 2}),
)


def one_of(*values):
    return st.sampled_from(values)


def random_fleet(rng):
    """Return a fleet that runs what was applied earlier, as the operator placed it."""
    nodes = []
    for number in range(rng.randint(1, 4)):
        sku, offer = rng.choice(OFFERS)
        side = rng.choice(("left", "right"))
        nodes.append(
            replace(node(f"n{number}", sku, usable=rng.random() < 0.9, **offer), labels=(("side", side),))
        )
    intents = tuple(
        intent(
            f"m{number}",
            rng.choice(tuple(CHECKPOINTS)),
            created_at=NOW - 100 + number,
            served_name=rng.choice((f"m{number}", "same")),
            min_replicas=rng.randint(1, 3),
            priority=rng.choice((0, 0, 5)),
            pools=rng.choice(((), (), ("left",))),
            max_model_len=rng.choice((256, 4096)),
        )
        for number in range(rng.randint(0, 4))
    )
    cluster = Cluster(snapshot(*nodes, pools=POOLS), intents)
    for _ in range(rng.randint(0, 2)):
        cluster.perform(plan(cluster.observed, intents, NOW))
        cluster.settle()
    return cluster.observed, intents


def random_body(rng):
    """Return an LLMDeployment as applied."""
    placement = {
        "mig": rng.choice(("Allowed", "Allowed", "Required", "Forbidden")),
        "allowedSKUs": rng.choice(([], [], ["A10"], ["L4", "A10"])),
        "deniedSKUs": rng.choice(([], [], ["H100-80GB-SXM"])),
        "pools": rng.choice(([], [], ["left"], ["none"])),
    }
    if rng.random() < 0.3:
        placement["budgetPerHour"] = rng.choice(("0.5", "5"))
    least = rng.randint(1, 3)
    spec = {
        "model": {"uri": rng.choice(tuple(CHECKPOINTS)), "servedName": rng.choice(("new", "new", "same"))},
        "engine": {"maxModelLen": rng.choice((256, 4096, 100_000))},
        "placement": placement,
        "scaling": {"minReplicas": least, "maxReplicas": least + rng.randint(0, 2)},
        "objectives": {
            name: {"milliseconds": rng.choice((3, 40, 900))}
            for name in ("ttft", "tpot")
            if rng.random() < 0.4
        },
    }
    if rng.random() < 0.3:
        spec["replicas"] = rng.randint(0, 5)
    born = {"uid": "uid-new", "creationTimestamp": DAY.format(9), "generation": 1}
    return {"metadata": {"name": "new", "namespace": "ns"} | born, "spec": spec}


def lines(body, snapshot, intents):
    review = Review("CREATE", "llmdeployments", "ns", "new", body)
    return placement_warnings(review, ReviewedFleet(snapshot, intents, NOW))


def performed(body, snapshot, intents):
    """Return the decision about the object in the next round, and its replicas once that is carried out."""
    everything = (*intents, parse(body, priority_classes(snapshot.priority_classes)))
    planned = plan(snapshot, everything, NOW)
    cluster = Cluster(snapshot, everything)
    cluster.perform(planned)
    replicas = {
        w.shape.described: w.replicas
        for w in cluster.observed.workloads
        if w.owner_uid == "uid-new" and w.replicas
    }
    return next(d for d in planned.decisions if d.owner_uid == "uid-new"), replicas


@pytest.mark.parametrize("seed", range(SEEDS))
def test_shape_replicas_and_price_are_those_that_the_operator_then_makes(seed):
    rng = random.Random(seed)
    fleet, body = random_fleet(rng), random_body(rng)

    printed = lines(body, *fleet)

    decision, replicas = performed(body, *fleet)

    assert printed
    assert max(map(len, printed)) <= LONGEST_WARNING
    told = next(filter(None, map(RUNS.match, printed)), None)
    SEEN["nothing runs" if told is None else "runs"] += 1
    if told is None:
        assert replicas == {}
        return
    shape, price_of_one, count, price = told.groups()
    assert replicas == {shape: int(count or 1)}
    assert price_of_one or price == f"{decision.price_per_hour:.2f}"
    latencies = [line for line in printed if line.startswith("predicted")]
    assert f"TTFT {decision.predicted_ttft_ms:.2f} ms" in latencies[0]
    assert f"TPOT {decision.predicted_tpot_ms:.2f} ms" in latencies[0]


def edited(body, how, text):
    """Return the object with the edit that a warning names."""
    new = copy.deepcopy(body)
    for setting in text.split(" and "):
        path, _, value = setting.partition(" ")
        *parents, last = path.split(".")
        at = new["spec"]
        for name in parents:
            at = at.setdefault(name, {})
        if how == "without":
            del at[last]
        else:
            at[last] = int(value) if value.isdigit() else value
    return new


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_edit_that_a_warning_names_serves_the_model(seed):
    rng = random.Random(seed)
    fleet, body = random_fleet(rng), random_body(rng)

    edits = [found for line in lines(body, *fleet) if (found := EDIT.match(line))]

    for found in edits:
        how, text, shape, count = found.groups()
        decision, replicas = performed(edited(body, how, text), *fleet)

        SEEN["edit"] += 1
        assert (decision.placed_reason, decision.placed) == ("Placed", decision.desired)
        assert replicas == {shape: int(count)}


@st.composite
def applied(draw, name, *, day):
    """An LLMDeployment of namespace ns as stored: perhaps with a last accepted spec, of another time."""
    spec = {"model": {"uri": "image:///m/1b"}}
    if draw(st.booleans()):
        spec["model"]["servedName"] = draw(one_of("a", "b", "c"))
    if draw(st.booleans()):
        spec["priorityClassName"] = draw(one_of("low", "bare", "gone"))
    if draw(st.booleans()):
        spec["placement"] = {"allowedSKUs": draw(one_of(["L4"], ["typo"], ["L4", "typo"]))}
    if draw(st.booleans()):
        spec["metadata"] = {"labels": draw(one_of({"ok": "1"}, {"bad": "1"}))}
    meta = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "creationTimestamp": DAY.format(day),
        "generation": 2,
    }
    return {"metadata": meta, "spec": spec}


def with_status(stored, earlier):
    """Return `stored` with the record of `earlier`, if that was accepted."""
    intent = parse(earlier)
    block = accepted_block(earlier, intent) if isinstance(intent, Intent) else None
    return stored | {"status": {"acceptedSpec": block}} if block else stored


CLASSES = (
    {
        "metadata": {"name": "low", "labels": {"tangram.dev/priority-class": "true"}},
        "value": 1,
        "preemptionPolicy": "Never",
    },
    {"metadata": {"name": "bare", "labels": {}}, "value": 1, "preemptionPolicy": "Never"},
)
THREE = st.tuples(*(applied(name, day=day) for day, name in enumerate("abc", 1)))


@settings(max_examples=120)
@given(
    stored=THREE,
    earlier=THREE,
    records=st.tuples(*[st.booleans()] * 3),
    new=st.integers(0, 2),
    data=st.data(),
)
def test_what_is_refused_the_operator_does_not_accept(stored, earlier, records, new, data):
    objects = [with_status(s, e) if has else s for s, e, has in zip(stored, earlier, records, strict=True)]
    is_update = data.draw(st.booleans())
    before = objects[new] if is_update else None
    body = data.draw(applied("abc"[new], day=new + 1)) | ({"status": before.get("status")} if before else {})
    others = [obj for number, obj in enumerate(objects) if number != new]
    known = ReviewedObjects(tuple(objects if is_update else others), CLASSES, (), pod_metadata_keys=("ok",))
    operation = "UPDATE" if is_update else "CREATE"

    refused = refusal(Review(operation, "llmdeployments", "ns", "abc"[new], body, before), known)

    view = MirrorView(llm_deployments=(*others, body), priority_classes=CLASSES)
    in_force = parsed_intents(view, pod_metadata_keys=("ok",))
    assert refused is None or not accepted_by(in_force, body["metadata"]["uid"])
    SEEN["admitted" if refused is None else "refused"] += 1


def accepted_by(in_force, uid):
    """Whether the operator accepts the present spec: `Accepted` is True, and no other spec is in force."""
    verdict = acceptance(by_age(in_force), PodNeeds())[uid]
    intent = next(i for i in in_force if i.uid == uid)
    return verdict.accepted and getattr(intent, "refused_edit", None) is None


@pytest.mark.parametrize("seed", range(60))
def test_a_quota_that_refuses_never_allows_the_fewest_replicas(seed):
    """On a fleet with room for all, under that quota alone."""
    rng = random.Random(seed)
    body = random_body(rng)
    body["spec"]["placement"] = {"mig": rng.choice(("Allowed", "Forbidden"))}
    body["spec"]["engine"] |= {"resources": {"requests": rng.choice(({}, {"cpu": "2"}, {"memory": "8Gi"}))}}
    hard = {
        rng.choice(("pods", "requests.cpu", "limits.memory", "requests.nvidia.com/gpu")): rng.choice("13")
    }
    if "limits.memory" in hard:
        hard["limits.memory"] += "0Gi"
    quota = {"metadata": {"name": "q", "namespace": "ns"}, "hard": hard, "used": {}}
    known = ReviewedObjects((), CLASSES, (quota,))
    fleet = snapshot(node("n", gpu=9, mig_1g_10gb=9), quotas=tuple(parse_quota(quota)))

    refused = refusal(Review("CREATE", "llmdeployments", "ns", "new", body), known)

    decision, _ = performed(body, fleet, ())
    SEEN["refused by quota"] += refused is not None
    assert refused is None or decision.placed < parse(body).min_replicas


@pytest.mark.parametrize("seed", range(60))
def test_a_pool_is_refused_where_its_new_nodes_turn_accepted_false(seed):
    rng = random.Random(seed)

    def selector():
        return {key: rng.choice("12") for key in rng.sample("abc", rng.randint(1, 2))}

    def pool(name):
        return {
            "metadata": {"name": name, "uid": name, "generation": 1},
            "spec": {"nodeSelector": selector()},
        }

    labels = {f"n{number}": {key: rng.choice("12") for key in "abc"} for number in range(4)}
    others, body = [pool(name) for name in "ac"], pool("b")
    known = ReviewedObjects(
        gpu_pools=others, nodes=[{"metadata": {"name": n, "labels": of}} for n, of in labels.items()]
    )

    refused = refusal(Review("CREATE", "gpupools", "", "b", body), known)

    pools = [parse_pool(obj) for obj in (*others, body)]
    nodes = [Node(name, None, "", True, (), labels=tuple(of.items())) for name, of in labels.items()]
    members = {node: names for node in nodes if "b" in (names := claiming_pools(node, pools))}
    conflicts = [pool.name for pool in pools if pool_accepted(pool, members)[1] == "Conflict"]
    SEEN["pool refused" if refused else "pool admitted"] += 1
    assert (refused is not None) == bool(conflicts)


def test_the_laws_were_about_something():
    assert min(SEEN[what] for what in LAWS) >= 5, SEEN
