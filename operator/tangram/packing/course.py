"""One attempt at a transition: who may start, who may be drained, what to do when all wait for each other.

A replica starts at its new place as soon as that is free or can be made, and one of those that it replaces is
drained once it serves. Where replicas wait for each other's places in a circle, one of them goes to a spare
place for a while (any free place that is legal on a board); where there is none, one is taken down before its
replacement serves, if its demand's minimum permits. Of all ways to go on, the one with the fewest replicas
taken down, then the fewest detours. Each brings one replica to its place for good: it ends.
"""

import heapq
from bisect import bisect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tangram.fleet import WHOLE_GPU
from tangram.packing.crew import Cost, Crew, Way
from tangram.packing.geometry import Placement
from tangram.packing.problem import Problem
from tangram.packing.script import Script
from tangram.packing.seats import Ends, Seat
from tangram.packing.steps import Pace
from tangram.packing.waiting import Waiting
from tangram.packing.world import Effort, Shape, World

_LOOK, _FREE, _SEARCH = 8, 1, 16  # what looking at a place, at who is in its way and for a spare place costs
_MANY = 512  # of more than that, only some are compared before one of them is taken


@dataclass(slots=True)
class Course:
    """One attempt."""

    world: World
    script: Script
    crews: dict[str, Crew]
    waiting: Waiting  # where replicas have to come, and who has to go
    fixed: frozenset[Seat]  # may be given up but not moved
    wanted: int  # replicas that have to come
    restarts: bool = True  # may replicas be taken down before their replacement serves?
    patient: bool = False  # do demands that only grow wait until the others are where they go?
    returning: bool = False  # of ways to free a place, first those after which all that stop come back there?
    last: Seat | None = None  # for which a way was taken
    hopeless: set[Seat] = field(default_factory=set)  # places that could not be freed after all
    effort: Effort = field(default_factory=Effort)
    at: Seat | None = None  # whose place is looked at
    short: int = 0  # replicas that are down and have to come back
    sound: tuple[int, int] = (0, 0)  # when nobody was, last: replicas that had come, steps
    # Of whom one of which shape could go to a spare place of these shapes, while nobody comes or goes.
    roomy: dict[tuple[str, Shape], list[Seat]] = field(default_factory=dict)

    @property
    def pending(self) -> dict[Seat, None]:
        """Where replicas have to come, sorted."""
        return self.waiting.pending

    @property
    def leaving(self) -> set[Seat]:
        """Replicas that have to go."""
        return self.waiting.leaving

    def run(self) -> None:
        """Write steps until everything is where it is wanted, or nothing can go on."""
        for pool, node, gpus in self.world.ends.new_nodes:
            self.script.add_node(pool, node, gpus)
        while True:
            while self._bring() | self._drain() and not self.effort.out_of_time:
                pass
            way = self._way()
            if way is not None:
                self._take(way)
            elif self.patient:
                self.patient = False
                self.waiting.fresh |= self.pending.keys()
            else:
                break
        self._tidy()
        self._note()

    def _bring(self) -> bool:
        """Start whoever's place is free, in order, and drain as it goes. Looks where something changed."""
        waiting, before = self.waiting, len(self.pending)
        queue, behind = sorted(waiting.fresh & self.pending.keys()), set[Seat]()
        waiting.fresh = set()
        queued = set(queue)
        while queue:
            seat = heapq.heappop(queue)
            crew = self.crews[seat.owner]
            later = self.patient and (not crew.old or self._awaits_mode(seat))
            self.effort.left -= _LOOK
            if crew.there >= crew.surge and not later:
                waiting.park(seat)
                continue
            self.at = seat
            if not later and self._is_open(seat):
                self._start(seat)
                crew.come += 1
                if crew.may_drain:
                    self._drain_one(seat.owner)
            if crew.there < crew.surge:
                self._unpark(seat.owner)
            ahead = {each for each in waiting.fresh if each > seat}
            behind |= waiting.fresh - ahead
            for each in ahead - queued:
                heapq.heappush(queue, each)
            queued |= ahead
            waiting.fresh = set()
        waiting.fresh |= behind
        self.at = None
        return len(self.pending) < before

    def _unpark(self, owner: str) -> None:
        """Let one of the owner's goals be looked at that only waited until there may be one more."""
        goal = self.waiting.next_parked(owner, self.at)
        if goal is not None:
            self.waiting.fresh.add(goal)

    def _is_open(self, seat: Seat) -> bool:
        world = self.world
        if any(gpu in world.ends.impossible for gpu in seat.gpus) or self.waiting.blockers(seat):
            return False
        gpu, place = seat.gpus[0], Placement(seat.start, seat.profile)
        if seat.profile == WHOLE_GPU or place in world.slices[gpu] or gpu in world.uncleared:
            return True
        if not world.mig_on[gpu]:
            return world.gpu(gpu).cuttable
        return world.in_the_way(gpu, place) is not None

    def _start(self, seat: Seat, *, temporary: bool = False) -> None:
        self._make(seat, temporary=temporary)
        self.script.bring(seat, temporary=temporary)
        self.world.sit(seat)
        self.waiting.came(seat, temporary=temporary)
        self._count(self.crews[seat.owner], 1)

    def _count(self, crew: Crew, more: int) -> None:
        before = crew.short
        crew.there += more
        self.short += crew.short - before
        self._note()

    def _note(self) -> None:
        if not self.short:
            self.sound = self.wanted - len(self.pending), len(self.script.steps)

    def _make(self, seat: Seat, *, temporary: bool) -> None:
        """Make the slice, or the whole GPUs, that a replica needs and that nobody holds."""
        world = self.world
        if temporary and world.exists(seat):  # what mig-manager has yet to clear serves until then
            return
        self._modes(world.gpu(seat.gpus[0]).node)
        for gpu in seat.gpus:
            self._mode(gpu, on=seat.profile != WHOLE_GPU)
        gpu, place = seat.gpus[0], Placement(seat.start, seat.profile)
        if gpu in world.uncleared:
            self._geometry(gpu)
        if seat.profile != WHOLE_GPU and place not in world.slices[gpu]:
            for other in world.in_the_way(gpu, place) or ():
                self._destroy(gpu, other)
            self.script.create(gpu, place, temporary=temporary and place not in world.ends.slices[gpu])
            world.cut(gpu, place)

    def _modes(self, node: str) -> None:
        """Change every MIG mode that needs an empty node while nobody is there: soon somebody will be."""
        if not any(self.world.holders[gpu] for gpu in self.world.by_node[node]):
            for gpu in self.world.awaiting_mode(node):
                self._mode(gpu, on=self.world.ends.mig_on[gpu])

    def _awaits_mode(self, seat: Seat) -> bool:
        """Whether its node is going to be empty, for a MIG mode to change, and this replica would stay."""
        world, node = self.world, self.world.gpu(seat.gpus[0]).node
        if not world.awaiting_mode(node):
            return False
        held = [each for gpu in world.by_node[node] for each in world.holders[gpu].values()]
        return bool(held) and self.leaving.issuperset(held)

    def _mode(self, gpu: str, *, on: bool) -> None:
        world = self.world
        if world.mig_on[gpu] == on:
            return
        if world.gpu(gpu).backend != "mig-manager":
            for place in sorted(world.slices[gpu]):
                self._destroy(gpu, place)
        self.script.mode(gpu, on=on)
        world.mig_on[gpu] = on
        world.clear(gpu)
        if world.gpu(gpu).backend == "mig-manager":  # clears every GPU of the node that is in MIG mode
            for other in world.by_node[world.gpu(gpu).node]:
                world.clear(other)
                world.uncleared |= {other} if world.ends.mig_on[other] and world.ends.slices[other] else set()

    def _geometry(self, gpu: str) -> None:
        layout = self.world.ends.slices[gpu]
        self.script.geometry(gpu, layout)
        self.world.uncleared.discard(gpu)
        self.world.clear(gpu, layout)

    def _destroy(self, gpu: str, place: Placement) -> None:
        self.script.destroy(gpu, place)
        self.world.uncut(gpu, place)

    def _drain(self) -> bool:
        done = False
        owners, self.waiting.crews = self.waiting.crews, set()
        for owner in sorted(owner for owner in owners if self.waiting.leaving_of(owner)):
            while self.crews[owner].may_drain:
                self._drain_one(owner)
                done = True
        return done

    def _drain_one(self, owner: str) -> None:
        """Drain the replica that most others wait for."""
        self.effort.left -= _LOOK
        self._stop(self.waiting.most_wanted(owner))

    def _stop(self, seat: Seat, *, restart: bool = False) -> None:
        self.script.drain(seat, restart=restart)
        self.world.leave(seat)
        crew = self.crews[seat.owner]
        self.waiting.gone(seat)
        crew.gone += 1
        self._count(crew, -1)
        self._unpark(seat.owner)

    def _way(self) -> Way | None:
        """Return the cheapest way to free any place that somebody waits for."""
        self.roomy.clear()
        goals = list(self.pending)
        if len(goals) > _MANY and self.last is not None:
            after = bisect(goals, self.last)
            goals = goals[after:] + goals[:after]
        best: Way | None = None
        for begin in range(0, len(goals), _MANY):
            way = self._best(goals[begin : begin + _MANY])
            if way is not None and (best is None or way.cost < best.cost):
                best = way
            if self.effort.out_of_time or (best is not None and (not best.restarts or self.effort.over)):
                break
        self.last = None if best is None else best.goal
        return best

    def _best(self, goals: list[Seat]) -> Way | None:
        """Return the cheapest way to free one of these places. Without effort left: without spare places."""
        self.effort.left -= _FREE * len(goals)
        if self.returning:
            goals = [goal for goal in goals if self._all_return(goal)] or goals
        order: list[Cost] = []
        for goal in goals:
            least = self._at_least(goal)
            if least is not None:
                order.append(least)
                if not least[0] + least[1]:
                    return self._free(goal)
        best: Way | None = None
        for least in sorted(order):
            if best is not None and best.cost <= least:
                break
            way = self._free(least[-1])
            if way is not None and (best is None or way.cost < best.cost):
                best = way
        return best

    def _all_return(self, goal: Seat) -> bool:
        """Whether the GPU of a goal offers a place to a replica of each demand that has to stop for it."""
        stops = Counter(self.waiting.owners(goal))
        places = Counter(each.owner for each in self.pending if each.gpus[0] == goal.gpus[0])
        return stops <= places and self._at_least(goal) is not None

    def _at_least(self, goal: Seat) -> Cost | None:
        """Return what freeing a place costs at least; None: it cannot be freed."""
        impossible, owners = self.world.ends.impossible, self.waiting.owners(goal)
        if self.patient and not self.crews[goal.owner].old:
            return None
        if not owners or goal in self.hopeless or any(gpu in impossible for gpu in goal.gpus):
            return None
        gone = dict.fromkeys(owners, 0)
        detours = restarts = 0
        for owner, seat in zip(owners, self.waiting.blockers(goal), strict=True):
            crew = self.crews[owner]
            if crew.there - gone[owner] > crew.least:
                gone[owner] += 1
            elif seat in self.fixed or crew.there >= crew.surge or not self._kinds(seat):
                if not self.restarts or crew.there - gone[owner] <= crew.minimum:
                    return None
                gone[owner] += 1
                restarts += 1
            else:
                detours += 1
        crew = self.crews[goal.owner]
        if not detours + restarts and crew.there - gone.get(goal.owner, 0) >= crew.surge:
            return None
        return restarts, detours, len(owners) - detours - restarts, goal

    def _free(self, goal: Seat) -> Way | None:
        world, blockers = self.world, self.waiting.blockers(goal)
        taken: Counter[str] = Counter()
        for gpu, mask in world.region(goal).items():
            taken[gpu] |= mask
        there = {owner: crew.there for owner, crew in self.crews.items()}
        moves: list[tuple[Seat, Seat | None, bool]] = []
        for seat in blockers:
            crew = self.crews[seat.owner]
            if seat not in self.leaving:
                return None
            spare = None
            early = there[seat.owner] <= crew.least
            if early:
                spare = self._spare(seat, taken) if crew.there < crew.surge else None
                if spare is None and not (self.restarts and there[seat.owner] > crew.minimum):
                    return None
            if spare is None:
                there[seat.owner] -= 1
            else:
                for gpu in spare.gpus:
                    taken[gpu] |= self.waiting.mask(spare, gpu)
            moves.append((seat, spare, early and spare is None))
        if there[goal.owner] >= self.crews[goal.owner].surge:
            return None
        detours = sum(spare is not None for _, spare, _ in moves)
        restarts = sum(early for _, _, early in moves)
        return Way(restarts, detours, len(moves) - detours - restarts, goal, tuple(moves))

    def _spare(self, seat: Seat, taken: Mapping[str, int]) -> Seat | None:
        """Return a place for a while: nobody waits for it, if there is such a one.

        For the same shape; else for one that its demand is to have in the end, which serves as well.
        """
        if seat in self.fixed:
            return None
        self.effort.left -= _SEARCH
        kinds = self._kinds(seat)
        for kind in kinds:
            first: Seat | None = None
            for place in self.world.places(kind, taken, self.effort):
                if not self.waiting.wanting(place):
                    return place
                first = first or place
            if first is not None:
                return first
        return None

    def _kinds(self, seat: Seat) -> list[Seat]:
        """Return examples of the shapes that would do for a while and of which there is a place."""
        if self.effort.over:
            return []
        own = self.world.shape(seat)
        if (seat.owner, own) not in self.roomy:
            others = self.waiting.shapes_of(seat.owner)
            shapes = [(own, seat), *((shape, others[shape]) for shape in sorted(others) if shape != own)]
            found = [each for _, each in shapes if self.world.has_place(each, self.effort)]
            self.roomy[seat.owner, own] = [replace(each, owner=seat.owner) for each in found]
        return self.roomy[seat.owner, own]

    def _take(self, way: Way) -> None:
        for seat, spare, early in way.moves:
            if spare is None:
                self._stop(seat, restart=early)
                continue
            if not (self.world.exists(spare) or self._is_open(spare)):  # an earlier spare place took engines
                break
            self._start(spare, temporary=True)
            self.waiting.goes(spare)
            self._stop(seat)
            self.crews[seat.owner].gone -= 1  # it has not gone for good
        if self._is_open(way.goal):
            self._start(way.goal)
            self.crews[way.goal.owner].come += 1
        else:
            self.hopeless.add(way.goal)

    def _tidy(self) -> None:
        """Free slices: destroy what nobody wants, make what is wanted and still missing."""
        world = self.world
        for node in world.by_node:
            self._modes(node)
        for gpu in world.ends.gpus:
            if gpu in world.ends.impossible or (world.holders[gpu] and gpu in world.uncleared):
                continue
            wanted = world.ends.slices[gpu]
            if not world.ends.mig_on[gpu] or not (wanted or world.slices[gpu]):
                continue
            if not world.mig_on[gpu] and world.blockers(Seat("", wanted[0].profile, (gpu,), wanted[0].start)):
                continue
            self._mode(gpu, on=True)
            if gpu in world.uncleared:
                self._geometry(gpu)
            if world.gpu(gpu).backend == "mig-manager" or not world.gpu(gpu).cuttable:
                continue
            held = {Placement(s.start, s.profile) for s in world.holders[gpu].values()}
            for place in sorted(world.slices[gpu] - held - set(wanted)):
                self._destroy(gpu, place)
            for place in wanted:
                if place not in world.slices[gpu] and world.fits(gpu, world.slices[gpu] | {place}):
                    self.script.create(gpu, place, temporary=False)
                    world.cut(gpu, place)


