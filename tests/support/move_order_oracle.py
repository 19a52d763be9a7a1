"""Whether some order of direct moves leads to the wanted layout: every order is tried.

Placement rules are those of the published boards (`packing_simulator.is_legal`). A leaving replica and an
arriving one are two replicas, also on the same slice: the first has to stop before the second starts.
"""

from collections import Counter
from dataclasses import dataclass

from tests.support.packing_simulator import is_legal


def some_order_arrives(ends):
    """Whether the replicas of `ends.before` can become those of `ends.after`, replacements first."""
    return _Orders(ends).arrive()


@dataclass(frozen=True)
class _State:
    old: frozenset  # replicas of before that have not stopped
    new: frozenset  # replicas that have started
    operated: frozenset = frozenset()  # GPUs whose mode was changed, or that mig-manager cleared


class _Orders:
    def __init__(self, ends):
        self.ends = ends
        now, then = (Counter(r.owner for r in replicas) for replicas in (ends.before, ends.after))
        self.fewest = {owner: min(now[owner], then[owner]) for owner in now | then}
        self.most = {owner: max(now[owner], then[owner]) + 1 for owner in now | then}
        self.changing = {n for n, g in ends.gpus.items() if g.mig_enabled != ends.mig_on[n]}

    def arrive(self):
        ways, visited = [self.after_operations(_State(self.ends.before, frozenset()))], set()
        while ways:
            state = ways.pop()
            if state in visited:
                continue
            visited.add(state)
            if state.old == self.ends.unmoved and state.old | state.new == self.ends.after:
                return True
            ways += map(self.after_operations, (*self.stops(state), *self.starts(state)))
        return False

    def stops(self, state):
        serving = Counter(r.owner for r in (*state.old, *state.new))
        for replica in state.old - self.ends.unmoved:
            if serving[replica.owner] > self.fewest[replica.owner]:
                yield _State(state.old - {replica}, state.new, state.operated)

    def starts(self, state):
        running = Counter(r.owner for r in (*state.old, *state.new))
        for replica in self.ends.after - self.ends.unmoved - state.new:
            if running[replica.owner] < self.most[replica.owner] and self.can_start(replica, state):
                yield _State(state.old, state.new | {replica}, state.operated)

    def can_start(self, replica, state):
        for name in replica.gpus:
            gpu, held = self.ends.gpus[name], self.on(state, name)
            if name in self.ends.impossible or name in self.needs(name) - state.operated:
                return False
            if replica.profile == "gpu":
                if held:
                    return False
                continue
            slices = {r.start: r.profile for r in held}
            if replica.start in slices:
                return False
            if not is_legal(gpu.sku, slices | {replica.start: replica.profile}):
                return False
            there = {(i.start, i.profile) for i in gpu.instances}
            if not gpu.cuttable and (replica.start, replica.profile) not in there:
                return False
        return True

    def needs(self, name):
        """The GPU itself where an operation has to come before a replica starts on it."""
        return {name} & (self.changing | self.ends.cleared)

    def after_operations(self, state):
        """Every operation that may be done is done: it takes nothing that a replica holds."""
        operated = set(state.operated)
        for name in self.changing | self.ends.cleared:
            gpu = self.ends.gpus[name]
            resets = name in self.changing and gpu.backend == "mig-manager"
            members = [n for n, g in self.ends.gpus.items() if g.node == gpu.node] if resets else [name]
            if gpu.cuttable and not any(self.on(state, member) for member in members):
                operated.add(name)
        return _State(state.old, state.new, frozenset(operated))

    @staticmethod
    def on(state, name):
        return [replica for replica in (*state.old, *state.new) if name in replica.gpus]
