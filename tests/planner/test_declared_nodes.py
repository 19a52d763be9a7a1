"""Nodes whose GPU model a GPUPool declares: used, and only the pods that need them are steered there."""

from dataclasses import replace

from tangram.fleet import ApplyDeployment, Pool
from tangram.planner import plan
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload

H100, LABEL = "H100-80GB-SXM", "NVIDIA-H100-80GB-HBM3"
WHOLE = shape()
BARE = (("pool", "bare"),)
POOL = Pool("bare", BARE, sku=H100)


def bare(name, gpu):
    return replace(node(name, gpu=gpu), product="", labels=BARE)


def applied(*nodes, wanted=1, mine=None, pools=(POOL,), held=(), one=None):
    one = one or intent("one", min_replicas=wanted, max_replicas=wanted)
    seen = snapshot(*nodes, pools=pools, claims=held, workloads=() if mine is None else (mine,))
    (found,) = (a for a in plan(seen, (one,), NOW).actions if isinstance(a, ApplyDeployment))
    return found.replicas, found.products, found.declared


ONE = intent("one")


def test_replicas_are_placed_on_declared_nodes_and_steered_there():
    assert applied(bare("a", 2), wanted=2) == (2, (), (BARE,))


def test_a_new_deployment_may_run_on_labelled_and_on_declared_nodes():
    assert applied(node("n", gpu=1), bare("a", 1), wanted=2) == (2, (LABEL,), (BARE,))


def test_a_pool_that_is_added_changes_no_deployment_whose_replicas_have_their_units():
    mine = workload(ONE, WHOLE, 1, products=(LABEL,))

    assert applied(node("n", gpu=2), bare("a", 4), mine=mine, held=claims(ONE, WHOLE, "n")) == (
        1, (LABEL,), (),
    )  # fmt: skip


def test_a_deployment_that_grows_beyond_labelled_nodes_is_steered_to_declared_ones():
    mine = workload(ONE, WHOLE, 1, products=(LABEL,))

    found = applied(node("n", gpu=1), bare("a", 4), wanted=2, mine=mine, held=claims(ONE, WHOLE, "n"))

    assert found == (2, (LABEL,), (BARE,))


def test_a_shortage_that_declared_nodes_do_not_end_changes_nothing():
    mine = workload(ONE, WHOLE, 2, available=1, products=(LABEL,))
    taken = (*claims(ONE, WHOLE, "n"), *claims(None, WHOLE, "a"))

    assert applied(node("n", gpu=1), bare("a", 1), wanted=2, mine=mine, held=taken) == (2, (LABEL,), ())


def test_a_deployment_keeps_where_its_pods_may_run_when_it_shrinks_and_when_labelled_nodes_go():
    mine = workload(ONE, WHOLE, 1, products=(LABEL,), declared=(BARE,))

    for nodes in ((node("n", gpu=2), bare("a", 2)), (bare("a", 2),)):
        assert applied(*nodes, mine=mine, held=claims(ONE, WHOLE, "a")) == (1, (LABEL,), (BARE,))


def test_what_a_template_was_edited_to_say_counts_only_where_a_pool_declares_it():
    mine = workload(ONE, WHOLE, 1, products=(LABEL, "NVIDIA-A10"), declared=((("pool", "x"),), BARE))
    other = replace(POOL, sku="A10")

    found = applied(node("n", gpu=2), mine=mine, pools=(other,), held=claims(ONE, WHOLE, "n"))

    assert found == (1, (LABEL,), ())


def test_of_an_llmdeployment_that_names_pools_only_their_declared_nodes_are_used():
    two = Pool("two", (("pool", "two"),), sku=H100)
    far = replace(bare("b", 4), labels=(("pool", "two"),))
    one = intent("one", pools=("bare",), min_replicas=1, max_replicas=1)

    assert applied(bare("a", 1), far, pools=(POOL, two), one=one) == (1, (), (BARE,))


def test_a_named_pool_is_kept_to_where_another_pool_declares_its_nodes():
    named = Pool("named", (("rack", "7"),))
    both = replace(bare("a", 1), labels=(*BARE, ("rack", "7")))
    one = intent("one", pools=("named",), min_replicas=1, max_replicas=1)

    assert applied(both, bare("b", 4), pools=(POOL, named), one=one) == (1, (), ((*BARE, ("rack", "7")),))
