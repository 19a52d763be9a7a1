"""The shape and the number of replicas that each LLMDeployment is to have, decided for all of them together.

An LLMDeployment keeps a usable shape that has devices for its minimum: a move to save money would cost a
start, and twice the devices meanwhile. New LLMDeployments, those that have to move, and replicas beyond what
an LLMDeployment holds are assigned jointly, under shortage by priority.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tangram.capacity.sizing import ServingShape
from tangram.eligibility.isolation import RoundStep, for_each
from tangram.fleet import Shape
from tangram.packing.geometry.gangs import GangCapacity
from tangram.plan.fleet_input.free_capacity import DeviceGroup, FreeDevices
from tangram.plan.offers.node_offers import NodeOffers
from tangram.plan.place.now.affordable_replicas import affordable_replicas, other_shapes_cost
from tangram.plan.place.now.device_assignments import DeviceAssignment, DeviceDemand, ShapeOption
from tangram.plan.place.now.joint_assignment import assign_devices
from tangram.plan.place.now.placement_demand import NO_LIMIT, PlacementDemand, ReplicaLimit
from tangram.plan.reasons.placement import BudgetBinds


@dataclass(frozen=True, slots=True)
class PlacementTarget:
    """What one LLMDeployment is to have."""

    candidate: ServingShape | None  # None: no shape can serve the model
    desired: int  # replicas of it that the load needs
    replicas: int = 0  # of them that have a device
    waiting: int = 0  # of them for which GPUs are being cut
    surge: int = 0  # replicas beside `replicas`, with a device: they take over from others that leave theirs
    max_replicas: int = NO_LIMIT  # that budget, quota and back-off allow now
    over_budget: BudgetBinds | None = None  # if the budget allows no more replicas
    limit: ReplicaLimit | None = None  # if it allows no more replicas
    failure: str = ""  # why there is no joint assignment: a bug


@dataclass(frozen=True, slots=True)
class PlacementChoice:
    """The candidates of one demand, and each of them as an option of the joint assignment."""

    demand: PlacementDemand
    candidates: tuple[ServingShape, ...]
    options: tuple[ShapeOption, ...]
    stays: bool  # on the only candidate

    @property
    def needs_devices(self) -> bool:
        """Whether it could use devices beyond those that it holds."""
        return not self.stays or any(min(o.desired, o.max_replicas) > o.held for o in self.options)

    @property
    def held(self) -> DeviceAssignment:
        """The assignment of a demand that needs no further device."""
        return DeviceAssignment(0, min(self.options[0].held, self.options[0].max_replicas))


def placement_targets(
    demands: tuple[PlacementDemand, ...], node_offers: NodeOffers, devices: FreeDevices
) -> Mapping[str, PlacementTarget]:
    """Return the target of each demand by uid. `demands` are in order of priority. Takes from `devices`.

    Raises `StepsFailed` for the demands that cannot be decided.
    """
    groups = tuple(sorted(devices.free))
    index = {group: number for number, group in enumerate(groups)}
    choices = for_each(
        RoundStep.TARGET, demands, lambda d: d.uid, lambda d: _placement_choice(d, devices, index)
    )
    short = [choice for choice in choices if choice.needs_devices]
    assignments = _assigned(short, groups, node_offers, _free_after_surge(choices, devices))
    targets: dict[str, PlacementTarget] = {}
    for choice in choices:
        uid = choice.demand.uid
        assignment = assignments.get(uid) or choice.held
        for number, count, gpus in assignment.devices:
            devices.allocate(uid, groups[number], count, gpus)
        waiting = sum(new.replicas for new in assignment.devices if groups[new.group].coming)
        target = _target(choice, assignment, waiting, devices)
        targets[uid] = replace(target, surge=_surge(choice.demand, target, devices))
    return targets


def _assigned(
    choices: list[PlacementChoice],
    groups: tuple[DeviceGroup, ...],
    node_offers: NodeOffers,
    free: Mapping[DeviceGroup, GangCapacity],
) -> dict[str, DeviceAssignment]:
    if not choices:
        return {}
    # What no option uses is zero: then it changes no cached problem.
    options = [option for choice in choices for option in choice.options]
    used = {group for option in options for group in option.groups}
    largest = max((option.gpus for option in options), default=1)
    counts = tuple(
        free[group].up_to(largest) if i in used else GangCapacity() for i, group in enumerate(groups)
    )
    prices = tuple(
        node_offers.device_hour(*group[:3]) if i in used else 0.0 for i, group in enumerate(groups)
    )
    problem = tuple(DeviceDemand(choice.demand.uid, choice.options) for choice in choices)
    assignments = assign_devices(problem, counts, prices)
    return {demand.uid: assignment for demand, assignment in zip(problem, assignments, strict=True)}


def _free_after_surge(
    choices: list[PlacementChoice], devices: FreeDevices
) -> Mapping[DeviceGroup, GangCapacity]:
    """Free devices, less one replica's for each rollout that starts a new pod before it ends an old one."""
    free = dict(devices.free)
    for choice in choices:
        demand = choice.demand
        workload = demand.workload_on(choice.candidates[0].shape) if choice.stays else None
        if workload is None or not workload.is_rolling:
            continue
        if workload.in_place and choice.options[0].held > demand.intent.min_replicas:
            continue
        gpus, groups = workload.shape.gpus, devices.groups(demand.uid, workload.shape)
        group = next((group for group in groups if free[group].fitting(gpus)), None)
        if group is not None:
            free[group] = free[group].without(gpus, 1)
    return free


