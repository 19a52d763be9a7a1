"""From the fleet as it is to the layout that a packing wants.

In: a `Problem` as observed, a `Packing`, a `Pace` (disruption budgets). Out: `transition`, the ordered steps
of the plan, or what is missing for them; `next_actions`, those that may begin now in a fleet on its way.

The room, from the bottom: `steps` (nouns), `end_states` (both ends, where mig-manager puts slices),
`disruption` (budgets), `fleet_state` (what blocks a place, where else there is room), `backlog` (what is
still to be done), `recorder` (texts and order of steps), `attempt` (one attempt under a `Policy`), `unroll`
(one policy after the other), `remedies` (what would help), `observed` (a fleet on its way), `legality` (what
may begin beside what is underway), `actions` (the step function).
"""

from tangram.packing.transition.actions import (
    TransitionGoal,
    blocking,
    next_actions,
    remaining,
    transition_goal,
)
from tangram.packing.transition.end_states import end_states
from tangram.packing.transition.observed import ObservedFleet
from tangram.packing.transition.remedies import transition
from tangram.packing.transition.steps import Missing, Pace, Spare, Step, Transition

__all__ = [
    "Missing",
    "ObservedFleet",
    "Pace",
    "Spare",
    "Step",
    "Transition",
    "TransitionGoal",
    "blocking",
    "end_states",
    "next_actions",
    "remaining",
    "transition",
    "transition_goal",
]