def course(
    problem: Problem,
    both: Ends,
    pace: Pace,
    *,
    restarts: bool = True,
    patient: bool = False,
    returning: bool = False,
    effort: Effort | None = None,
) -> Course:
    """Return one attempt, run to its end, or to the end of `effort`."""
    kept = both.kept
    pending, leaving = sorted(both.wanted - kept), both.now - kept
    declared = dict(pace.min_available)
    now, wanted = (Counter(seat.owner for seat in seats) for seats in (both.now, both.wanted))
    old, new = Counter(seat.owner for seat in leaving), Counter(seat.owner for seat in pending)
    crews = {}
    for owner in sorted(now | wanted):
        least = min(now[owner], wanted[owner])
        crews[owner] = Crew(
            minimum=min(declared.get(owner, least), least),
            surge=max(now[owner], wanted[owner]) + pace.per_demand,
            old=old[owner],
            new=new[owner],
            there=now[owner],
            least=least,
        )
    pinned = {(g.id, i.start) for g in problem.gpus for i in g.instances if not i.movable}
    fixed = frozenset(seat for seat in leaving if any(site in pinned for site in seat.sites))
    script = Script(both.gpus, pace.per_node)
    world = World(problem, both, kept)
    waiting = Waiting.of(world, pending, leaving)
    found = Course(world, script, crews, waiting, fixed, len(pending), restarts, patient, returning)
    found.effort = effort or found.effort
    found.run()
    return found
