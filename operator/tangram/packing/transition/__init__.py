"""From the fleet as it is to the layout that a packing wants, by direct moves.

In: a `Problem` as observed and a `Packing`. Out: `plan_steps`, the ordered steps, or which moves are blocked
by what.

The room, from the bottom: `steps` (nouns), `end_states` (both ends, where mig-manager puts slices),
`blockers` (what is in the way of each replica), `move_order` (which replica starts and stops when),
`recorder` (texts and order of steps), `gpu_operations` (modes and slices for the replicas), `plan_steps`.
"""

from tangram.packing.transition.end_states import end_states
from tangram.packing.transition.plan_steps import plan_steps
from tangram.packing.transition.steps import BlockedMoves, Step, Transition

__all__ = ["BlockedMoves", "Step", "Transition", "end_states", "plan_steps"]
