"""Bounds on the replicas that a fleet could hold if all that may move were gone: of one shape, and mixed."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from tangram.fleet import WHOLE_GPU, ShapeKey
from tangram.packing import GPUState, Instance, Problem
from tangram.packing.geometry.gangs import gangs_that_fit
from tangram.packing.geometry.layouts import maximal_layouts

Slots = tuple[tuple[str, int], ...]  # (profile, start)


class ReplicaBounds:
    """The GPUs of a problem, counted by what they leave room for."""

    def __init__(self, problem: Problem, planned: Collection[str]) -> None:
        """`planned`: owners whose instances count as room: they may be asked about."""
        self.problem = problem
        self._planned = frozenset(planned)
        self._found: dict[ShapeKey, int] = {}
        self._inside: dict[tuple[str, ...], ReplicaBounds] = {}
        # GPUs by SKU, what stays on those that may be cut, and whether they may be taken whole.
        self._gpus: Counter[tuple[str, Slots | None, bool]] = Counter()
        self._fixed: Counter[ShapeKey] = Counter()  # slices of GPUs that are not cut
        whole: Counter[tuple[str, str, int]] = Counter()  # GPUs by node, SKU and size of an NVLink domain
        sizes = Counter(gpu.node for gpu in problem.gpus)
        for gpu in problem.gpus:
            staying = tuple(i for i in gpu.instances if self._stays(i))
            uncut = not staying and (gpu.convertible or not gpu.mig_enabled)
            self._gpus[gpu.sku, self._slots(gpu, staying), uncut] += 1
            if uncut:
                whole[gpu.node, gpu.sku, gpu.nvlink_gpus] += 1
        self._whole = Counter((sku, link, n, sizes[node]) for (node, sku, link), n in whole.items())

    def inside(self, pools: tuple[str, ...]) -> "ReplicaBounds":
        """Return the rooms in some pools; none: everywhere."""
        if not pools:
            return self
        if pools not in self._inside:
            problem = replace(
                self.problem,
                gpus=tuple(gpu for gpu in self.problem.gpus if gpu.pool in pools),
                growable=tuple(pool for pool in self.problem.growable if pool.name in pools),
            )
            self._inside[pools] = ReplicaBounds(problem, self._planned)
        return self._inside[pools]

    def of(self, key: ShapeKey) -> int:
        """Return the most replicas of `key` that GPUs and nodes that may be added have room for."""
        if key not in self._found:
            self._found[key] = self._whole_gpus(key) if key.profile == WHOLE_GPU else self._mig_slices(key)
        return self._found[key]

    def most(self, values: Mapping[ShapeKey, float]) -> float:
        """Return a bound on the sum of the values of all replicas that there is room for, in any mix."""
        per_gpu: dict[str, float] = {}  # as a whole GPU, or as its share of a gang
        for key, value in values.items():
            if key.profile == WHOLE_GPU:
                per_gpu[key.sku] = max(per_gpu.get(key.sku, 0.0), value / key.gpus)
        total = sum(values.get(key, 0.0) * count for key, count in self._fixed.items())
        for (sku, slots, whole), gpus in self._gpus.items():
            total += gpus * max(self._cut_value(sku, slots, values), per_gpu.get(sku, 0.0) if whole else 0.0)
        for pool in self.problem.growable:
            cut = self._cut_value(pool.sku, (), values) if pool.mig_enabled else per_gpu.get(pool.sku, 0.0)
            total += pool.max_nodes * pool.node_size * cut
        return total

    def _stays(self, instance: Instance) -> bool:
        return instance.owner is not None and not instance.movable and instance.owner not in self._planned

    def _slots(self, gpu: GPUState, staying: tuple[Instance, ...]) -> Slots | None:
        """Return what stays on a GPU that may be cut; None: it may not, and its slices are counted."""
        if any(instance.profile == WHOLE_GPU for instance in staying):
            return None
        if gpu.convertible or (gpu.mig_enabled and gpu.cuttable):
            return tuple((i.profile, i.start) for i in staying)
        if gpu.mig_enabled:
            self._fixed.update(ShapeKey(gpu.sku, i.profile) for i in gpu.instances if i not in staying)
        return None

    def _cut_value(self, sku: str, slots: Slots | None, values: Mapping[ShapeKey, float]) -> float:
        """Return the largest sum of values of slices on one GPU beside those that stay."""
        board = self.problem.board(sku)
        if board is None or slots is None or not any(key.sku == sku for key in values):
            return 0.0
        layouts = ({(placed.profile, placed.start) for placed in layout} for layout in maximal_layouts(board))
        free = (layout - {*slots} for layout in layouts if layout.issuperset(slots))
        sums = (sum(values.get(ShapeKey(sku, profile), 0.0) for profile, _ in slices) for slices in free)
        return max(sums, default=0.0)

    def _mig_slices(self, key: ShapeKey) -> int:
        count = self._fixed[key]
        for (sku, staying, _), gpus in self._gpus.items():
            if sku == key.sku and staying is not None:
                count += gpus * self._beside(key, staying)
        new = (p for p in self.problem.growable if p.sku == key.sku and p.mig_enabled)
        return count + sum(p.max_nodes * p.node_size for p in new) * self._beside(key, ())

    def _beside(self, key: ShapeKey, staying: Slots) -> int:
        """Slices of one profile that fit on one GPU beside those that stay."""
        board = self.problem.board(key.sku)
        options = board.options if board else ()
        used, count = 0, 0
        for option in options:
            if (option.profile, option.start) in staying:
                used |= option.mask
        for option in sorted(options, key=lambda o: o.start):
            if option.profile == key.profile and not option.mask & used:
                used, count = used | option.mask, count + 1
        return count

    def _whole_gpus(self, key: ShapeKey) -> int:
        size, total = key.gpus, 0
        for (sku, linked, gpus, node_gpus), nodes in self._whole.items():
            if sku == key.sku:
                total += nodes * gangs_that_fit(size, free=gpus, node_gpus=node_gpus, nvlink_gpus=linked)
        for pool in self.problem.growable:
            if pool.sku == key.sku and not pool.mig_enabled:
                gpus = pool.node_size
                per_node = gangs_that_fit(size, free=gpus, node_gpus=gpus, nvlink_gpus=pool.nvlink_gpus)
                total += pool.max_nodes * per_node
        return total
