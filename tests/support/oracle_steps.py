"""Carries out the steps of a plan one by one on GPUs that refuse what real ones would refuse."""

import random

from .oracle import FULL, board_of, sites


def steps(fleet, plan, orders=2):
    """What goes wrong with the steps, in their own order and in another one that `after` allows."""
    numbers = [step["number"] for step in plan["steps"]]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"they are numbered {numbers}"
        return
    for step in plan["steps"]:
        if any(number >= step["number"] for number in step["after"]):
            yield f"step {step['number']} comes after {step['after']}"
    yield from Simulator(fleet, plan).run(plan["steps"])
    rng = random.Random(7)
    for _ in range(orders - 1):
        order = _any_order(plan["steps"], rng)
        for text in Simulator(fleet, plan).run(order):
            yield f"in the order {[step['number'] for step in order]}: {text}"


def _any_order(steps, rng):
    """One of the orders that `after` allows."""
    waiting, done, order = list(steps), set(), []
    while waiting:
        ready = [step for step in waiting if done.issuperset(step["after"])]
        step = rng.choice(ready)
        waiting.remove(step)
        done.add(step["number"])
        order.append(step)
    return order


class Simulator:
    """A fleet that refuses what real GPUs and a careful operator would refuse."""

    def __init__(self, fleet, plan):
        self.fleet, self.plan = fleet, plan
        self.slices = {gpu_id: set() for gpu_id in fleet.gpus}
        self.mig = {}
        self.holds = {}  # site -> [owner, available]
        for gpu_id, gpu in fleet.gpus.items():
            self.mig[gpu_id] = bool(fleet.mode(gpu))
            for i in gpu.get("instances", ()):
                if i["profile"] != FULL:
                    self.slices[gpu_id].add((i["profile"], i["start"]))
                if i.get("owner"):
                    self.holds[(gpu_id, i["profile"], i["start"])] = [i["owner"], True]
        had, has = self._count(o for o, _ in self.holds.values()), self._count(sites(plan["gpus"]).values())
        self.floor = {owner: min(count, has.get(owner, 0)) for owner, count in had.items()}
        self.coming = dict.fromkeys(had, 0)

    @staticmethod
    def _count(owners):
        found = {}
        for owner in owners:
            found[owner] = found.get(owner, 0) + 1
        return found

    def run(self, steps):
        """What goes wrong when these steps are done one by one."""
        for step in steps:
            handler = getattr(self, "_" + step["kind"].replace("-", "_"))
            reason = handler(step)
            if reason:
                yield f"step {step['number']} {step['kind']} {step.get('owner', '')}: {reason}"
                return
        if "stepsMissing" in self.plan:
            return
        after = sites(self.plan["gpus"])
        if {site: owner for site, (owner, _) in self.holds.items()} != after:
            yield f"ends with {self.holds} instead of {after}"
        if not all(available for _, available in self.holds.values()):
            yield "ends before all are available"
        for gpu in self.plan["gpus"]:
            wanted = {
                (i["profile"], i["start"])
                for i in gpu["instances"] + gpu.get("free", [])
                if i["profile"] != FULL
            }
            if self.slices.get(gpu["id"], set()) != wanted:
                yield f"ends with {self.slices[gpu['id']]} on {gpu['id']} instead of {wanted}"

    def _taken(self, gpu_id):
        return [site for site in self.holds if site[0] == gpu_id]

    def _site(self, step):
        return (step["gpus"][0], step["profile"], step["start"])

    def _add_node(self, step):
        for gpu in self.plan["gpus"]:
            if gpu["id"] not in self.slices and gpu["node"] == step["node"]:
                self.slices[gpu["id"]] = set()
                pool = self.fleet.pools[step["pool"]]
                self.mig[gpu["id"]] = pool["nodes"].get("migEnabled", False)

    def _set_mode(self, step):
        (gpu_id,) = step["gpus"]
        if gpu_id not in self.mig:
            return "the GPU is not there"
        if self._taken(gpu_id) or self.slices[gpu_id]:
            return "the GPU is in use"
        if self.fleet.gpus.get(gpu_id, {}).get("migEnabled") not in (None, step["migEnabled"]):
            return "its mode is what it is"
        self.mig[gpu_id] = step["migEnabled"]
        return None

    def _create_slice(self, step):
        gpu_id, *slice_ = self._site(step)
        if not self.mig.get(gpu_id):
            return "not in MIG mode"
        if self.fleet.clears(self.fleet.gpus.get(gpu_id, {})):
            return "the MIG manager sets whole layouts"
        self.slices[gpu_id].add(tuple(slice_))
        return board_of(self.fleet, self.plan, gpu_id).wrong(sorted(self.slices[gpu_id]))

    def _destroy_slice(self, step):
        gpu_id, *slice_ = self._site(step)
        if tuple(slice_) not in self.slices[gpu_id]:
            return "there is no such slice"
        if self._site(step) in self.holds:
            return "it is in use"
        self.slices[gpu_id].remove(tuple(slice_))
        return None

    def _set_geometry(self, step):
        (gpu_id,) = step["gpus"]
        if self._taken(gpu_id):
            return f"{self._taken(gpu_id)} are in use"
        self.slices[gpu_id] = {(i["profile"], i["start"]) for i in step["layout"]}
        self.mig[gpu_id] = True
        return board_of(self.fleet, self.plan, gpu_id).wrong(sorted(self.slices[gpu_id]))

    def _start_replica(self, step):
        site = self._site(step)
        if site in self.holds:
            return f"{site} is taken"
        if site[1] == FULL:
            if site[0] not in self.mig or self.mig[site[0]] or self._taken(site[0]):
                return f"{site[0]} is in MIG mode or in use"
        elif site[1:] not in self.slices[site[0]]:
            return f"{site} does not exist"
        self.holds[site] = [step["owner"], False]
        return None

    def _wait_available(self, step):
        site = self._site(step)
        if self.holds.get(site, [None])[0] != step["owner"]:
            return f"nobody started at {site}"
        self.holds[site][1] = True
        return None

    def _drain_replica(self, step):
        site, owner = self._site(step), step["owner"]
        if self.holds.get(site, [None])[0] != owner:
            return f"{owner} is not at {site}"
        del self.holds[site]
        serving = sum(who == owner and available for who, available in self.holds.values())
        if serving < self.floor.get(owner, 0):
            return f"{serving} replicas are left of {self.floor[owner]}"
        return None
