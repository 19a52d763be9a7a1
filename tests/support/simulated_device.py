"""A GPU's memory in place of one: counts every tensor that torch allocates, as a caching allocator would."""

import gc
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class SimulatedDevice(TorchDispatchMode):
    """`DeviceMemory` over the tensors that are made while it is active; `trim` gives back what was freed."""

    def __init__(self, total, context):
        super().__init__()
        self.total, self.context = total, context
        self.live = 0  # bytes of tensors
        self.held = 0  # bytes, with those that the allocator keeps
        self.peak = 0
        self.read_at_end = 0  # bytes of tensors when free memory was read last
        self.graphs = 0  # bytes that the driver keeps for captured graphs
        self._known = set()

    def __enter__(self):
        # No tensor of an older object is counted here: `trim` leaves them out of garbage collection.
        gc.collect()
        gc.freeze()
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return result

    def _count(self, tensor):
        if tensor.is_mkldnn:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.held = max(self.held, self.live)
        self.peak = max(self.peak, self.held)
        assert self.context + self.graphs + self.held <= self.total, "more is allocated than the device has"
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key, size):
        self._known.discard(key)
        self.live -= size

    def free_and_total(self):
        self.read_at_end = self.live
        return self.total - self.context - self.graphs - self.held, self.total

    def allocated(self):
        return self.live

    def reserved(self):
        return self.held

    def peak_reserved(self):
        return self.peak

    def reset_peak(self):
        self.peak = self.held

    def trim(self):
        gc.collect()
        self.held = self.live
