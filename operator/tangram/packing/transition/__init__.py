"""From the fleet as it is to the layout that a packing wants.

In: a `Problem` as observed, a `Packing`, a `Pace` (disruption budgets). Out: `transition`, the ordered steps
of the plan, or what is missing for them.

The room, from the bottom: `steps` (nouns), `end_states` (both ends, where mig-manager puts slices),
`disruption` (budgets), `fleet_state` (what blocks a place, where else there is room), `backlog` (what is
still to be done), `recorder` (texts and order of steps), `attempt` (one attempt under a `Policy`), `unroll`
(one policy after the other), `remedies` (what would help).
"""

from tangram.packing.transition.end_states import end_states
from tangram.packing.transition.remedies import transition
from tangram.packing.transition.steps import Missing, Pace, Spare, Step, Transition

__all__ = [
    "Missing",
    "Pace",
    "Spare",
    "Step",
    "Transition",
    "end_states",
    "transition",
]
