"""An order of direct moves: a replica starts on its new place, and one that leaves stops once it is replaced.

A demand has a surplus: the replicas that serve beyond the fewer of before and after. A replica may stop only
out of the surplus of its demand, and each start adds one to it. Three kinds of moves never rule out an order
to the end, and are made at once:

- a replica starts whose place is free;
- all leaving replicas of a demand stop, where its surplus covers them all;
- a replica stops that alone is in the way of another of its demand: once that one serves, the surplus is as
  before.

Any other start uses up surplus. Such starts are tried one after the other, depth first. The replicas of a
demand are interchangeable: which one replaces which is part of the order.

Where no order of direct moves serves the demands that gain replicas, `restarts` may stop what is in their way
without a surplus: such a replica does not serve until its own place is free.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tangram.packing.transition.blockers import ArrivingReplica
from tangram.packing.transition.end_states import EndStates, ReplicaPlacement

MOST_LOOKS = 300_000  # arriving replicas looked at while starts are tried: about a second of a slow core


@dataclass(frozen=True, slots=True)
class StartOrStop:
    """A replica starts, or stops."""

    replica: ReplicaPlacement
    starts: bool
    restarts: bool = False  # it stops before a replacement serves


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """Moves in an order that works one by one."""

    moves: tuple[StartOrStop, ...]
    blockers: Mapping[ReplicaPlacement, tuple[ReplicaPlacement, ...]]  # of the replicas that never start
    proved: bool  # whether no order has these start, too

    @property
    def restarted(self) -> tuple[ReplicaPlacement, ...]:
        """The replicas that stop before a replacement serves."""
        return tuple(move.replica for move in self.moves if move.restarts)


@dataclass(slots=True)
class _Search:
    """The moves so far, and what is still to be done."""

    waiting_for: dict[ReplicaPlacement, list[ReplicaPlacement]]  # leaving -> those whose place it blocks
    surplus: Counter[str]
    blockers: dict[ReplicaPlacement, set[ReplicaPlacement]]  # of replicas that have not started
    leaving: dict[str, set[ReplicaPlacement]]  # by demand, those that have not stopped
    moves: list[StartOrStop] = field(default_factory=list)
    startable: list[ReplicaPlacement] = field(default_factory=list)  # a heap: nothing is in their way now
    # By demand, a heap of replicas that once waited for a single one, of the same demand.
    exchanges: dict[str, list[ReplicaPlacement]] = field(default_factory=lambda: defaultdict(list))
    changed: list[str] = field(default_factory=list)  # a heap of demands to look at

    def copy(self) -> "_Search":
        """Return a copy of a settled search, which goes on in another way."""
        return _Search(
            self.waiting_for,
            self.surplus.copy(),
            {replica: set(blockers) for replica, blockers in self.blockers.items()},
            {owner: set(replicas) for owner, replicas in self.leaving.items()},
            list(self.moves),
            exchanges=defaultdict(list, {owner: list(heap) for owner, heap in self.exchanges.items()}),
        )

    def settle(self) -> None:
        """Make all moves that rule out no order to the end."""
        while self.startable or self.changed:
            if self.startable:
                self._start(heappop(self.startable))
            else:
                self._use_surplus(heappop(self.changed))

    def unblock(self, replica: ReplicaPlacement) -> None:
        """Stop what is in the way of one replica, and settle."""
        self._stop_all(self.blockers[replica])
        self.settle()

    def restart(self, replicas: Iterable[ReplicaPlacement]) -> None:
        """Stop replicas, those without a surplus too, and start what that makes possible."""
        for replica in sorted(replicas):
            self._stop(replica, restarts=self.surplus[replica.owner] < 1)
        self.settle()
        self.start_affordable()

    def affordable(self) -> list[ReplicaPlacement]:
        """Return the waiting replicas whose blockers may all stop now, those with few blockers first."""
        replicas = filter(self._is_affordable, self.blockers)
        return sorted(replicas, key=lambda replica: (len(self.blockers[replica]), replica))

    def start_affordable(self) -> None:
        """Start replicas as long as surplus permits, those with few blockers first."""
        while affordable := self.affordable():
            for replica in affordable:
                if replica in self.blockers and self._is_affordable(replica):
                    self.unblock(replica)

    def hopeless(self) -> set[ReplicaPlacement]:
        """Return the waiting replicas that no order starts: a demand in their way never has a surplus."""
        able = {owner for owner, surplus in self.surplus.items() if surplus > 0}
        owners = {r: {b.owner for b in blockers} for r, blockers in self.blockers.items()}
        while possible := [replica for replica, in_the_way in owners.items() if in_the_way <= able]:
            for replica in possible:
                able.add(replica.owner)
                del owners[replica]
        return set(owners)

    def note_blockers(self, replica: ReplicaPlacement) -> None:
        """Note a replica that may start, or that waits for a single one."""
        blockers = self.blockers[replica]
        if not blockers:
            heappush(self.startable, replica)
        elif {blocker.owner for blocker in blockers} == {replica.owner} and len(blockers) == 1:
            heappush(self.exchanges[replica.owner], replica)
            heappush(self.changed, replica.owner)

    def stop_replaced(self, arriving: Counter[str]) -> None:
        """Stop replicas of demands that only partly arrive, as many as have been replaced."""
        started = Counter(move.replica.owner for move in self.moves if move.starts)
        stopped = Counter(move.replica.owner for move in self.moves if not move.starts)
        for owner, replicas in sorted(self.leaving.items()):
            replaced = _replaced(len(replicas) + stopped[owner], started[owner], arriving[owner])
            self._stop_all(sorted(replicas)[: max(0, replaced - stopped[owner])])
        self.settle()

    def _is_affordable(self, replica: ReplicaPlacement) -> bool:
        needed = Counter(blocker.owner for blocker in self.blockers[replica])
        return all(self.surplus[owner] >= count for owner, count in needed.items())

    def _stop_all(self, replicas: Iterable[ReplicaPlacement]) -> None:
        for replica in sorted(replicas):
            self._stop(replica)

    def _start(self, replica: ReplicaPlacement) -> None:
        del self.blockers[replica]
        self.moves.append(StartOrStop(replica, starts=True))
        self.surplus[replica.owner] += 1
        heappush(self.changed, replica.owner)

    def _stop(self, replica: ReplicaPlacement, *, restarts: bool = False) -> None:
        self.leaving[replica.owner].discard(replica)
        self.moves.append(StartOrStop(replica, starts=False, restarts=restarts))
        self.surplus[replica.owner] -= 1
        for waiting in self.waiting_for.get(replica, ()):
            if waiting in self.blockers:
                self.blockers[waiting].discard(replica)
                self.note_blockers(waiting)

    def _use_surplus(self, owner: str) -> None:
        """Stop replicas of one demand, where that rules out no order to the end."""
        leaving = self.leaving.get(owner, ())
        if self.surplus[owner] >= len(leaving):
            self._stop_all(leaving)
        exchanges = self.exchanges[owner]
        while self.surplus[owner] > 0 and exchanges and not self.startable:
            replica = heappop(exchanges)
            if len(self.blockers.get(replica, ())) == 1:
                self._stop_all(self.blockers[replica])


def move_order(
    ends: EndStates,
    arriving: Iterable[ArrivingReplica],
    looks: int = MOST_LOOKS,
    *,
    restarts: bool = False,
) -> MoveOrder:
    """Return an order in which as many replicas as possible start. Deterministic.

    `looks` bounds the search by a count. Where it ends early, `proved` is False and more might start.
    `restarts`: replicas may be restarted for demands that gain some. A few of them, not always the fewest.
    """
    arriving = tuple(arriving)
    settled = _settled(ends, arriving)
    search = settled.copy()
    search.start_affordable()
    proved = True
    if search.blockers.keys() - settled.hopeless():
        search, proved = _best_tried(settled, search, looks)
    if restarts:
        search = _with_restarts(search, arriving, ends)
    search.stop_replaced(Counter(arrival.replica.owner for arrival in arriving))
    blockers = {replica: tuple(sorted(in_the_way)) for replica, in_the_way in search.blockers.items()}
    return MoveOrder(_paced(search.moves, ends), blockers, proved)


def _settled(ends: EndStates, arriving: Iterable[ArrivingReplica]) -> _Search:
    """Return the search after the moves that rule out no order to the end."""
    now, then = (Counter(replica.owner for replica in replicas) for replicas in (ends.before, ends.after))
    leaving: dict[str, set[ReplicaPlacement]] = defaultdict(set)
    for replica in ends.before - ends.unmoved:
        leaving[replica.owner].add(replica)
    blockers = {arrival.replica: set(arrival.blockers) for arrival in arriving if not arrival.obstacles}
    waiting_for: dict[ReplicaPlacement, list[ReplicaPlacement]] = defaultdict(list)
    for replica, in_the_way in blockers.items():
        for blocker in in_the_way:
            waiting_for[blocker].append(replica)
    search = _Search(waiting_for, now - then, blockers, leaving, changed=sorted(now))
    for replica in blockers:
        search.note_blockers(replica)
    search.settle()
    return search


def _with_restarts(search: _Search, arriving: Iterable[ArrivingReplica], ends: EndStates) -> _Search:
    """Return the search in which what blocks demands that gain replicas is restarted, and what blocks those
    that are restarted.

    It is the same search where a replica that is restarted would not arrive: none is lost.
    """
    restarted, served = search.copy(), set(ends.gaining)
    while waiting := [replica for replica in restarted.blockers if replica.owner in served]:
        first = min(waiting, key=lambda replica: (len(restarted.blockers[replica]), replica))
        restarted.restart(restarted.blockers[first])
        served |= {move.replica.owner for move in restarted.moves if move.restarts}
    owners = {move.replica.owner for move in restarted.moves if move.restarts}
    absent = {replica.owner for replica in restarted.blockers}
    absent |= {arrival.replica.owner for arrival in arriving if arrival.obstacles}
    return search if owners & absent else restarted


def _best_tried(settled: _Search, best: _Search, looks: int) -> tuple[_Search, bool]:
    """Try the starts that use up surplus. Return the search that leaves the fewest, and if it is best."""
    visited, hopeless = {frozenset(settled.blockers)}, settled.hopeless()
    untried = [(settled, replica) for replica in reversed(settled.affordable())]
    while untried and looks > 0:
        before, replica = untried.pop()
        search = before.copy()
        search.unblock(replica)
        looks -= len(before.blockers)
        waiting = frozenset(search.blockers)
        if waiting in visited:
            continue
        visited.add(waiting)
        if len(waiting) < len(best.blockers):
            best = search
        if waiting <= hopeless:
            return best, True
        untried += [(search, following) for following in reversed(search.affordable())]
    return best, not untried


def _paced(moves: Iterable[StartOrStop], ends: EndStates) -> tuple[StartOrStop, ...]:
    """Return the moves with each stop as early as other replicas replace it: so a demand surges by one.

    Of the replicas of a demand, the one that stops next does so earlier. That takes no place from another.
    """
    moves = tuple(moves)
    stops: dict[str, deque[StartOrStop]] = defaultdict(deque)
    for move in moves:
        if not move.starts:
            stops[move.replica.owner].append(move)
    leaving, arriving = (
        Counter(replica.owner for replica in replicas - ends.unmoved)
        for replicas in (ends.before, ends.after)
    )
    paced, started, planned, stopped = list[StartOrStop](), Counter[str](), Counter[str](), Counter[str]()
    for move in moves:
        owner = move.replica.owner
        if move.starts:
            started[owner] += 1
            paced.append(move)
        else:
            planned[owner] += 1
        replaced = _replaced(leaving[owner], started[owner], arriving[owner])
        while stops[owner] and stopped[owner] < max(planned[owner], replaced):
            stopped[owner] += 1
            paced.append(stops[owner].popleft())
    return tuple(paced)


def _replaced(leaving: int, started: int, arriving: int) -> int:
    """Return how many of the leaving replicas of a demand those that have started replace."""
    return leaving * started // arriving if arriving else leaving
