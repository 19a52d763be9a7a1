"""A small fleet on which GPUs get new MIG layouts: every actor, one step at a time, in every order.

The operator decides by `next_step`, the agent by `tangram.partition.difference`. Between a decision of the
operator and each of its writes, and between the agent's look at the holders and its call of the driver,
anything else may happen. A write carries the version of its object: after a change of it, it is refused.
Time passes in ticks of half a minute, in which the scheduler, the controllers and a living agent have seen
what happened before; the operator and the kubelet may be slower, and a replica starts or finishes its
requests for as long as it likes.
"""

from tests.support.repartition_model.explorer import Exploration, explore, undisturbed
from tests.support.repartition_model.fleet import Scenario
from tests.support.repartition_model.layouts import NONE
from tests.support.repartition_model.model import Model

__all__ = ["NONE", "Exploration", "Model", "Scenario", "explore", "undisturbed"]
