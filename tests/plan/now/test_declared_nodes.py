"""Nodes whose GPU model a GPUPool declares: used, and only pods that need them get affinity to them."""

from dataclasses import replace

from tangram.fleet import ApplyDeployment, Pool
from tangram.plan import plan
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload

H100, LABEL = "H100-80GB-SXM", "NVIDIA-H100-80GB-HBM3"
WHOLE = shape()
BARE = (("pool", "bare"),)
POOL = Pool("bare", BARE, sku=H100)


def bare(name, gpu):
    return replace(node(name, gpu=gpu), product="", labels=BARE)


def applied(*nodes, replicas=1, running=None, pools=(POOL,), held=(), owner=None):
    owner = owner or intent("one", min_replicas=replicas, max_replicas=replicas)
    observed = snapshot(*nodes, pools=pools, claims=held, workloads=() if running is None else (running,))
    (action,) = (a for a in plan(observed, (owner,), NOW).actions if isinstance(a, ApplyDeployment))
    return action.replicas, action.products, action.declared


ONE = intent("one")


def test_replicas_are_placed_on_declared_nodes_by_node_affinity():
    assert applied(bare("a", 2), replicas=2) == (2, (), (BARE,))


def test_a_new_deployment_may_run_on_labelled_and_on_declared_nodes():
    assert applied(node("n", gpu=1), bare("a", 1), replicas=2) == (2, (LABEL,), (BARE,))


def test_a_new_pool_changes_no_deployment_whose_replicas_have_devices():
    running = workload(ONE, WHOLE, 1, products=(LABEL,))

    assert applied(node("n", gpu=2), bare("a", 4), running=running, held=claims(ONE, WHOLE, "n")) == (
        1, (LABEL,), (),
    )  # fmt: skip


def test_a_deployment_that_outgrows_labelled_nodes_gets_affinity_to_declared_nodes():
    running = workload(ONE, WHOLE, 1, products=(LABEL,))

    placement = applied(
        node("n", gpu=1), bare("a", 4), replicas=2, running=running, held=claims(ONE, WHOLE, "n")
    )

    assert placement == (2, (LABEL,), (BARE,))


def test_a_shortage_that_declared_nodes_do_not_end_changes_no_affinity():
    running = workload(ONE, WHOLE, 2, available=1, products=(LABEL,))
    held_devices = (*claims(ONE, WHOLE, "n"), *claims(None, WHOLE, "a"))

    assert applied(node("n", gpu=1), bare("a", 1), replicas=2, running=running, held=held_devices) == (
        2,
        (LABEL,),
        (),
    )


def test_a_deployment_keeps_its_affinity_when_it_shrinks_and_when_labelled_nodes_disappear():
    running = workload(ONE, WHOLE, 1, products=(LABEL,), declared=(BARE,))

    for nodes in ((node("n", gpu=2), bare("a", 2)), (bare("a", 2),)):
        assert applied(*nodes, running=running, held=claims(ONE, WHOLE, "a")) == (1, (LABEL,), (BARE,))


def test_edited_affinity_of_a_template_counts_only_if_a_pool_declares_it():
    running = workload(ONE, WHOLE, 1, products=(LABEL, "NVIDIA-A10"), declared=((("pool", "x"),), BARE))
    other = replace(POOL, sku="A10")

    placement = applied(node("n", gpu=2), running=running, pools=(other,), held=claims(ONE, WHOLE, "n"))

    assert placement == (1, (LABEL,), ())


def test_an_llmdeployment_that_names_pools_uses_declared_nodes_of_those_pools_only():
    two = Pool("two", (("pool", "two"),), sku=H100)
    far = replace(bare("b", 4), labels=(("pool", "two"),))
    owner = intent("one", pools=("bare",), min_replicas=1, max_replicas=1)

    assert applied(bare("a", 1), far, pools=(POOL, two), owner=owner) == (1, (), (BARE,))


def test_an_llmdeployment_stays_in_its_named_pool_if_another_pool_declares_the_nodes():
    named = Pool("named", (("rack", "7"),))
    in_both_pools = replace(bare("a", 1), labels=(*BARE, ("rack", "7")))
    owner = intent("one", pools=("named",), min_replicas=1, max_replicas=1)

    assert applied(in_both_pools, bare("b", 4), pools=(POOL, named), owner=owner) == (
        1,
        (),
        ((*BARE, ("rack", "7")),),
    )
