"""How many replicas of one shape a fleet could hold if all that may move were gone: a bound, quickly."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from tangram.fleet import WHOLE_GPU
from tangram.packing import GPUState, Instance, Problem, ShapeKey

Slots = tuple[tuple[str, int], ...]  # (profile, start)


class Rooms:
    """The GPUs of a problem, counted by what they leave room for."""

    def __init__(self, problem: Problem, planned: Collection[str] = ()) -> None:
        """`planned`: owners whose instances count as room: they may be asked about."""
        self.problem = problem
        self._planned = frozenset(planned)
        self._found: dict[ShapeKey, int] = {}
        self._inside: dict[tuple[str, ...], Rooms] = {}
        # GPUs to be cut, by what stays on them; slices of GPUs that are not cut, by SKU and profile.
        self._cut: Counter[tuple[str, Slots]] = Counter()
        self._fixed: Counter[ShapeKey] = Counter()
        whole: Counter[tuple[str, str, bool]] = Counter()  # GPUs by node, SKU and NVLink
        sizes = Counter(gpu.node for gpu in problem.gpus)
        for gpu in problem.gpus:
            strangers = tuple(i for i in gpu.instances if self._stays(i))
            self._slices(gpu, strangers)
            if not strangers and (gpu.convertible or not gpu.mig_enabled):
                whole[gpu.node, gpu.sku, gpu.nvlink] += 1
        self._whole = Counter((sku, link, n, sizes[node]) for (node, sku, link), n in whole.items())

    def inside(self, pools: tuple[str, ...]) -> "Rooms":
        """Return the rooms in some pools; none: everywhere."""
        if not pools:
            return self
        if pools not in self._inside:
            mine = replace(
                self.problem,
                gpus=tuple(gpu for gpu in self.problem.gpus if gpu.pool in pools),
                growable=tuple(pool for pool in self.problem.growable if pool.name in pools),
            )
            self._inside[pools] = Rooms(mine, self._planned)
        return self._inside[pools]

    def of(self, key: ShapeKey) -> int:
        """Return the most replicas of `key` that GPUs and nodes that may be added have room for."""
        if key not in self._found:
            self._found[key] = self._whole_gpus(key) if key.profile == WHOLE_GPU else self._mig_slices(key)
        return self._found[key]

    def _stays(self, instance: Instance) -> bool:
        return instance.owner is not None and not instance.movable and instance.owner not in self._planned

    def _slices(self, gpu: GPUState, strangers: tuple[Instance, ...]) -> None:
        if gpu.convertible or (gpu.mig_enabled and gpu.cuttable):
            self._cut[gpu.sku, tuple((i.profile, i.start) for i in strangers)] += 1
        elif gpu.mig_enabled:
            self._fixed.update(ShapeKey(gpu.sku, i.profile) for i in gpu.instances if i not in strangers)

    def _mig_slices(self, key: ShapeKey) -> int:
        found = self._fixed[key]
        for (sku, strangers), gpus in self._cut.items():
            if sku == key.sku:
                found += gpus * self._beside(key, strangers)
        new = sum(
            p.max_nodes * p.node_size for p in self.problem.growable if p.sku == key.sku and p.mig_enabled
        )
        return found + new * self._beside(key, ())

    def _beside(self, key: ShapeKey, strangers: Slots) -> int:
        """Slices of one profile that fit on one GPU beside those that stay."""
        board = self.problem.board(key.sku)
        options = board.options if board else ()
        used, count = 0, 0
        for option in options:
            if (option.profile, option.start) in strangers:
                used |= option.mask
        for option in sorted(options, key=lambda o: o.start):
            if option.profile == key.profile and not option.mask & used:
                used, count = used | option.mask, count + 1
        return count

    def _whole_gpus(self, key: ShapeKey) -> int:
        size, total = key.tensor_parallel, 0
        for (sku, nvlink, gpus, node_size), nodes in self._whole.items():
            # Without NVLink a replica takes one GPU or the whole node.
            if sku == key.sku and (nvlink or size in {1, node_size}):
                total += nodes * (gpus // size)
        for pool in self.problem.growable:
            if pool.sku == key.sku and not pool.mig_enabled:
                split = pool.nvlink or size in {1, pool.node_size}
                total += pool.max_nodes * (pool.node_size // size) * split
        return total
