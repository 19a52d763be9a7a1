"""How a wanted MIG layout becomes real on a node: operations, and the driver that applies them.

In: the layout that a GPU is to have, what the driver reports, the devices that pods hold. Out: operations
and, one by one, their effects.

The room, from the bottom: `layouts` (nouns) and `difference` (operations) are pure; `nvml` calls the driver;
`gpu_node` translates from and to the GPUNode of the API, and `status` makes its status. Where only the number
of instances may be chosen, as with NVIDIA's MIG manager, their positions are those of
`tangram.packing.geometry.layouts.creation_order`.
"""

from tangram.partition.difference import LayoutDifference, LayoutOperation, difference
from tangram.partition.layouts import ObservedInstance, ObservedLayout, WantedLayout

__all__ = [
    "LayoutDifference",
    "LayoutOperation",
    "ObservedInstance",
    "ObservedLayout",
    "WantedLayout",
    "difference",
]
