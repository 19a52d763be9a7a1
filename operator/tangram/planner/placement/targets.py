"""Which shape each LLMDeployment is to run on, and how many replicas: decided for all of them together.

Who runs on a shape that may be used and has room for its minimum stays there: nothing is moved to save cents,
because a move costs a start and doubles the replicas meanwhile. Everybody else, and what those who stay want
beyond what they have, is decided jointly, in turn under shortage.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tangram.capacity.sizing import SizingRequest
from tangram.eligibility.isolation import StepsFailed, fault_of, for_each
from tangram.eligibility.reasons import Reason
from tangram.fleet import CheckpointFacts, Intent, Shape, Spread, Workload, replicas_for
from tangram.planner.observe.free_capacity import DeviceGroup, FreeDevices
from tangram.planner.placement.pick import Pick, UnitOffer, Wish, WishesFailed, pick
from tangram.planner.shapes.candidates import Candidate, Offers
from tangram.planner.shapes.judge import TPOT, TTFT, rate

NO_LIMIT = 10**9
# Share of its cost that a deployment has to save for a move from the checkpoint's format to a quantised one.
WORTH_A_MOVE = 0.1


@dataclass(frozen=True, slots=True)
class Limit:
    """Most replicas of one shape that there may be for now, whatever room there is: quota or back-off."""

    replicas: int
    reason: Reason
    message: str
    until: float | None = None  # epoch seconds; None: until what it says has changed
    is_probe: bool = False  # the last of the replicas is tried after others failed


@dataclass(frozen=True, slots=True)
class Case:
    """One LLMDeployment that is accepted, not paused, and whose checkpoint is known."""

    intent: Intent
    facts: CheckpointFacts
    request: SizingRequest
    judged: tuple[Candidate, ...]  # usable ones first, cheapest first
    present: tuple[Workload, ...]
    desired: int  # what the scaling law wants of the shape that it counts
    counted: Shape | None = None  # that shape; None: the one that it runs on
    limits: Mapping[Shape, Limit] = field(default_factory=dict)
    is_refused: bool = False  # by the API server: a Deployment of it, or what it needs

    @property
    def usable(self) -> tuple[Candidate, ...]:
        """Shapes that may be used, cheapest first."""
        return tuple(candidate for candidate in self.judged if candidate.rejection is None)

    def cheaper_formats(self, stays: Candidate) -> tuple[Candidate, ...]:
        """Return the shapes with a quantised format for which a deployment leaves `stays`.

        It starts in the checkpoint's own format, before there is a report; nothing moves the other way for
        money.
        """
        own = self.facts.dtype
        if stays.shape.precision != own or stays.rejection is not None:
            return ()
        most = self.replicas(stays) * stays.price_per_hour * (1 - WORTH_A_MOVE)
        others = (c for c in self.usable if c.shape.precision != own)
        return tuple(c for c in others if self.replicas(c) * c.price_per_hour <= most)

    @property
    def slow(self) -> Candidate | None:
        """The shape that serves though it is predicted to miss an objective, where no shape may be used.

        There it goes on, as many as are wanted: a prediction takes nothing down.
        """
        found = [
            c for c in self.judged if c.rejection in (TPOT, TTFT) and (w := self.on(c.shape)) and w.available
        ]
        return None if self.usable else max(found, key=self.available_on, default=None)

    def most(self, shape: Shape) -> int:
        """Return how many replicas of a shape there may be, as far as quota and back-off go."""
        return self.limits[shape].replicas if shape in self.limits else NO_LIMIT

    def available_on(self, candidate: Candidate) -> int:
        """Return how many replicas of a shape serve."""
        mine = self.on(candidate.shape)
        return mine.available if mine else 0

    @property
    def serving(self) -> bool:
        """Whether replicas of some shape are available."""
        return any(workload.available for workload in self.present)

    def on(self, shape: Shape) -> Workload | None:
        """Return what there is on `shape`."""
        return next((workload for workload in self.present if workload.shape == shape), None)

    def replicas(self, candidate: Candidate) -> int:
        """Return how many replicas of a shape carry what is expected of it."""
        if candidate.shape == self.counted or (self.counted is None and self.on(candidate.shape)):
            return self.desired
        low, high = self.intent.min_replicas, self.intent.max_replicas
        told = self.intent.traffic.requests_per_second
        carried = self._carried()
        if carried is None and not told:
            return self.desired
        one = rate(self.facts, candidate.shape, self.request)
        if one is None:
            return self.desired
        least = low if self.reference else self.desired
        needed = replicas_for(carried if carried is not None else told or 0.0, one)
        return min(max(needed, least), high)

    def _carried(self) -> float | None:
        """Return the requests per second that what is wanted is good for, None: nobody knows, or only the
        minimum is wanted. Shortage does not lessen it: what is wanted counts, not what runs.
        """
        shape, told = self.reference, self.intent.traffic.requests_per_second
        if shape is None or (self.desired <= self.intent.min_replicas and not told):
            return None
        one = rate(self.facts, shape, self.request)
        return None if one is None else self.desired * one

    @property
    def reference(self) -> Shape | None:
        """The shape of which so many are wanted; None: nothing runs yet."""
        if self.counted is not None or not self.present:
            return self.counted
        return min(self.present, key=lambda w: (-w.available, -w.replicas, w.shape)).shape


@dataclass(frozen=True, slots=True)
class PlacementTarget:
    """What one LLMDeployment is to have."""

    candidate: Candidate | None  # None: no shape can carry the model
    desired: int  # replicas that are wanted of it
    replicas: int = 0  # of them that have a place
    most: int = NO_LIMIT  # replicas that its budget allows now
    waits: str = ""  # what a move waits for, where that is not room
    limit: Limit | None = None  # what allows no more, where that is neither room nor the budget
    failed: str = ""  # why nothing was decided jointly: a bug of ours


@dataclass(frozen=True, slots=True)
class _Ask:
    """What one LLMDeployment asks for, and which shape each of its offers is."""

    case: Case
    candidates: tuple[Candidate, ...]
    wish: Wish
    stays: bool

    @property
    def contested(self) -> bool:
        """Whether it wants what it does not have."""
        return not self.stays or any(min(o.wanted, o.most) > o.held for o in self.wish.offers)


def targets(cases: tuple[Case, ...], offered: Offers, devices: FreeDevices) -> Mapping[str, PlacementTarget]:
    """Decide for all `cases`, which stand in the order of their turns; takes what they get from `devices`.

    Raises `StepsFailed` for the cases that cannot be decided.
    """
    units = tuple(sorted(devices.free))
    groups = {unit: number for number, unit in enumerate(units)}
    asks = for_each("target", cases, lambda c: c.intent.uid, lambda c: _ask(c, offered, devices, groups))
    got = _picked([ask for ask in asks if ask.contested], units, offered, _unspoken(asks, devices))
    found: dict[str, PlacementTarget] = {}
    for ask in asks:
        uid = ask.case.intent.uid
        made = got.get(uid) or _as_it_is(ask)
        for group, count in made.units:
            devices.allocate(uid, units[group], count)
        found[uid] = _target(ask, made, offered, devices)
    return found


def own(case: Case, shape: Shape, devices: FreeDevices) -> int:
    """Units that replicas of `shape` have: what its other shapes hold of the same kind is not theirs."""
    kind = shape.device_kind
    holds = devices.count_held(case.intent.uid, shape)
    if not holds:
        return 0
    others = sum(w.replicas for w in case.present if w.shape != shape and w.shape.device_kind == kind)
    return holds - min(others, holds)


def free_for(case: Case, shape: Shape, devices: FreeDevices) -> int:
    """Units for replicas of `shape`: its own, and those that nobody holds."""
    return own(case, shape, devices) + devices.count_free(case.intent.uid, shape)


def apart(case: Case, shape: Shape, count: int, devices: FreeDevices) -> bool:
    """Whether so many replicas of `shape` could be spread as is asked."""
    spread = case.intent.spread
    return spread == Spread() or devices.can_spread(case.intent.uid, shape, count, spread)


def _picked(
    asks: list[_Ask], units: tuple[DeviceGroup, ...], offered: Offers, free: Mapping[DeviceGroup, int]
) -> dict[str, Pick]:
    if not asks:
        return {}
    used = {group for ask in asks for offer in ask.wish.offers for group in offer.groups}
    counts = tuple(free[unit] if group in used else 0 for group, unit in enumerate(units))
    prices = tuple(offered.unit_price(unit) if group in used else 0.0 for group, unit in enumerate(units))
    try:
        made = pick(tuple(ask.wish for ask in asks), counts, prices)
    except WishesFailed as failed:
        faults = [fault_of(asks[i].case.intent.uid, "target", error) for i, error in failed.errors.items()]
        raise StepsFailed(faults) from failed
    return {ask.case.intent.uid: one for ask, one in zip(asks, made, strict=True)}


def _unspoken(asks: list[_Ask], devices: FreeDevices) -> Mapping[DeviceGroup, int]:
    """Free units, less one for each rollout that starts a new pod before it takes one down."""
    free = dict(devices.free)
    for ask in asks:
        mine = ask.case.on(ask.candidates[0].shape) if ask.stays else None
        if mine is None or not mine.is_rolling:
            continue
        if mine.in_place and ask.wish.offers[0].held > ask.case.intent.min_replicas:
            continue
        for unit in devices.groups(ask.case.intent.uid, mine.shape):
            if free[unit]:
                free[unit] -= 1
                break
    return free


def _ask(case: Case, offered: Offers, devices: FreeDevices, groups: Mapping[DeviceGroup, int]) -> _Ask:
    stays = _stays(case, devices) or case.slow
    cheaper = case.cheaper_formats(stays) if stays is not None else ()
    if stays is not None and not cheaper:
        offer = _offer(case, stays, case.replicas(stays), offered, devices, groups, least=0)
        return _Ask(case, (stays,), Wish((offer,)), stays=True)
    made = []
    for candidate in (stays, *cheaper) if stays is not None else case.usable:
        mine = case.on(candidate.shape)
        # A move to where the minimum has no room could never end: it is not begun, and takes nothing.
        begun = not case.serving or (mine is not None and mine.available > 0)
        count = case.replicas(candidate)
        least = 1 if begun else case.intent.min_replicas
        made.append((candidate, _offer(case, candidate, count, offered, devices, groups, least=least)))
    made.sort(key=lambda each: each[1].wanted * each[1].price)  # stable: then as they are judged
    return _Ask(case, tuple(c for c, _ in made), Wish(tuple(o for _, o in made)), stays=False)


def _stays(case: Case, devices: FreeDevices) -> Candidate | None:
    """Return the shape that it runs on already, if that may be used and has room for the minimum."""
    running = [candidate for candidate in case.usable if case.on(candidate.shape) is not None]
    running.sort(key=lambda c: -case.available_on(c))  # stable: then by price
    least = case.intent.min_replicas
    enough = (c for c in running if min(free_for(case, c.shape, devices), case.most(c.shape)) >= least)
    return next(enough, None)


def _offer(
    case: Case,
    candidate: Candidate,
    wanted: int,
    offered: Offers,
    devices: FreeDevices,
    groups: Mapping[DeviceGroup, int],
    *,
    least: int,
) -> UnitOffer:
    most = min(_affordable(case, candidate, offered), case.most(candidate.shape))
    return UnitOffer(
        groups=tuple(groups[group] for group in devices.groups(case.intent.uid, candidate.shape)),
        wanted=wanted,
        most=most,
        least=least,
        held=min(own(case, candidate.shape, devices), wanted),
        price=candidate.price_per_hour,
        apart=apart(
            case, candidate.shape, min(wanted, most, free_for(case, candidate.shape, devices)), devices
        ),
    )


def _affordable(case: Case, candidate: Candidate, offered: Offers) -> int:
    """Replicas that the budget allows beside those of other shapes, which run until these serve.

    What runs of the minimum is not taken down for it.
    """
    budget, price = case.intent.budget_per_hour, candidate.price_per_hour
    if budget is None or price <= 0:
        return NO_LIMIT
    mine = case.on(candidate.shape)
    kept = min(case.intent.min_replicas, mine.replicas) if mine else 0
    allowed = min((budget - _beside(case, candidate, offered)) / price, NO_LIMIT)  # a tiny price: infinity
    return max(kept, math.floor(allowed + 1e-9))


def _beside(case: Case, candidate: Candidate, offered: Offers) -> float:
    """USD per hour of what is there of other shapes."""
    others = (w for w in case.present if w.shape != candidate.shape)
    return sum(w.replicas * offered.price(w.shape, case.intent.pools) for w in others)


def _as_it_is(ask: _Ask) -> Pick:
    offer = ask.wish.offers[0]
    return Pick(0, min(offer.held, offer.most))


def _target(ask: _Ask, made: Pick, offered: Offers, devices: FreeDevices) -> PlacementTarget:
    case = ask.case
    if not ask.candidates:
        return PlacementTarget(None, case.desired)
    number = _nearest(ask, devices) if made.offer is None else made.offer
    candidate, offer = ask.candidates[number], ask.wish.offers[number]
    waits, limit = "", case.limits.get(candidate.shape)
    useless = offer.most < min(offer.wanted, max(1, offer.least))
    is_bound = useless or (offer.most < offer.wanted and made.count >= offer.most)
    if limit is None or not is_bound or limit.replicas > offer.most:
        limit = None
    if is_bound and limit is None:
        waits = _over_budget(case, candidate, offer, offered)
    return PlacementTarget(candidate, offer.wanted, made.count, offer.most, waits, limit, made.failed)


def _nearest(ask: _Ask, devices: FreeDevices) -> int:
    """Return which shape is told of where none has room: that of which replicas are wanted, one that serves,
    else the one with most room.
    """
    counted = [
        i for i, c in enumerate(ask.candidates) if c.shape == ask.case.counted and ask.case.on(c.shape)
    ]
    if counted:
        return counted[0]
    serving = [i for i, c in enumerate(ask.candidates) if (w := ask.case.on(c.shape)) and w.available]
    if serving:
        return serving[0]
    if ask.case.is_refused:  # what was refused is tried again, not another shape
        free = [i for i, c in enumerate(ask.candidates) if free_for(ask.case, c.shape, devices) > 0]
        return free[0] if free else 0
    return max(
        range(len(ask.candidates)),
        key=lambda i: (ask.wish.offers[i].most > 0, free_for(ask.case, ask.candidates[i].shape, devices)),
    )


def _over_budget(case: Case, candidate: Candidate, offer: UnitOffer, offered: Offers) -> str:
    beside = _beside(case, candidate, offered)
    still = f", beside {beside:.2f} $/h for what runs until then" if beside else ""
    return (
        f"placement.budgetPerHour of {case.intent.budget_per_hour:.2f} $/h allows {max(0, offer.most)} of"
        f" {offer.wanted} replicas on {candidate.shape.described} at {candidate.price_per_hour:.2f} $/h"
        f" each{still}"
    )
