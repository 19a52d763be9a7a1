"""A fleet that refuses what NVML, mig-manager and a disruption budget would refuse. It plans nothing.

Placement rules are those of the boards in `oracle`. Every step is executed strictly (it must not be done
already) and then once more, when it must change nothing.
"""

import itertools
from collections import Counter
from dataclasses import dataclass

from .oracle import BOARDS

STARTS_PER_NODE = 2


class Refused(AssertionError):
    """The world would not have done this."""


@dataclass
class Pod:
    owner: str
    profile: str
    gpus: tuple
    start: int
    available: bool = False


class SimulatedFleet:
    def __init__(self, problem, minimum, most):
        self.gpus = {gpu.id: gpu for gpu in problem.gpus}
        self.pools = {pool.name: pool for pool in problem.growable}
        self.minimum, self.most = minimum, most
        self.mig = {gpu.id: gpu.mig_enabled for gpu in problem.gpus}
        self.slices = {
            g.id: {i.start: i.profile for i in g.instances} if g.mig_enabled else {} for g in problem.gpus
        }
        self.pods = []
        gangs = {}
        for gpu in problem.gpus:
            for i in gpu.instances:
                if i.owner is not None and i.gang is not None:
                    gangs.setdefault((i.owner, i.gang, gpu.node), []).append(gpu.id)
                elif i.owner is not None:
                    self.pods.append(Pod(i.owner, i.profile, (gpu.id,), i.start, available=True))
        self.pods += [Pod(owner, "gpu", tuple(ids), 0, True) for (owner, _, _), ids in gangs.items()]

    def run(self, steps):
        """Execute steps one by one."""
        for step in steps:
            unknown = step.kind != "add-node" and not set(step.gpus) <= set(self.gpus)
            self.refuse_if(unknown, step, "there is no such GPU")
            self.refuse_if(self.is_done(step), step, "is done already")
            self.execute(step)
            after = self.state()
            self.refuse_if(not self.is_done(step), step, "had no effect")
            self.execute(step)
            self.refuse_if(self.state() != after, step, "is not idempotent")

    def run_in_any_order(self, steps, rng):
        """Execute steps in a random order that respects `after`."""
        left, done = {step.number: step for step in steps}, set()
        while left:
            ready = [step for step in left.values() if set(step.after) <= done]
            if not ready:
                raise Refused("steps wait for each other")
            step = rng.choice(ready)
            self.run([step])
            done.add(step.number)
            del left[step.number]

    def state(self):
        pods = sorted((p.owner, p.profile, p.gpus, p.start, p.available) for p in self.pods)
        slices = {gpu: dict(held) for gpu, held in self.slices.items()}
        return dict(self.mig), slices, pods, sorted(self.gpus)

    def refuse_if(self, refused, step, why):
        if refused:
            raise Refused(f"{step}: {why}")

    def is_done(self, step):
        gpu = step.gpus[0]
        match step.kind:
            case "add-node":
                return gpu in self.gpus
            case "set-mode":
                return self.mig[gpu] == step.mig_enabled
            case "create-slice":
                return self.slices[gpu].get(step.start) == step.profile
            case "destroy-slice":
                return self.slices[gpu].get(step.start) != step.profile
            case "set-geometry":
                return self.mig[gpu] and self.slices[gpu] == {p.start: p.profile for p in step.layout}
            case "start-replica":
                return self.pod(step) is not None
            case "wait-available":
                return (pod := self.pod(step)) is not None and pod.available
            case "drain-replica" | "stop-replica":
                return self.pod(step) is None
        raise Refused(step.kind)

    def execute(self, step):
        if not self.is_done(step):
            getattr(self, "do_" + step.kind.replace("-", "_"))(step)

    def do_add_node(self, step):
        pool = self.pools[step.pool]
        self.refuse_if(len(step.gpus) != pool.node_size, step, "nodes of this pool have another size")
        for name in step.gpus:
            kind = type("New", (), {"sku": pool.sku, "node": step.node, "backend": "nvml", "cuttable": True})
            self.gpus[name], self.mig[name], self.slices[name] = kind, pool.mig_enabled, {}

    def do_set_mode(self, step):
        (name,) = step.gpus
        gpu = self.gpus[name]
        members = [name] if gpu.backend == "nvml" else self.members(gpu.node)
        self.refuse_if(any(self.on(m) for m in members), step, "a pod runs there")
        self.refuse_if(gpu.backend == "nvml" and self.slices[name], step, "instances exist")
        for member in members:
            self.slices[member] = {}
        self.mig[name] = step.mig_enabled

    def do_create_slice(self, step):
        (name,) = step.gpus
        self.refuse_if(self.gpus[name].backend != "nvml", step, "no placement control")
        self.refuse_if(not self.gpus[name].cuttable, step, "must not be cut")
        self.refuse_if(not self.mig[name], step, "MIG mode is off")
        wanted = {**self.slices[name], step.start: step.profile}
        self.refuse_if(step.start in self.slices[name], step, "the position is taken")
        self.refuse_if(not is_legal(self.gpus[name].sku, wanted), step, "insufficient resources")
        self.slices[name] = wanted

    def do_destroy_slice(self, step):
        (name,) = step.gpus
        self.refuse_if(self.gpus[name].backend != "nvml", step, "no placement control")
        self.refuse_if(not self.gpus[name].cuttable, step, "must not be cut")
        self.refuse_if(any(p.start == step.start for p in self.on(name)), step, "in use by a pod")
        del self.slices[name][step.start]

    def do_set_geometry(self, step):
        (name,) = step.gpus
        gpu = self.gpus[name]
        self.refuse_if(gpu.backend != "mig-manager", step, "no mig-manager on this node")
        self.refuse_if(not gpu.cuttable or not self.mig[name], step, "cannot be cut")
        self.refuse_if(bool(self.on(name)), step, "a pod runs on it")
        starting = [p for m in self.members(gpu.node) for p in self.on(m) if not p.available]
        self.refuse_if(bool(starting), step, "the device plugin stops under a pod that starts")
        made = by_default(gpu.sku, Counter(p.profile for p in step.layout))
        self.refuse_if(made != {p.start: p.profile for p in step.layout}, step, f"the driver makes {made}")
        self.slices[name] = made

    def do_start_replica(self, step):
        nodes = {self.gpus[name].node for name in step.gpus}
        self.refuse_if(len(nodes) != 1, step, "a gang stays in one node")
        for name in step.gpus:
            taken = [p for p in self.on(name) if step.profile == "gpu" or p.start == step.start]
            self.refuse_if(bool(taken), step, f"{taken} holds it")
            if step.profile == "gpu":
                self.refuse_if(self.mig[name], step, "the GPU is in MIG mode")
            else:
                self.refuse_if(not self.mig[name], step, "the GPU is not in MIG mode")
                self.refuse_if(self.slices[name].get(step.start) != step.profile, step, "no such slice")
        alive = sum(p.owner == step.owner for p in self.pods)
        self.refuse_if(alive >= self.most[step.owner], step, f"{alive} replicas are there already")
        starting = {id(p) for m in self.members(*nodes) for p in self.on(m) if not p.available}
        self.refuse_if(len(starting) >= STARTS_PER_NODE, step, "too many start on this node")
        self.pods.append(Pod(step.owner, step.profile, step.gpus, step.start))

    def do_wait_available(self, step):
        pod = self.pod(step)
        self.refuse_if(pod is None, step, "was never started")
        pod.available = True

    def do_drain_replica(self, step):
        pod = self.pod(step)
        left = sum(p.owner == step.owner and p.available for p in self.pods if p is not pod)
        self.refuse_if(left < self.minimum[step.owner], step, f"only {left} would be available")
        self.pods.remove(pod)

    def do_stop_replica(self, step):
        """With consent: its demand may go short until it serves again."""
        pod = self.pod(step)
        left = sum(p.owner == step.owner and p.available for p in self.pods if p is not pod)
        self.minimum = {**self.minimum, step.owner: min(left, self.minimum[step.owner])}
        self.pods.remove(pod)

    def pod(self, step):
        return next(
            (p for p in self.pods if (p.owner, p.gpus, p.start) == (step.owner, step.gpus, step.start)), None
        )

    def on(self, gpu):
        return [pod for pod in self.pods if gpu in pod.gpus]

    def members(self, node):
        return [name for name, gpu in self.gpus.items() if gpu.node == node]

    def check_ends_as(self, packing):
        """Every GPU holds what was wanted; where positions cannot be chosen, as many of each."""
        gangs = {}
        if not all(pod.available for pod in self.pods):
            raise Refused("somebody never got available")
        for layout in packing.layouts:
            owners = {p.start: p.owner for p in self.on(layout.id)}
            wanted = [(p.start, p.profile, p.owner) for p in layout.instances if p.profile != "gpu"]
            found = [(start, profile, owners.get(start)) for start, profile in self.slices[layout.id].items()]
            if self.gpus[layout.id].backend == "mig-manager":
                wanted, found = ([(0, *item[1:]) for item in items] for items in (wanted, found))
            if sorted(wanted, key=str) != sorted(found, key=str):
                raise Refused(f"{layout.id} holds {found}, wanted is {wanted}")
            for p in layout.instances:
                if p.profile == "gpu":
                    gang = (p.owner, p.gang or layout.id, self.gpus[layout.id].node)
                    gangs.setdefault(gang, []).append(layout.id)
        wanted = sorted((owner, tuple(ids)) for (owner, _, _), ids in gangs.items())
        found = sorted((p.owner, p.gpus) for p in self.pods if p.profile == "gpu")
        if wanted != found:
            raise Refused(f"whole GPUs: {found}, wanted is {wanted}")


def is_legal(sku, slices):
    """NVML's rules: listed starts, no memory slice twice, engines and compute within the board."""
    return BOARDS[sku].wrong([(profile, start) for start, profile in slices.items()]) is None


def by_default(sku, counts):
    """Create `counts` without naming positions: the first order of creation that works, largest first."""
    profiles = BOARDS[sku].profiles
    names = sorted(counts.elements(), key=lambda n: (profiles[n].memory, profiles[n].compute, n))
    for order in itertools.permutations(reversed(names)):
        made = {}
        for name in order:
            starts = [s for s in profiles[name].starts if s not in made and is_legal(sku, {**made, s: name})]
            if not starts:
                break
            made[max(starts)] = name
        else:
            return made
    return None
