"""The best plan of a small fleet of slices, by a Boolean for every owner at every place: slow and plain.

It shares no code with the product.
"""

import copy
import math

from ortools.sat.python import cp_model

from .cp_solver import cp_solver
from .oracle import BOARDS, FULL, Fleet

MICRO = 1_000_000


class Optimum:
    """One integer program, minimised stage by stage."""

    def __init__(self, documents):
        self.fleet = Fleet(copy.deepcopy(documents))
        self.model = cp_model.CpModel()
        self.at = {}  # (gpu, profile, start, demand) -> Boolean
        self.gpus = dict(self.fleet.gpus)
        self._grow()
        self.demands = self._demands()
        for gpu in self.gpus.values():
            self._places(gpu)
        self._counts()
        self._recuts()
        self._keeping()

    def _grow(self):
        """GPUs of nodes that pools may add."""
        self.nodes = []  # (Boolean, dollars, GPU ids)
        for name, pool in self.fleet.pools.items():
            nodes = pool.get("nodes", {})
            there = {g["node"] for g in self.fleet.gpus.values() if g.get("pool") == name}
            last = None
            for index in range(max(0, nodes.get("max", 0) - len(there))):
                ids = [f"{name}/{index}/{k}" for k in range(nodes.get("gpusPerNode", 8))]
                added = self.model.new_bool_var("")
                if last is not None:
                    self.model.add(added <= last)
                last = added
                for gpu_id in ids:
                    self.gpus[gpu_id] = {
                        "id": gpu_id,
                        "sku": pool["sku"],
                        "pricePerGPUHour": 0,
                        "migEnabled": nodes.get("migEnabled", False),
                        "new": added,
                    }
                price = float(pool.get("pricePerGPUHour", self.fleet.prices.get(pool["sku"])))
                self.nodes.append((added, price * len(ids), ids))

    def _demands(self):
        """Owner, profile, SKU (None: any), how many, priority; strangers come before all."""
        top = max((spec.get("priority", 0) for spec in self.fleet.requests.values()), default=0) + 1
        found = [
            (name, spec["profile"], spec.get("sku"), spec["count"], spec.get("priority", 0))
            for name, spec in self.fleet.requests.items()
        ]
        strangers = {}
        for gpu, instance in self.fleet.held():
            if instance["owner"] not in self.fleet.requests:
                key = (instance["owner"], instance["profile"], gpu["sku"])
                strangers[key] = strangers.get(key, 0) + 1
        return found + [(*key, count, top) for key, count in strangers.items()]

    def _options(self, gpu):
        """(profile, start) that may be on it."""
        board, mode = BOARDS[gpu["sku"]], self.fleet.mode(gpu)
        there = [(i["profile"], i["start"]) for i in gpu.get("instances", ())]
        if gpu.get("cuttable") is False and mode is not False:
            return there + ([(FULL, 0)] if mode is None else [])
        slices = [(p.name, start) for p in board.profiles.values() for start in p.starts]
        return (slices if mode is not False else []) + ([(FULL, 0)] if mode is not True else [])

    def _places(self, gpu):
        board, taken = BOARDS[gpu["sku"]], {}
        gpu["on"] = {}
        for profile, start in self._options(gpu):
            for index, (_, wanted, sku, count, _) in enumerate(self.demands):
                if wanted == profile and sku in (None, gpu["sku"]) and count:
                    here = self.model.new_bool_var("")
                    self.at[gpu["id"], profile, start, index] = here
                    gpu["on"].setdefault((profile, start), []).append(here)
        for (profile, start), here in gpu["on"].items():
            for cell in board.cells(profile, start):
                taken.setdefault(cell, []).extend(here)
        for sharing in taken.values():
            self.model.add_at_most_one(sharing)
        for kind, cap in enumerate(board.engines):
            self.model.add(
                sum(
                    (board.profiles[profile].engines[kind] if profile != FULL else cap) * sum(here)
                    for (profile, _), here in gpu["on"].items()
                )
                <= cap
            )
        gpu["used"] = self.model.new_bool_var("")
        everything = [here for places in gpu["on"].values() for here in places]
        for here in everything:
            self.model.add_implication(here, gpu["used"])
        self.model.add(sum(everything) >= gpu["used"])
        if "new" in gpu:
            self.model.add_implication(gpu["used"], gpu["new"])

    def _counts(self):
        self.placed = []
        for index, (_, _, _, count, _) in enumerate(self.demands):
            placed = sum(here for key, here in self.at.items() if key[3] == index)
            self.model.add(placed <= count)
            self.placed.append(placed)

    def _recuts(self):
        """A GPU is re-cut where something stands that was not there: the rest may stay."""
        for gpu in self.gpus.values():
            there = {(i["profile"], i["start"]) for i in gpu.get("instances", ())}
            gpu["recut"] = self.model.new_bool_var("")
            new = [
                here
                for (profile, start), places in gpu["on"].items()
                if (profile, start) not in there and profile != FULL
                for here in places
            ]
            for here in new:
                self.model.add_implication(here, gpu["recut"])
            self.model.add(sum(new) >= gpu["recut"])

    def _keeping(self):
        """Who stays, who moves and who just goes."""
        self.moved = []  # (Boolean, dollars)
        owners = {}
        for gpu, instance in self.fleet.held():
            owners.setdefault(instance["owner"], []).append((gpu, instance))
        for owner, instances in owners.items():
            mine = [index for index, demand in enumerate(self.demands) if demand[0] == owner]
            gone = []
            for gpu, instance in instances:
                key = (gpu["id"], instance["profile"], instance["start"])
                here = [self.at[*key, index] for index in mine if (*key, index) in self.at]
                stays, drop, move = (self.model.new_bool_var("") for _ in range(3))
                self.model.add_exactly_one(stays, drop, move)
                self.model.add(stays <= sum(here))
                if self.fleet.clears(gpu):
                    self.model.add_implication(stays, self.gpus[gpu["id"]]["recut"].Not())
                else:  # nothing leaves and comes back to the same place
                    self.model.add(stays >= sum(here))
                if instance.get("movable") is False and here:
                    self.model.add(stays == 1)
                gone.append(drop)
                self.moved.append((move, self.fleet.cost_of_moving(gpu, instance)))
            after = sum(self.placed[index] for index in mine)
            surplus = self.model.new_int_var(0, len(instances), "")
            self.model.add_max_equality(surplus, [0, len(instances) - after])
            self.model.add(sum(gone) == surplus)
        if self.fleet.move_budget is not None:
            self.model.add(sum(move for move, _ in self.moved) <= self.fleet.move_budget)

    def stages(self):
        """(name, expression, scale) in their order."""
        for priority in sorted({demand[4] for demand in self.demands}, reverse=True):
            mine = [i for i, demand in enumerate(self.demands) if demand[4] == priority and demand[3]]
            unit = math.lcm(*(self.demands[i][3] for i in mine))
            shares = (unit // self.demands[i][3] * (self.demands[i][3] - self.placed[i]) for i in mine)
            yield f"unmet[{priority}]", sum(shares), unit
        dollars = sum(
            round(MICRO * self.fleet.price(gpu) * self.fleet.horizon) * gpu["used"]
            for gpu in self.gpus.values()
            if "new" not in gpu
        )
        dollars += sum(round(MICRO * price * self.fleet.horizon) * added for added, price, _ in self.nodes)
        dollars += sum(round(MICRO * cost) * move for move, cost in self.moved)
        yield "dollars", dollars, MICRO
        fixed = {
            (gpu["id"], i["profile"], i["start"])
            for gpu, i in self.fleet.held()
            if i.get("movable") is False and i["owner"] not in self.fleet.requests
        }
        yield (
            "share",
            sum(
                round(MICRO * self._list_price(key[0]) * BOARDS[self.gpus[key[0]]["sku"]].share(key[1]))
                * here
                for key, here in self.at.items()
                if key[:3] not in fixed
            ),
            MICRO,
        )
        weight = len(self.gpus) + 1
        recut = sum(gpu["recut"] for gpu in self.gpus.values())
        yield "disruption", sum(move for move, _ in self.moved) * weight + recut, 1

    def _list_price(self, gpu_id):
        return self.fleet.prices[self.gpus[gpu_id]["sku"]]

    def solve(self):
        """The values of all stages."""
        values = {}
        for name, expression, scale in self.stages():
            self.model.minimize(expression)
            solver = cp_solver(60)
            status = solver.solve(self.model)
            assert status == cp_model.OPTIMAL, solver.status_name(status)
            values[name] = solver.objective_value / scale
            self.model.add(expression <= round(solver.objective_value))
        return values
