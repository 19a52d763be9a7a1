"""Who gets which of the free units: a fleet's newcomers, movers and growth, decided jointly.

Units are GPUs and slices as they are; one unit stands for one replica. The solver is asked only where not
everybody can have what is best for themselves, and remembers what it answered.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

_COUNTS = 10  # up to so many counts of one shape that serve only in part
_WINDOW = 24  # in shortage so many are decided jointly, each before the next; then those after them
_WINDOWS = 4  # and those that come after all of them take what is left in turn
# Of one core, as the solver counts: equal problems end equal, and all of them well before a plan is overdue.
_EFFORT_S = 0.6
_STAGE_SHARE = 0.4  # of what is left of it, for one stage
_USD = 10_000  # whole numbers per USD: one is a place on the list of preferences, far below any price
_UNMET = 720_720  # whole numbers of a wish that is not served at all
_EPSILON = 1e-9
_MOST_TOLD = 300

Item = TypeVar("Item")
Found = TypeVar("Found")

Group = int  # number of a group of units that are alike


@dataclass(frozen=True, slots=True)
class UnitOffer:
    """A shape that would serve, for one wish; the list of a wish is in order of preference."""

    groups: tuple[Group, ...]  # where its replicas may stand, in the order in which they are to be used
    wanted: int  # replicas that serve all
    most: int  # replicas that it may have: the budget's limit
    least: int  # replicas below which it is of no use
    held: int  # of them have their place already
    price: float  # USD per hour of one replica
    apart: bool = True  # whether as many as there is room for could be spread as is asked

    def unmet(self, count: int) -> float:
        """Share of the wish that so many replicas leave unserved."""
        return max(0.0, 1 - count / self.wanted)


@dataclass(frozen=True, slots=True)
class Wish:
    """What one LLMDeployment could use. Wishes stand in the order of their turns."""

    offers: tuple[UnitOffer, ...]


@dataclass(frozen=True, slots=True)
class Pick:
    """What a wish gets: which of its offers, how many replicas, and the units that are new to it."""

    offer: int | None = None
    count: int = 0
    units: tuple[tuple[Group, int], ...] = ()
    failed: str = ""  # why nothing was decided jointly: a bug of ours


@dataclass(frozen=True, slots=True)
class _Way:
    pick: Pick
    unmet: float
    price: float
    crowded: bool = False  # it cannot be spread, and another offer can

    @property
    def rank(self) -> tuple[float, bool, float, int]:
        """By what is left unserved, then whether it is spread, then by price, then as the offers stand."""
        return self.unmet, self.crowded, self.price, -1 if self.pick.offer is None else self.pick.offer


_Cost = Callable[[int, int, _Way], int]


class WishesFailed(Exception):
    """These wishes, by their number, raise by themselves: the others can be decided without them."""

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        self.errors = dict(errors)
        super().__init__(f"{len(self.errors)} wishes failed")


Free = tuple[int, ...]  # units of each group
Prices = tuple[float, ...]  # USD per hour of one unit of each group


@lru_cache(maxsize=16)
def pick(wishes: tuple[Wish, ...], free: Free, prices: Prices) -> tuple[Pick, ...]:
    """Return who gets what: first that the earlier goes short less, then that most are spread, then the least
    dollars. Pure. Raises `WishesFailed` for wishes that cannot be decided.
    """
    menus, errors = _each(wishes, lambda wish: _ways(wish, free))
    if errors:
        raise WishesFailed(errors)
    in_turn = _filled_up(wishes, _in_turn(menus, list(free)), free)
    if all(got.rank == menu[0].rank for got, menu in zip(in_turn, menus, strict=True)):
        return tuple(way.pick for way in in_turn)  # each has what is best for it alone: nothing is better
    try:
        together = _together(menus, free, prices)
        if together is None:
            together = _filled_up(wishes, _by_windows(menus, free, prices), free)
    except Exception as error:
        _, alone = _each(menus, lambda menu: _solved([menu], free, prices))
        if 0 < len(alone) < len(menus):
            raise WishesFailed(alone) from error
        failed = f"{type(error).__name__}: {error}"[:_MOST_TOLD]
        return tuple(replace(way.pick, failed=failed) for way in in_turn)
    best = together if _value(together) <= _value(in_turn) else in_turn
    return tuple(way.pick for way in best)


def _each(
    items: Sequence[Item], function: Callable[[Item], Found]
) -> tuple[list[Found], dict[int, Exception]]:
    """Return `function` of each item, and what it raised, by the number of the item."""
    found, errors = [], dict[int, Exception]()
    for number, item in enumerate(items):
        try:
            found.append(function(item))
        except Exception as error:  # noqa: BLE001 - attributed to its wish by the caller
            errors[number] = error
    return found, errors


def _value(ways: Sequence[_Way]) -> tuple[tuple[float, ...], int, float]:
    unmet = tuple(round(way.unmet, 9) for way in ways)
    return unmet, sum(way.crowded for way in ways), round(sum(way.price for way in ways), 6)


def _ways(wish: Wish, free: Free) -> list[_Way]:
    """Return every way to serve a wish, the best first, the last one always possible."""
    found: list[_Way] = []
    nothing = _Way(Pick(), 1.0, 0.0)
    spreads = any(offer.apart for offer in wish.offers)
    for number, offer in enumerate(wish.offers):
        crowded = spreads and not offer.apart
        for count in _counts(offer, free):
            cost = count * offer.price
            placings = _placings(offer.groups, count - offer.held, free)
            unmet = offer.unmet(count)
            found += (_Way(Pick(number, count, units), unmet, cost, crowded) for units in placings)
        kept = min(offer.held, offer.most, offer.wanted)
        if kept >= max(1, offer.least):
            found.append(_Way(Pick(number, kept), offer.unmet(kept), kept * offer.price, crowded))
    found = list(dict.fromkeys([*found, nothing]))
    found.sort(key=lambda way: (*way.rank, way.pick.units))
    sunk = next(i for i, way in enumerate(found) if not way.pick.units)
    return found[: sunk + 1]


def _counts(offer: UnitOffer, free: Free) -> list[int]:
    """Counts that take new units: all that is wanted, else what there is room for and some below that."""
    top = min(offer.wanted, offer.most, offer.held + sum(free[group] for group in offer.groups))
    low = max(offer.held + 1, offer.least, 1)
    if top < low:
        return []
    step = -(-(top - low + 1) // _COUNTS)
    return list(range(top, low - 1, -step))


def _placings(groups: tuple[Group, ...], count: int, free: Free) -> list[tuple[tuple[Group, int], ...]]:
    """Ways to find `count` units: beginning in each group, going on in the others in their order."""
    found = []
    for first in groups:
        left, units = count, []
        for group in (first, *(other for other in groups if other != first)):
            taken = min(left, free[group])
            if taken:
                units.append((group, taken))
            left -= taken
        if not left:
            found.append(tuple(sorted(units)))
    return list(dict.fromkeys(found))


def _in_turn(menus: Sequence[list[_Way]], left: list[int]) -> list[_Way]:
    """Each takes the best that is left. Takes it from `left`."""
    found = []
    for menu in menus:
        way = next(way for way in menu if all(left[group] >= n for group, n in way.pick.units))
        for group, n in way.pick.units:
            left[group] -= n
        found.append(way)
    return found


def _filled_up(wishes: Sequence[Wish], ways: list[_Way], free: Free) -> list[_Way]:
    """Let wishes, in their order, have more of the units that are left, until none could have more.

    Menus hold some counts and some placings only, as there would be room for if nothing else were placed.
    """
    left, found, growing = Counter(dict(enumerate(free))), list(ways), True
    for way in found:
        left.subtract(dict(way.pick.units))
    while growing:  # each round lowers what some wish lacks: it ends
        growing = False
        for number, (wish, way) in enumerate(zip(wishes, found, strict=True)):
            own = left + Counter(dict(way.pick.units))
            best = _ways(wish, tuple(own[group] for group in range(len(free))))[0]
            if best.unmet < way.unmet - _EPSILON:
                left = own
                left.subtract(dict(best.pick.units))
                found[number], growing = best, True
    return found


def _together(menus: Sequence[list[_Way]], free: Free, prices: Prices) -> list[_Way] | None:
    """Everybody as well served as alone, most of them spread, at the least dollars; None: that cannot be, or
    was not found.
    """
    best = [[way for way in menu if way.unmet <= menu[0].unmet + _EPSILON] for menu in menus]
    least = sum(min(sum(n for _, n in way.pick.units) for way in menu) for menu in best)
    if least > sum(free):
        return None  # the usual shortage, without asking
    return _solved(best, free, prices)


def _by_windows(menus: Sequence[list[_Way]], free: Free, prices: Prices) -> list[_Way]:
    """In shortage: some at a time, each of them before the next; those who are left in turn."""
    left, found = list(free), []
    jointly = min(len(menus), _WINDOW * _WINDOWS)
    for start in range(0, jointly, _WINDOW):
        window = menus[start : min(start + _WINDOW, jointly)]
        now = tuple(left)
        fitting = [_fitting(menu, now) for menu in window]
        ways = _solved(fitting, now, prices, in_turn=True)
        if ways is None:
            found += _in_turn(fitting, left)
            continue
        for way in ways:
            for group, n in way.pick.units:
                left[group] -= n
        found += ways
    return found + _in_turn(menus[jointly:], left)


def _fitting(menu: list[_Way], free: Free) -> list[_Way]:
    return [way for way in menu if all(free[group] >= n for group, n in way.pick.units)]


def _solved(
    menus: Sequence[list[_Way]], free: Free, prices: Prices, *, in_turn: bool = False
) -> list[_Way] | None:
    """Ask the solver for one way of each menu. None: what is free does not allow that, or time was over.

    Stages: what is unmet (`in_turn`: of one wish after the other), then how many are not spread and what the
    new units cost, then what all units cost, at equal cost the ways that stand first on their menus.
    """
    from tangram.packing.model.cp_model import CpModel, LinearExpr  # noqa: PLC0415 - loads the solver
    from tangram.packing.search.stages import Budget, SolveLimits, solve_model  # noqa: PLC0415

    model, units = CpModel(), dict[Group, list[tuple[Any, int]]]()
    chosen = [[(model.new_bool_var(""), way) for way in menu] for menu in menus]
    for mine in chosen:
        model.add_exactly_one([variable for variable, _ in mine])
        for variable, way in mine:
            for group, n in way.pick.units:
                units.setdefault(group, []).append((variable, n))
    for group, taken in units.items():
        model.add(LinearExpr.weighted_sum(*zip(*taken, strict=True)) <= free[group])
    goals = _stages(menus, prices, in_turn=in_turn)
    everything = [variable for mine in chosen for variable, _ in mine]
    budget, solution = Budget(SolveLimits(), total_s=_EFFORT_S), None
    for goal in goals:
        costs = [
            goal(number, rank, way) for number, menu in enumerate(menus) for rank, way in enumerate(menu)
        ]
        expression = LinearExpr.weighted_sum(everything, costs)
        model.minimize(expression)
        hint = None if solution is None else dict(enumerate(solution))
        found = solve_model(model, budget, _STAGE_SHARE, hint).solution
        if found is None and solution is None:
            return None
        solution = solution if found is None else found
        model.add(
            expression <= sum(solution[v.index] * cost for v, cost in zip(everything, costs, strict=True))
        )
    assert solution is not None  # noqa: S101 - there is always a stage
    return [next(way for variable, way in mine if solution[variable.index]) for mine in chosen]


def _stages(menus: Sequence[list[_Way]], prices: Prices, *, in_turn: bool) -> list[_Cost]:
    """Return what a way costs in each stage, in whole numbers, by its wish and its place on the menu."""
    dear = 1 + round(_USD * sum(max(way.price for way in menu) for menu in menus))

    def unmet(only: int | None, number: int, _rank: int, way: _Way) -> int:
        return round(way.unmet * _UNMET) if only in {None, number} else 0

    def dollars(_number: int, _rank: int, way: _Way) -> int:
        return dear * way.crowded + sum(round(_USD * prices[group]) * n for group, n in way.pick.units)

    def price(_number: int, rank: int, way: _Way) -> int:
        return round(_USD * way.price) + rank

    first = range(len(menus)) if in_turn else [None]
    return [*(partial(unmet, number) for number in first), dollars, price]