def _placement_choice(
    demand: PlacementDemand, devices: FreeDevices, index: Mapping[DeviceGroup, int]
) -> PlacementChoice:
    current = moved_shape(demand) or _current(demand, devices) or demand.too_slow_but_serving
    cheaper = demand.cheaper_formats(current) if current is not None else ()
    if current is not None and not cheaper:
        option = _option(demand, current, devices, index, min_replicas=0)
        return PlacementChoice(demand, (current,), (option,), stays=True)
    pairs = []
    for candidate in (current, *cheaper) if current is not None else demand.choosable:
        # A move to a shape without devices for the minimum could never end, so it does not begin.
        has_begun = not demand.is_serving or demand.available_on(candidate.shape) > 0
        least = 1 if has_begun else demand.intent.min_replicas
        pairs.append((candidate, _option(demand, candidate, devices, index, min_replicas=least)))
    pairs.sort(key=lambda pair: pair[1].desired * pair[1].price)  # stable: then by candidate
    return PlacementChoice(demand, tuple(c for c, _ in pairs), tuple(o for _, o in pairs), stays=False)


def moved_shape(demand: PlacementDemand) -> ServingShape | None:
    """Return the candidate to which its replicas move, in the format in which they run if that may be used.

    None: they do not move.
    """
    if demand.move is None:
        return None
    running = {workload.shape.precision for workload in demand.workloads if workload.replicas}
    candidates = [candidate for candidate in demand.usable if candidate.shape.key == demand.move.shape]
    same_format = [candidate for candidate in candidates if candidate.shape.precision in running]
    return next(iter(same_format or candidates), None)


def _current(demand: PlacementDemand, devices: FreeDevices) -> ServingShape | None:
    """Return the candidate that has replicas and enough devices for the minimum, if there is one."""
    running = [candidate for candidate in demand.choosable if demand.workload_on(candidate.shape) is not None]
    running.sort(key=lambda c: -demand.available_on(c.shape))  # stable: then by price

    def possible(shape: Shape) -> int:
        return min(demand.devices_for(shape, devices), demand.max_replicas(shape))

    return next((c for c in running if possible(c.shape) >= demand.intent.min_replicas), None)


def _option(
    demand: PlacementDemand,
    candidate: ServingShape,
    devices: FreeDevices,
    index: Mapping[DeviceGroup, int],
    *,
    min_replicas: int,
) -> ShapeOption:
    shape, desired = candidate.shape, demand.replicas_needed(candidate)
    most = min(affordable_replicas(demand, candidate), demand.max_replicas(shape))
    fitting = min(desired, most, demand.devices_for(shape, devices))
    return ShapeOption(
        groups=tuple(index[group] for group in devices.groups(demand.uid, shape)),
        desired=desired,
        max_replicas=most,
        min_replicas=min_replicas,
        held=min(demand.devices_held(shape, devices), desired),
        price=candidate.price_per_hour,
        can_spread=demand.can_spread(shape, fitting, devices),
        gpus=shape.gpus,
    )


def _surge(demand: PlacementDemand, target: PlacementTarget, devices: FreeDevices) -> int:
    """Return how many replicas take over from others now, and take their devices from `devices`."""
    if demand.move is None or target.candidate is None or not demand.move.surge:
        return 0
    shape = target.candidate.shape
    running = max(0, demand.devices_held(shape, devices) - target.replicas)
    missing = demand.move.surge - running
    free = (group for group in devices.groups(demand.uid, shape) if not group.coming)
    for group in free if missing > 0 else ():
        added = devices.allocate(demand.uid, group, missing, shape.gpus)
        running, missing = running + added, missing - added
    return min(running, demand.move.surge)


def _target(
    choice: PlacementChoice, assignment: DeviceAssignment, waiting: int, devices: FreeDevices
) -> PlacementTarget:
    demand = choice.demand
    if not choice.candidates:
        return PlacementTarget(None, demand.desired)
    number = _unassigned_option(choice, devices) if assignment.option is None else assignment.option
    candidate, option = choice.candidates[number], choice.options[number]
    most, limit = option.max_replicas, demand.limits.get(candidate.shape)
    is_useless = most < min(option.desired, max(1, option.min_replicas))
    is_bound = is_useless or (most < option.desired and assignment.replicas >= most)
    if limit is not None and (not is_bound or limit.replicas > most):
        limit = None
    over_budget = _over_budget(demand, candidate, option) if is_bound and limit is None else None
    return PlacementTarget(
        candidate,
        option.desired,
        replicas=assignment.replicas - waiting,
        waiting=waiting,
        max_replicas=most,
        over_budget=over_budget,
        limit=limit,
        failure=assignment.failure,
    )


def _unassigned_option(choice: PlacementChoice, devices: FreeDevices) -> int:
    """Return the option that the status describes while no replica can be placed: the shape that `desired`
    counts, else one that serves, else the one with the most devices.
    """
    demand, shapes = choice.demand, [candidate.shape for candidate in choice.candidates]
    counted = [i for i, s in enumerate(shapes) if s == demand.desired_shape and demand.workload_on(s)]
    serving = [i for i, s in enumerate(shapes) if demand.available_on(s)]
    if counted or serving:
        return (counted or serving)[0]
    fitting = [demand.devices_for(shape, devices) for shape in shapes]
    if demand.is_refused:  # the shape that was refused is tried again, no other one
        return next((i for i, count in enumerate(fitting) if count > 0), 0)
    return max(range(len(shapes)), key=lambda i: (choice.options[i].max_replicas > 0, fitting[i]))


def _over_budget(demand: PlacementDemand, candidate: ServingShape, option: ShapeOption) -> BudgetBinds | None:
    budget, allowed = demand.intent.budget_per_hour, max(0, option.max_replicas)
    if budget is None:
        return None
    return BudgetBinds(budget, allowed, option.desired, candidate, other_shapes_cost(demand, candidate))
