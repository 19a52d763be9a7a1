"""One attempt at a transition: the order in which replicas start, make detours and are drained.

A replica starts on its new place as soon as that is free or can be created, and one of those that it replaces
is drained once it serves. Where replicas wait for each other's places in a circle, one of them makes a detour
over a spare place (any free place that is legal on a board); where there is none, one is restarted: drained
before its replacement serves, if the budget of its demand permits. Of all moves that free a wanted place, the
one with the fewest restarts, then detours, is taken. It brings one replica to its place for good, so that the
pairs (replicas still to arrive, cost of the cheapest move) fall lexicographically: the attempt ends.
"""

import heapq
from bisect import bisect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry.layouts import Placement
from tangram.packing.problem.statement import Problem
from tangram.packing.transition.backlog import Backlog
from tangram.packing.transition.disruption import Budgets, Cost, DemandProgress, UnblockingMove
from tangram.packing.transition.end_states import EndStates, ReplicaPlacement
from tangram.packing.transition.fleet_state import Effort, FleetState, PlaceShape
from tangram.packing.transition.recorder import StepRecorder

_LOOK, _FREE, _SEARCH = 8, 1, 16  # effort of a look at a place, at its blockers, for a spare place
_MANY = 512  # goals that are compared before one of them is taken


@dataclass(frozen=True, slots=True)
class Policy:
    """Which of the legal actions come first."""

    restarts: bool = True  # replicas are drained before their replacement serves, as budgets permit
    patient: bool = False  # demands that only grow wait until the others are where they go
    returning: bool = False  # goals come first whose GPU has a place for each replica that stops for them
    by_goals: bool = False  # replicas for which most goals wait are drained first


