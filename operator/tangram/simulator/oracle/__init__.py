"""What a control law would cost that knew all requests beforehand: the measure of every other law.

In: the replicas that the load of each time bin needs, and the time that a replica takes to start. Out: the
cover of least cost, bounds, and the cheapest schedule whose replay reaches an attainment.
"""

from tangram.simulator.oracle.attainment_search import ReplayedSchedule, ScheduleFamily, cheapest_schedule
from tangram.simulator.oracle.fluid_bound import VariantPrice, cheapest_mix, fluid_cost, fluid_replica_s
from tangram.simulator.oracle.replica_cover import ReplicaCover, clairvoyant_cover
from tangram.simulator.oracle.variant_cover import VariantCover, VariantSwitching, cover_by_variants

__all__ = [
    "ReplayedSchedule",
    "ReplicaCover",
    "ScheduleFamily",
    "VariantCover",
    "VariantPrice",
    "VariantSwitching",
    "cheapest_mix",
    "cheapest_schedule",
    "clairvoyant_cover",
    "cover_by_variants",
    "fluid_cost",
    "fluid_replica_s",
]
