"""Hypothesis strategies for observed fleets of every kind."""

from hypothesis import strategies as st

from tangram.fleet import (
    Claim,
    FactsKey,
    FleetSnapshot,
    InvalidIntent,
    InvalidPool,
    MIGPolicy,
    Node,
    Objective,
    Pool,
    PoolPolicy,
    Shape,
    Spread,
    Traffic,
    Workload,
    resource_name,
)
from tangram.fleet.lengths import around
from tests.support.fleet import CHECKPOINTS, IMAGE, PRODUCTS, intent

SKUS = ("H100-80GB-SXM", "A100-80GB-SXM", "L4", "GB200-186GB")
PROFILES = ("gpu", "1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")
RESOURCES = tuple(resource_name(profile) for profile in PROFILES)
counts = st.integers(1, 9)
few = st.integers(0, 3)


@st.composite
def nodes(draw, name):
    sku = draw(st.sampled_from((*SKUS, None)))
    cut = draw(st.booleans())
    offered = draw(
        st.dictionaries(st.sampled_from(RESOURCES[1:] if cut else RESOURCES[:1]), counts, max_size=3)
    )
    return Node(
        name=name,
        sku=sku,
        product=PRODUCTS[sku] if sku else draw(st.sampled_from(("", "Tesla-K80"))),
        usable=draw(st.sampled_from((True, True, True, False))),
        allocatable=tuple(sorted(offered.items())),
        zone=draw(st.sampled_from(("", "a", "b"))),
        gpus=draw(st.sampled_from((None, 1, 2, 4, 8))),
        labels=tuple(sorted(draw(st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"))).items())),
    )


@st.composite
def pools(draw, name):
    selector = draw(st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2))
    return Pool(
        name=name,
        selector=tuple(sorted(selector.items())),
        price_per_gpu_hour=draw(st.sampled_from((None, 0.0, 1.5))),
        policy=draw(st.sampled_from(PoolPolicy)),
        backend=draw(st.sampled_from((None, "nvml", "mig-manager"))),
        disruption_budget=draw(st.none() | few),
        max_nodes=draw(st.none() | few),
        sku=draw(st.sampled_from((None, *SKUS))),
        gpus_per_node=draw(st.sampled_from((1, 4))),
        mig_enabled=draw(st.booleans()),
    )


@st.composite
def intents(draw, name):
    least = draw(st.integers(1, 3))
    objectives = st.none() | st.builds(Objective, st.sampled_from((50, 90, 95, 99)), st.integers(5, 900))
    return intent(
        name,
        draw(st.sampled_from((*CHECKPOINTS, "pvc://nobody/knows"))),
        namespace=draw(st.sampled_from(("ns", "default"))),
        served_name=draw(st.sampled_from((name, "same"))),
        created_at=float(draw(st.integers(0, 2))),
        max_model_len=draw(st.sampled_from((None, 256, 4096))),
        ttft=draw(objectives),
        tpot=draw(objectives),
        allowed_skus=draw(st.sampled_from(((), SKUS[:1]))),
        mig=draw(st.sampled_from(MIGPolicy)),
        min_replicas=least,
        max_replicas=least + draw(few),
        paused=draw(st.sampled_from((False, False, True))),
        traffic=Traffic(
            draw(st.none() | st.floats(0.01, 500)), draw(st.none() | st.integers(1, 5000).map(around)), None
        ),
        priority=draw(st.integers(-1, 1)),
        pools=draw(st.sampled_from(((), ("p0",), ("p0", "p1"), ("none",)))),
        tensor_parallel=draw(st.sampled_from(((), (1,), (2, 4)))),
        precision=draw(st.sampled_from(("AsStored", "Any", "bf16", "int4"))),
        kv_precision=draw(st.sampled_from(("bf16", "fp8"))),
        spread=draw(st.sampled_from((Spread(), Spread(0.5, 1.0), Spread(0.3, 0.5)))),
        budget_per_hour=draw(st.sampled_from((None, 0.5, 20.0))),
    )


@st.composite
def fleets(draw):
    """(snapshot, intents), of small fleets."""
    deployments = [draw(intents(f"m{i}")) for i in range(draw(few))]
    if draw(st.booleans()):
        deployments.append(InvalidIntent("uid-bad", "ns", "bad", 1, 0.0, "spec.model: Field required"))
    owners = [deployment.uid for deployment in deployments]
    observed_nodes = [draw(nodes(f"n{i}")) for i in range(draw(few))]
    where = [node.name for node in observed_nodes] + ["gone"]
    shapes = st.builds(Shape, st.sampled_from(SKUS), st.sampled_from(PROFILES))
    snapshot = FleetSnapshot(
        nodes=tuple(observed_nodes),
        claims=tuple(
            draw(
                st.lists(
                    st.builds(
                        Claim,
                        st.sampled_from(where),
                        st.sampled_from(RESOURCES),
                        st.integers(1, 3),
                        st.sampled_from((None, "uid-gone", *owners)),
                    ),
                    max_size=8,
                )
            )
        ),
        workloads=tuple(
            _workload(number, owner, draw(shapes), draw(few))
            for number, owner in enumerate(
                draw(st.lists(st.sampled_from(owners), max_size=4)) if owners else ()
            )
        ),
        facts=tuple(
            (FactsKey(ns, uri, IMAGE), f) for ns in ("ns", "default") for uri, f in CHECKPOINTS.items()
        ),
        pools=tuple(draw(pools(f"p{i}")) for i in range(draw(few))),
        invalid_pools=draw(st.sampled_from(((), (InvalidPool("bad", "spec: Field required"),)))),
        desired=tuple((uid, draw(few)) for uid in owners if draw(st.booleans())),
        engine_image=IMAGE,
        prices=draw(st.sampled_from(((), (("L4", 0.5),), (("GB200-186GB", 10.0), ("L4", 0.0))))),
    )
    return snapshot, tuple(deployments)


def _workload(number, owner, shape, replicas):
    return Workload(
        uid=f"dep-{number}",
        name=f"d{number}",
        namespace="ns",
        owner_uid=owner,
        shape=shape,
        replicas=replicas,
        ready=replicas,
        available=replicas,
        updated=replicas,
        settled=True,
        total=replicas,
        owner_generation=1,
    )