@dataclass(slots=True)
class TransitionAttempt:
    """One attempt at a transition under one policy: its state, and the steps recorded so far."""

    fleet: FleetState
    recorder: StepRecorder
    progress: dict[str, DemandProgress]
    backlog: Backlog
    pinned: frozenset[ReplicaPlacement]  # may be drained but make no detour
    wanted: int  # replicas that have to arrive
    policy: Policy
    patient: bool  # until nothing else goes on
    last: ReplicaPlacement | None = None  # the goal of the last move
    unreachable: set[ReplicaPlacement] = field(default_factory=set)  # goals no move frees
    effort: Effort = field(default_factory=Effort)
    missing: int = 0  # replicas that are down and come back
    safe_prefix: tuple[int, int] = (0, 0)  # when none was, last: replicas that had arrived, steps
    # (owner, shape) -> examples of the shapes of spare places for it, until a replica arrives or leaves.
    spare_shapes: dict[tuple[str, PlaceShape], list[ReplicaPlacement]] = field(default_factory=dict)

    @property
    def has_arrived(self) -> bool:
        """Whether every replica is where it is wanted."""
        return not self.backlog.pending and not self.backlog.leaving

    def run(self) -> None:
        """Record steps until everything is where it is wanted, or nothing can go on."""
        for new in self.fleet.ends.new_nodes:
            self.recorder.add_node(new.pool, new.node, tuple(gpu.id for gpu in new.gpus))
        while True:
            while self._drain() | self._start_all() and not self.effort.out_of_time:
                pass
            unblocking = self._cheapest_unblocking()
            if unblocking is not None:
                self._take(unblocking)
            elif self.patient:
                self.patient = False
                self.backlog.fresh |= self.backlog.pending.keys()
            else:
                break
        self._tidy()
        self._note_safe_prefix()

    def _start_all(self) -> bool:
        """Start replicas whose place is free, always the first such, and drain in proportion.

        Only goals around which something changed are looked at. The order depends on the fleet alone, so that
        a fleet after a start has the same actions ahead of it, however it came to be.
        """
        backlog, before = self.backlog, len(self.backlog.pending)
        queue: list[ReplicaPlacement] = []
        queued = set[ReplicaPlacement]()
        while backlog.fresh or queue:
            for fresh in (backlog.fresh & self.backlog.pending.keys()) - queued:
                heapq.heappush(queue, fresh)
                queued.add(fresh)
            backlog.fresh = set()
            if not queue:
                break
            goal = heapq.heappop(queue)
            queued.discard(goal)
            if goal in self.backlog.pending:
                self._look_at(goal)
        return len(self.backlog.pending) < before

    def _look_at(self, goal: ReplicaPlacement) -> None:
        progress = self.progress[goal.owner]
        later = self.patient and (not progress.budget.leaving or self._awaits_mode(goal))
        self.effort.left -= _LOOK
        if not progress.may_surge and not later:
            self.backlog.park(goal)
            return
        if not later and self._is_open(goal):
            self._start(goal)
            while progress.may_drain:
                self._drain_one(goal.owner)
        if progress.may_surge:
            self._unpark(goal.owner)

    def _unpark(self, owner: str) -> None:
        """Look again at one of the goals that waited for the surge limit of their owner."""
        goal = self.backlog.next_parked(owner)
        if goal is not None:
            self.backlog.fresh.add(goal)

    def _is_open(self, replica: ReplicaPlacement) -> bool:
        fleet = self.fleet
        if any(gpu in fleet.ends.impossible for gpu in replica.gpus) or self.backlog.blockers(replica):
            return False
        gpu, place = replica.gpus[0], Placement(replica.start, replica.profile)
        if replica.profile == WHOLE_GPU or place in fleet.slices[gpu] or gpu in fleet.uncleared:
            return True
        if not fleet.mig_on[gpu]:
            return fleet.gpu(gpu).cuttable
        return fleet.obstructing(gpu, place) is not None

    def _start(self, replica: ReplicaPlacement, *, temporary: bool = False) -> None:
        self._make(replica, temporary=temporary)
        self.recorder.start(replica, temporary=temporary)
        self.fleet.place(replica)
        self.backlog.arrived(replica, temporary=temporary)
        self.progress[replica.owner].to_come -= not temporary
        self._count(self.progress[replica.owner], 1)

    def _count(self, progress: DemandProgress, more: int) -> None:
        before = progress.missing
        progress.replicas += more
        self.missing += progress.missing - before
        self._note_safe_prefix()

    def _note_safe_prefix(self) -> None:
        if not self.missing:
            self.safe_prefix = self.wanted - len(self.backlog.pending), len(self.recorder.steps)

    def _make(self, replica: ReplicaPlacement, *, temporary: bool) -> None:
        """Create the slice, or free the whole GPUs, that a replica needs."""
        fleet = self.fleet
        if temporary and fleet.exists(replica):  # what mig-manager has yet to clear serves until then
            return
        self._modes(fleet.gpu(replica.gpus[0]).node)
        for gpu in replica.gpus:
            self._mode(gpu, on=replica.profile != WHOLE_GPU)
        gpu, place = replica.gpus[0], Placement(replica.start, replica.profile)
        if gpu in fleet.uncleared:
            self._geometry(gpu)
        if replica.profile != WHOLE_GPU and place not in fleet.slices[gpu]:
            for other in fleet.obstructing(gpu, place) or ():
                self._destroy(gpu, other)
            self.recorder.create(gpu, place, temporary=temporary and place not in fleet.ends.slices[gpu])
            fleet.create_slice(gpu, place)

    def _modes(self, node: str) -> None:
        """Change every MIG mode that needs an empty node while the node is empty."""
        if not any(self.fleet.holders[gpu] for gpu in self.fleet.by_node[node]):
            for gpu in self.fleet.awaiting_mode(node):
                self._mode(gpu, on=self.fleet.ends.mig_on[gpu])

    def _awaits_mode(self, replica: ReplicaPlacement) -> bool:
        """Whether its node is being emptied for a change of MIG modes."""
        fleet, node = self.fleet, self.fleet.gpu(replica.gpus[0]).node
        if not fleet.awaiting_mode(node):
            return False
        held = [holder for gpu in fleet.by_node[node] for holder in fleet.holders[gpu].values()]
        return bool(held) and self.backlog.leaving.issuperset(held)

    def _mode(self, gpu: str, *, on: bool) -> None:
        fleet = self.fleet
        if fleet.mig_on[gpu] == on:
            return
        if fleet.gpu(gpu).backend != "mig-manager":
            for place in sorted(fleet.slices[gpu]):
                self._destroy(gpu, place)
        self.recorder.mode(gpu, on=on)
        fleet.mig_on[gpu] = on
        fleet.clear(gpu)
        if fleet.gpu(gpu).backend == "mig-manager":  # clears every GPU of the node that is in MIG mode
            for other in fleet.by_node[fleet.gpu(gpu).node]:
                fleet.clear(other)
                fleet.uncleared |= {other} if fleet.ends.mig_on[other] and fleet.ends.slices[other] else set()

    def _geometry(self, gpu: str) -> None:
        layout = self.fleet.ends.slices[gpu]
        self.recorder.geometry(gpu, layout)
        self.fleet.uncleared.discard(gpu)
        self.fleet.clear(gpu, layout)

    def _destroy(self, gpu: str, place: Placement) -> None:
        self.recorder.destroy(gpu, place)
        self.fleet.destroy_slice(gpu, place)

    def _drain(self) -> bool:
        done = False
        owners, self.backlog.changed_owners = self.backlog.changed_owners, set()
        for owner in sorted(owner for owner in owners if self.backlog.leaving_of(owner)):
            while self.progress[owner].may_drain:
                self._drain_one(owner)
                done = True
        return done

    def _drain_one(self, owner: str) -> None:
        """Drain the replica that most goals wait for."""
        self.effort.left -= _LOOK
        self._stop(self.backlog.most_wanted(owner))

    def _stop(self, replica: ReplicaPlacement, *, restart: bool = False) -> None:
        self.recorder.drain(replica, restart=restart)
        self.fleet.remove(replica)
        self.backlog.left(replica)
        self._count(self.progress[replica.owner], -1)
        self._unpark(replica.owner)

    def _cheapest_unblocking(self) -> UnblockingMove | None:
        """Return the cheapest move that frees any goal."""
        self.spare_shapes.clear()
        goals = list(self.backlog.pending)
        if len(goals) > _MANY and self.last is not None:
            after = bisect(goals, self.last)
            goals = goals[after:] + goals[:after]
        best: UnblockingMove | None = None
        for begin in range(0, len(goals), _MANY):
            unblocking = self._best(goals[begin : begin + _MANY])
            if unblocking is not None and (best is None or unblocking.cost < best.cost):
                best = unblocking
            if self.effort.out_of_time or (best is not None and (not best.restarts or self.effort.over)):
                break
        self.last = None if best is None else best.goal
        return best

    def _best(self, goals: list[ReplicaPlacement]) -> UnblockingMove | None:
        """Return the cheapest move that frees one of these goals. Without effort left: without detours."""
        self.effort.left -= _FREE * len(goals)
        if self.policy.returning:
            goals = [goal for goal in goals if self._all_return(goal)] or goals
        order: list[Cost] = []
        for goal in goals:
            least = self._at_least(goal)
            if least is not None:
                order.append(least)
                if not least[0] + least[1]:
                    return self._free(goal)
        best: UnblockingMove | None = None
        for least in sorted(order):
            if best is not None and best.cost <= least:
                break
            unblocking = self._free(least[-1])
            if unblocking is not None and (best is None or unblocking.cost < best.cost):
                best = unblocking
        return best

    def _all_return(self, goal: ReplicaPlacement) -> bool:
        """Whether the GPU of a goal offers a place to a replica of each demand that has to stop for it."""
        stops = Counter(self.backlog.owners(goal))
        places = Counter(replica.owner for replica in self.backlog.pending if replica.gpus[0] == goal.gpus[0])
        return stops <= places and self._at_least(goal) is not None

    def _at_least(self, goal: ReplicaPlacement) -> Cost | None:
        """Return a lower bound of the cost to free a goal; None: it cannot be freed."""
        impossible, owners = self.fleet.ends.impossible, self.backlog.owners(goal)
        if self.patient and not self.progress[goal.owner].budget.leaving:
            return None
        if not owners or goal in self.unreachable or any(gpu in impossible for gpu in goal.gpus):
            return None
        gone = dict.fromkeys(owners, 0)
        detours = restarts = 0
        for owner, replica in zip(owners, self.backlog.blockers(goal), strict=True):
            progress = self.progress[owner]
            left = progress.replicas - gone[owner]
            if left > progress.budget.desired:
                gone[owner] += 1
            elif replica in self.pinned or not progress.may_surge or not self._spare_shapes(replica):
                if not self.policy.restarts or left <= progress.budget.min_available:
                    return None
                gone[owner] += 1
                restarts += 1
            else:
                detours += 1
        progress = self.progress[goal.owner]
        left = progress.replicas - gone.get(goal.owner, 0)
        if not detours + restarts and left >= progress.budget.max_replicas:
            return None
        return restarts, detours, len(owners) - detours - restarts, goal

    def _free(self, goal: ReplicaPlacement) -> UnblockingMove | None:
        fleet, blockers = self.fleet, self.backlog.blockers(goal)
        used: Counter[str] = Counter()
        for gpu, mask in fleet.region(goal).items():
            used[gpu] |= mask
        owners = {goal.owner, *(b.owner for b in blockers)}
        replicas_by_owner = {owner: self.progress[owner].replicas for owner in owners}
        moves: list[tuple[ReplicaPlacement, ReplicaPlacement | None, bool]] = []
        for replica in blockers:
            progress = self.progress[replica.owner]
            if replica not in self.backlog.leaving:
                return None
            spare = None
            early = replicas_by_owner[replica.owner] <= progress.budget.desired
            if early:
                spare = self._spare(replica, used) if progress.may_surge else None
                if spare is None and not (
                    self.policy.restarts and replicas_by_owner[replica.owner] > progress.budget.min_available
                ):
                    return None
            if spare is None:
                replicas_by_owner[replica.owner] -= 1
            else:
                for gpu in spare.gpus:
                    used[gpu] |= self.backlog.mask(spare, gpu)
            moves.append((replica, spare, early and spare is None))
        if replicas_by_owner[goal.owner] >= self.progress[goal.owner].budget.max_replicas:
            return None
        detours = sum(spare is not None for _, spare, _ in moves)
        restarts = sum(early for _, _, early in moves)
        return UnblockingMove(restarts, detours, len(moves) - detours - restarts, goal, tuple(moves))

    def _spare(self, replica: ReplicaPlacement, used: Mapping[str, int]) -> ReplicaPlacement | None:
        """Return a free place for a detour: one for which no goal waits, if there is one.

        Of the same shape; else of one that its demand has in the end, which serves as well.
        """
        if replica in self.pinned:
            return None
        self.effort.left -= _SEARCH
        for shape in self._spare_shapes(replica):
            first: ReplicaPlacement | None = None
            for place in self.fleet.places(shape, used, self.effort):
                if not self.backlog.wanting(place):
                    return place
                first = first or place
            if first is not None:
                return first
        return None

    def _spare_shapes(self, replica: ReplicaPlacement) -> list[ReplicaPlacement]:
        """Return examples of the shapes that suffice for a detour and of which there is a place."""
        if self.effort.over:
            return []
        own = self.fleet.shape(replica)
        if (replica.owner, own) not in self.spare_shapes:
            others = self.backlog.shapes_of(replica.owner)
            shapes = [(own, replica), *((shape, others[shape]) for shape in sorted(others) if shape != own)]
            examples = [example for _, example in shapes if self.fleet.has_place(example, self.effort)]
            self.spare_shapes[replica.owner, own] = [replace(e, owner=replica.owner) for e in examples]
        return self.spare_shapes[replica.owner, own]

    def _take(self, unblocking: UnblockingMove) -> None:
        for replica, spare, early in unblocking.moves:
            if spare is None:
                self._stop(replica, restart=early)
                continue
            if not (self.fleet.exists(spare) or self._is_open(spare)):  # an earlier spare place took engines
                break
            self._start(spare, temporary=True)
            self.backlog.add_leaving(spare)
            self._stop(replica)
        if self._is_open(unblocking.goal):
            self._start(unblocking.goal)
        else:
            self.unreachable.add(unblocking.goal)

    def _tidy(self) -> None:
        """Destroy free slices that the end does not have, create those that are still missing."""
        fleet = self.fleet
        for node in fleet.by_node:
            self._modes(node)
        for gpu in fleet.ends.gpus:
            if gpu in fleet.ends.impossible or (fleet.holders[gpu] and gpu in fleet.uncleared):
                continue
            end_slices = fleet.ends.slices[gpu]
            if not fleet.ends.mig_on[gpu] or not (end_slices or fleet.slices[gpu]):
                continue
            if not fleet.mig_on[gpu] and fleet.blockers(
                ReplicaPlacement("", end_slices[0].profile, (gpu,), end_slices[0].start)
            ):
                continue
            self._mode(gpu, on=True)
            if gpu in fleet.uncleared:
                self._geometry(gpu)
            if fleet.gpu(gpu).backend == "mig-manager" or not fleet.gpu(gpu).cuttable:
                continue
            held = {Placement(s.start, s.profile) for s in fleet.holders[gpu].values()}
            for place in sorted(fleet.slices[gpu] - held - set(end_slices)):
                self._destroy(gpu, place)
            for place in end_slices:
                if place not in fleet.slices[gpu] and fleet.fits(gpu, fleet.slices[gpu] | {place}):
                    self.recorder.create(gpu, place, temporary=False)
                    fleet.create_slice(gpu, place)


def attempt_of(
    problem: Problem, ends: EndStates, budgets: Budgets, policy: Policy, effort: Effort
) -> TransitionAttempt:
    """Return one attempt, run to its end, or to the end of `effort`."""
    # Replicas of other owners came since: they stay.
    planned_demands = {budget.demand for budget in budgets.demands}
    pending = ends.wanted - ends.kept
    leaving = {replica for replica in ends.now - ends.kept if replica.owner in planned_demands}
    now, to_come = (Counter(replica.owner for replica in replicas) for replicas in (ends.now, pending))
    pinned = {(g.id, i.start) for g in problem.gpus for i in g.instances if not i.movable}
    fleet = FleetState(problem, ends, ends.kept)
    attempt = TransitionAttempt(
        fleet,
        StepRecorder(ends.gpus, budgets.per_node),
        {
            budget.demand: DemandProgress(budget, now[budget.demand], to_come[budget.demand])
            for budget in budgets.demands
        },
        Backlog.of(fleet, pending, leaving, by_goals=policy.by_goals),
        frozenset(r for r in leaving if any(site in pinned for site in r.sites)),
        len(pending),
        policy,
        policy.patient,
        effort=effort,
    )
    attempt.run()
    return attempt
