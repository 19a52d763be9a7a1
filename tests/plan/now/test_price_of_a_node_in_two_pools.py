"""A node that two GPUPools select costs the same in the planner, in a recommendation and in a simulation."""

from dataclasses import replace

import pytest

from tangram.catalog.prices import Prices
from tangram.fleet import Pool
from tangram.plan.fleet_input.fleet import read_fleet
from tangram.plan.fleet_input.observed.pool_use import pool_use
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.offers.node_offers import offers
from tangram.plan.place.best.packing_problem import fleet_problem
from tangram.plan.recommend import cost_per_hour
from tangram.simulator.run import SimulationSettings, run
from tests.support.fleet import claims, intent, node, shape, snapshot, workload
from tests.support.simulated_fleets import Schedule, poisson_trace, served

CATALOG_PRICE = Prices({}).required_gpu_hour("H100-80GB-SXM")


def pool(name, price):
    return Pool(name, selector=(("team", "a"),), price_per_gpu_hour=price)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pool("a", None), pool("b", 3.0), 3.0),
        (pool("a", 5.0), pool("b", 3.0), 5.0),
        (pool("a", 0.0), pool("b", 3.0), 0.0),
        (pool("a", None), pool("b", None), CATALOG_PRICE),
    ],
    ids=("only the second sets a price", "both set one", "the first is free", "neither sets one"),
)
def test_the_first_pool_with_a_price_decides_what_a_node_costs(first, second, expected):
    m = intent()
    the_node = replace(node("n0", gpu=1), labels=(("team", "a"),))
    observed = snapshot(
        the_node,
        workloads=(workload(m, shape(), 1),),
        claims=claims(m, shape(), "n0"),
        pools=(first, second),
    )
    settings = SimulationSettings((the_node,), pools=(first, second), duration_s=3600.0)

    costs = {
        "offered": offers(read_fleet(observed)).replica_hour(shape(), ()),
        "running": read_fleet(observed).running_replica_hour(m.uid, shape()),
        "recommended": cost_per_hour(fleet_problem(snapshot_input(observed, (m,)))),
        "of its pool": dict(pool_use(snapshot_input(observed, (m,)), observed))["a"].cost_per_hour,
        "simulated": run((served(poisson_trace(100, 1.0), Schedule([(0, 1)])),), settings).usd,
    }

    assert costs == pytest.approx(dict.fromkeys(costs, expected))


def test_a_node_that_only_its_second_pool_prices_is_planned_without_a_price_in_the_catalog():
    the_node = replace(node("n0", "GB200-186GB", gpu=1), labels=(("team", "a"),))
    observed = snapshot(the_node, pools=(pool("a", None), pool("b", 9.0)))

    (gpu,) = snapshot_input(observed, ()).gpus

    assert (gpu.pool, gpu.price_per_hour) == ("a", 9.0)
