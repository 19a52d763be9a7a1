"""A simulated fleet in which actions take time: they begin, other things happen, then they are done."""

from dataclasses import replace

from tangram.packing import Instance
from tangram.packing.transition import ObservedFleet, next_actions, remaining
from tangram.packing.transition.end_states import ReplicaPlacement
from tests.support.packing_simulator import Refused, SimulatedFleet


class AsynchronousFleet(SimulatedFleet):
    def __init__(self, problem, goal):
        demands = goal.budgets.demands
        minimum = {each.demand: each.min_available for each in demands}
        most = {each.demand: each.max_replicas for each in demands}
        super().__init__(problem, minimum, most, goal.budgets.per_node)
        self.problem, self.goal = problem, goal
        self.states = {g.id: g for g in (*problem.gpus, *(g for new in goal.new_nodes for g in new.gpus))}
        self.leaving, self.underway = [], {}
        self.events = 0  # actions begun and done

    def observed(self):
        gpus = tuple(self._observed(name) for name in sorted(self.gpus))
        here = [(pod, ReplicaPlacement(pod.owner, pod.profile, pod.gpus, pod.start)) for pod in self.pods]
        return ObservedFleet(
            replace(self.problem, gpus=gpus),
            frozenset(place for pod, place in here if not pod.available and pod not in self.leaving),
            frozenset(place for pod, place in here if pod in self.leaving),
            tuple(a for a in self.underway.values() if a.kind not in {"start-replica", "drain-replica"}),
        )

    def _observed(self, name):
        held = {pod.start: pod for pod in self.on(name)}
        slices = self.slices[name] if self.mig[name] else dict.fromkeys(held, "gpu")
        instances = []
        for start, profile in sorted(slices.items()):
            pod = held.get(start)
            gang = pod.gpus[0] if pod and len(pod.gpus) > 1 else None
            instances.append(Instance(profile, start, pod and pod.owner, gang=gang))
        return replace(self.states[name], mig_enabled=self.mig[name], instances=tuple(instances))

    def begin(self, action):
        key = effect(action)
        self.refuse_if(key in self.underway, action, "is underway")
        unknown = action.kind != "add-node" and not set(action.gpus) <= set(self.gpus)
        self.refuse_if(unknown, action, "there is no such GPU")
        self.refuse_if(self.is_done(action), action, "is done already")
        if action.kind == "start-replica":
            self.execute(action)
        elif action.kind == "drain-replica":
            pod = self.pod(action)
            self.refuse_if(pod in self.leaving, action, "terminates already")
            serving = [p for p in self.pods if p.owner == pod.owner and p.available and p not in self.leaving]
            left = sum(p is not pod for p in serving)
            self.refuse_if(left < self.minimum[pod.owner], action, f"only {left} would be available")
            self.leaving.append(pod)
        self.underway[key] = action

    def finish(self, action):
        del self.underway[effect(action)]
        if action.kind == "start-replica":
            self.pod(action).available = True
        elif action.kind == "drain-replica":
            pod = self.pod(action)
            self.leaving = [each for each in self.leaving if each is not pod]
            self.pods = [each for each in self.pods if each is not pod]
        else:
            self.run([replace(action, number=1)])

    def crash(self, rng, halfway=0.5):
        """Forget operations of the node agent; those of several device operations stop in their middle."""
        for key, action in list(self.underway.items()):
            if action.kind in {"start-replica", "drain-replica", "add-node"}:
                continue  # Kubernetes has accepted them: they go on
            del self.underway[key]
            if rng.random() < halfway:
                self.stop_halfway(action)

    def stop_halfway(self, action):
        """mig-manager has cleared what it clears, and has made nothing of what it makes."""
        gpu = action.gpus[0]
        if self.gpus[gpu].backend != "mig-manager":
            return
        cleared = self.members(action.node) if action.kind == "set-mode" else [gpu]
        self.refuse_if(any(self.on(name) for name in cleared), action, "a pod runs there")
        for name in cleared:
            self.slices[name] = {}

    def progress(self):
        left, _ = remaining(self.observed(), self.goal)
        return left, len(self.underway)

    def step(self, rng, crashes=0.2, events=10**6):
        """Begin some of the actions, finish some of those underway. False: there is nothing left."""
        actions = next_actions(self.observed(), self.goal)
        if not actions and not self.underway:
            return False
        for action in actions[: rng.randint(0 if self.underway else 1, len(actions))]:
            self.event(self.begin, action, events)
        if rng.random() < crashes:
            self.crash(rng)
        order = list(self.underway.values())
        rng.shuffle(order)
        for action in order[: rng.randint(1, len(order))] if order else ():
            self.event(self.finish, action, events)
        return True

    def event(self, happen, action, most):
        """Refuse an event after which the fleet is no nearer to its goal; ignore it where `most` happened."""
        if self.events >= most:
            return
        before = self.progress()
        happen(action)
        self.events += 1
        if self.progress() >= before:
            raise Refused(f"{action} is no progress: {before}, then {self.progress()}")


def effect(action):
    return action.kind, action.node, action.gpus, action.profile, action.start, action.owner
