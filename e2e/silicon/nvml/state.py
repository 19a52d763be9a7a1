"""The GPUs of one node as their driver knows them, and what happens to them from outside of NVML.

Everything here is a value: an operation returns a new state. What NVML calls do is in `calls`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from e2e.silicon.board import Machine, device_uuid
from e2e.silicon.catalog import Board, Profile
from e2e.silicon.nvml.codes import CallFailed, ReturnCode
from e2e.silicon.nvml.placements import Placed, fits, instance_id

# Seconds on real silicon: the DRA driver's documents name 1 s for a destroy, HAMi measured 1.5 s for a slice.
SILICON_LATENCIES = {
    "nvmlDeviceCreateGpuInstance": 1.0,
    "nvmlDeviceCreateGpuInstanceWithPlacement": 1.0,
    "nvmlGpuInstanceCreateComputeInstance": 0.5,
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": 0.5,
    "nvmlComputeInstanceDestroy": 0.5,
    "nvmlGpuInstanceDestroy": 1.0,
    "nvmlDeviceSetMigMode": 2.0,
}
# MiB that a CUDA process sees, where it depends on the start (MIG User Guide, A100-SXM4-40GB).
MEMORY_BY_START = {("A100-40GB-SXM", "3g.20gb"): {0: 20096, 4: 20224}}
# Bytes that the driver keeps of a GPU with MIG off (recorded, 580.159); no source states those of others.
RESERVED_BYTES = {"H200-141GB-SXM": 644_939_776}
# From here on MIG calls that change nothing are answered while MIG is off, too. Recorded with 580.159; for
# older branches nvml.h counts, which says NOT_SUPPORTED.
FIRST_BRANCH_THAT_ANSWERS_WHILE_OFF = 580
MIB = 1 << 20
XID_FELL_OFF_THE_BUS = 79


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance; `start` and `size` count the compute slices of its GPU instance.

    `serial` makes its handles: no two objects of a node ever share one. `index` is that of its MIG device.
    """

    id: int
    profile_id: int
    start: int
    size: int
    serial: int
    index: int


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance; without a compute instance it is no device. `start` is its first memory slice."""

    id: int
    profile: str
    start: int
    serial: int
    compute_instances: tuple[ComputeInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Its place in `NvmlState.gpus` is its index: a reboot may change it, not `minor` and UUID."""

    uuid: str
    minor: int
    serial: int
    mig_mode: bool = False
    pending_mig_mode: bool = False
    instances: tuple[GpuInstance, ...] = ()
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A CUDA process; on a GPU with MIG on it is on one compute instance."""

    pid: int
    gpu: str
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_mib: int = 0
    sm_percent: float = 100.0  # how busy it keeps the SMs, and the memory, of its GPU or GPU instance
    memory_percent: float = 50.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong at the `nth` call of a name from now on, once unless `times` says otherwise.

    The call fails with `code`; or it `hangs`; or it only takes `delay_s` longer. `takes_effect`: the driver
    does what it is asked before the call fails or hangs. `times` 0: it goes wrong from then on.
    """

    call: str
    nth: int = 1
    code: str | None = None
    hangs: bool = False
    delay_s: float = 0.0
    takes_effect: bool = False
    times: int = 1


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """An event that an event set can wait for: an XID, or a change of MIG configuration."""

    number: int
    gpu: str
    kind: int  # a bit of nvmlEventType*
    data: int  # the XID
    gpu_instance: int = 0xFFFFFFFF
    compute_instance: int = 0xFFFFFFFF


EVENT_XID = 0x8
EVENT_MIG_CONFIG_CHANGE = 0x100
MOST_EVENTS = 256  # as a driver's ring buffer


@dataclass(frozen=True, slots=True)
class NvmlState:
    """One node's GPUs, in the order of their indexes.

    `holders` are pairs of a client process and a UUID: NVML clients that took a handle of that GPU and have
    not shut down. `self_resets`: setting the mode on Ampere resets an idle GPU at once, as on bare metal;
    without it the mode stays pending, as in a virtual machine (nvml.h, nvmlDeviceSetMigMode).
    """

    board: Board
    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]
    next_serial: int
    processes: tuple[GpuProcess, ...] = ()
    faults: tuple[Fault, ...] = ()
    latencies: tuple[tuple[str, float], ...] = ()
    holders: frozenset[tuple[str, str]] = frozenset()
    events: tuple[GpuEvent, ...] = ()
    self_resets: bool = False
    boots: int = field(default=0)

    @property
    def needs_reset(self) -> bool:
        """Whether a change of MIG mode waits for a reset, as before Hopper (MIG User Guide)."""
        return float(self.board.compute_capability) < 9.0

    def gpu(self, uuid: str) -> Gpu:
        """Return the GPU of a UUID, or raise `CallFailed` with NOT_FOUND."""
        gpu = next((one for one in self.gpus if one.uuid == uuid), None)
        if gpu is None:
            raise CallFailed(ReturnCode.NOT_FOUND, f"no GPU {uuid}")
        return gpu

    def with_gpu(self, gpu: Gpu) -> NvmlState:
        """Return the state in which `gpu` replaces the GPU of the same UUID."""
        return replace(self, gpus=tuple(gpu if one.uuid == gpu.uuid else one for one in self.gpus))

    @property
    def branch(self) -> int:
        """The branch of the driver: 580 of 580.159.04."""
        return int(self.driver.partition(".")[0])

    @property
    def answers_while_off(self) -> bool:
        """Whether the driver answers MIG calls that change nothing while MIG is off."""
        return self.branch >= FIRST_BRANCH_THAT_ANSWERS_WHILE_OFF

    def reserved_bytes(self, gpu: Gpu) -> int:
        """Return the memory of a GPU that the driver keeps; with MIG on, no source states it."""
        return 0 if gpu.mig_mode else RESERVED_BYTES.get(self.board.sku, 0)

    def profile(self, instance: GpuInstance) -> Profile:
        """Return the profile of an instance."""
        return self.board.profiles[instance.profile]

    def placed(self, gpu: Gpu) -> list[Placed]:
        """Return the placements of a GPU's instances."""
        return [(self.profile(one), one.start) for one in gpu.instances]

    def processes_on(
        self, gpu: Gpu, instance: GpuInstance | None = None, compute: ComputeInstance | None = None
    ) -> tuple[GpuProcess, ...]:
        """Return the CUDA processes on a GPU, on one instance of it, or on one compute instance of that."""
        return tuple(
            one
            for one in self.processes
            if one.gpu == gpu.uuid
            and (instance is None or one.gpu_instance == instance.id)
            and (compute is None or one.compute_instance == compute.id)
        )

    def memory_mib(self, instance: GpuInstance) -> int:
        """Return the memory that processes on an instance share; it may depend on the start."""
        by_start = MEMORY_BY_START.get((self.board.sku, instance.profile), {})
        return by_start.get(instance.start, self.profile(instance).memory_mib)

    def mig_devices(self, gpu: Gpu) -> tuple[tuple[str, GpuInstance, ComputeInstance], ...]:
        """Return UUID, GPU instance and compute instance of each MIG device, by index."""
        pairs = [(one, compute) for one in gpu.instances for compute in one.compute_instances]
        pairs.sort(key=lambda pair: pair[1].index)
        return tuple((mig_uuid(gpu.uuid, one.id, compute.id), one, compute) for one, compute in pairs)


def mig_uuid(gpu: str, gpu_instance: int, compute_instance: int) -> str:
    """Return the UUID of a MIG device.

    Drivers from R470 on print UUIDs of version 5, which hash a name: the same ids on the same GPU have the
    same UUID again, whatever profile they have then.
    """
    return f"MIG-{uuid5(NAMESPACE_OID, f'{gpu}/{gpu_instance}/{compute_instance}')}"


def node_state(machine: Machine, node: str) -> NvmlState:
    """Return the state of a node whose GPUs have the instances of a board file."""
    state = NvmlState(machine.board, machine.driver, machine.cuda, (), next_serial=1)
    for one in machine.gpus:
        is_cut = one.instances is not None
        gpu = Gpu(device_uuid("GPU", node, one.index), one.index, state.next_serial, is_cut, is_cut)
        state = replace(state, gpus=(*state.gpus, gpu), next_serial=state.next_serial + 1)
        for instance in one.instances or ():
            state, made = create_instance(state, gpu.uuid, instance.profile, instance.start)
            state, _ = create_compute_instance(
                state, gpu.uuid, made, full_compute_profile(instance.profile), 0
            )
    return state


def create_instance(
    state: NvmlState, gpu: str, profile: Profile, start: int
) -> tuple[NvmlState, GpuInstance]:
    """Create a GPU instance; INSUFFICIENT_RESOURCES where it does not fit."""
    parent = state.gpu(gpu)
    if not fits(state.board, state.placed(parent), profile, start):
        raise CallFailed(ReturnCode.INSUFFICIENT_RESOURCES, f"{profile.name}@{start} does not fit")
    number = instance_id(state.board, start, profile.size)
    made = GpuInstance(number, profile.name, start, state.next_serial)
    instances = tuple(sorted((*parent.instances, made), key=lambda one: one.id))
    state = replace(state, next_serial=state.next_serial + 1)
    return state.with_gpu(replace(parent, instances=instances)), made


# Compute instance profiles have the same numbers on every board: nvml.h, NVML_COMPUTE_INSTANCE_PROFILE_*.
COMPUTE_PROFILE_SIZES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6}


def compute_profiles(profile: Profile) -> dict[int, int]:
    """Return compute slices by id of each compute instance profile; the guide lists no 3c on a 4g."""
    sizes = {number: size for number, size in COMPUTE_PROFILE_SIZES.items() if size <= profile.compute_slices}
    if profile.compute_slices == 4:
        sizes.pop(2)
    return sizes


def full_compute_profile(profile: Profile) -> int:
    """Return the id of the compute instance profile that covers the whole GPU instance."""
    return next(
        number for number, size in compute_profiles(profile).items() if size == profile.compute_slices
    )


def compute_starts(profile: Profile, size: int) -> range:
    """Return where a compute instance of so many slices may start in a GPU instance."""
    return range(0, profile.compute_slices - size + 1, size)


def free_compute_starts(state: NvmlState, instance: GpuInstance, size: int) -> list[int]:
    """Return the starts at which such a compute instance overlaps no other."""
    used = {piece for one in instance.compute_instances for piece in range(one.start, one.start + one.size)}
    starts = compute_starts(state.profile(instance), size)
    return [start for start in starts if not used & set(range(start, start + size))]


def create_compute_instance(
    state: NvmlState, gpu: str, instance: GpuInstance, profile_id: int, start: int
) -> tuple[NvmlState, ComputeInstance]:
    """Create a compute instance; INSUFFICIENT_RESOURCES where another has its slices."""
    parent, size = state.gpu(gpu), COMPUTE_PROFILE_SIZES[profile_id]
    if start not in free_compute_starts(state, instance, size):
        raise CallFailed(ReturnCode.INSUFFICIENT_RESOURCES, f"no room for {size} compute slices at {start}")
    ids = {one.id for one in instance.compute_instances}
    indexes = {compute.index for one in parent.instances for compute in one.compute_instances}
    made = ComputeInstance(
        id=next(number for number in range(len(ids) + 1) if number not in ids),
        profile_id=profile_id,
        start=start,
        size=size,
        serial=state.next_serial,
        index=next(number for number in range(len(indexes) + 1) if number not in indexes),
    )
    cut = replace(instance, compute_instances=(*instance.compute_instances, made))
    state = replace(state, next_serial=state.next_serial + 1)
    return state.with_gpu(_with_instance(parent, cut)), made


def destroy_compute_instance(
    state: NvmlState, gpu: Gpu, instance: GpuInstance, compute: ComputeInstance
) -> NvmlState:
    """Remove a compute instance; IN_USE while a process runs on it."""
    if state.processes_on(gpu, instance, compute):
        raise CallFailed(ReturnCode.IN_USE, "a process runs on the compute instance")
    rest = tuple(one for one in instance.compute_instances if one.id != compute.id)
    return state.with_gpu(_with_instance(gpu, replace(instance, compute_instances=rest)))


def destroy_instance(state: NvmlState, gpu: Gpu, instance: GpuInstance) -> NvmlState:
    """Remove a GPU instance; IN_USE while it has a compute instance or a process."""
    if instance.compute_instances or state.processes_on(gpu, instance):
        raise CallFailed(ReturnCode.IN_USE, "compute instances or processes are on the GPU instance")
    return state.with_gpu(
        replace(gpu, instances=tuple(one for one in gpu.instances if one.id != instance.id))
    )


def _with_instance(gpu: Gpu, instance: GpuInstance) -> Gpu:
    return replace(gpu, instances=tuple(instance if one.id == instance.id else one for one in gpu.instances))


def set_mig_mode(state: NvmlState, gpu: Gpu, mode: bool, client: str) -> tuple[NvmlState, ReturnCode]:
    """Ask for a MIG mode. Returns the activation status: anything but SUCCESS leaves the mode pending.

    A CUDA process on the GPU, or another NVML client with a handle of it, makes it IN_USE. Where the mode
    changes, instances vanish and handles of the GPU have to be taken again.
    """
    if mode == gpu.mig_mode:
        return state.with_gpu(replace(gpu, pending_mig_mode=mode)), ReturnCode.SUCCESS
    state = state.with_gpu(replace(gpu, pending_mig_mode=mode))
    others = {holder for holder, held in state.holders if held == gpu.uuid and holder != client}
    if state.processes_on(gpu) or others:
        return state, ReturnCode.IN_USE
    if state.needs_reset and not state.self_resets:
        return state, ReturnCode.RESET_REQUIRED
    return _activate(state, gpu.uuid), ReturnCode.SUCCESS


def _activate(state: NvmlState, uuid: str) -> NvmlState:
    """Begin a GPU anew in its pending mode: no instances, and no handle that was taken before is valid."""
    gpu = state.gpu(uuid)
    gpu = replace(gpu, serial=state.next_serial, mig_mode=gpu.pending_mig_mode, instances=(), is_lost=False)
    return replace(state.with_gpu(gpu), next_serial=state.next_serial + 1)


def reset(state: NvmlState, uuid: str) -> NvmlState:
    """Reset one GPU, as `nvidia-smi --gpu-reset` does; IN_USE while a process or an NVML client holds it."""
    gpu = state.gpu(uuid)
    if gpu.is_lost:
        raise CallFailed(ReturnCode.GPU_IS_LOST, "a GPU that fell off the bus needs a reboot")
    if state.processes_on(gpu) or any(held == uuid for _, held in state.holders):
        raise CallFailed(ReturnCode.IN_USE, "processes or NVML clients hold the GPU")
    return _activate(state, uuid)


def reboot(state: NvmlState, order: Sequence[int] | None = None) -> NvmlState:
    """Start the node again. `order`: the minor numbers in the order of the new indexes.

    Instances, processes and clients are gone. Before Hopper the InfoROM holds the MIG mode; from Hopper on it
    is off after a reboot (MIG User Guide, Enable MIG Mode).
    """
    state = replace(state, processes=(), holders=frozenset(), events=(), boots=state.boots + 1)
    for gpu in state.gpus:
        mode = gpu.pending_mig_mode and state.needs_reset
        state = _activate(state.with_gpu(replace(gpu, pending_mig_mode=mode)), gpu.uuid)
    return state if order is None else reorder(state, order)


def reorder(state: NvmlState, order: Sequence[int]) -> NvmlState:
    """Give the GPUs other indexes; `order` has the minor number of each GPU once."""
    by_minor = {gpu.minor: gpu for gpu in state.gpus}
    if sorted(order) != sorted(by_minor):
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"order: expected each of {sorted(by_minor)} once")
    return replace(state, gpus=tuple(by_minor[minor] for minor in order))


def start_process(
    state: NvmlState, device: str, memory_mib: int = 0, pid: int | None = None
) -> tuple[NvmlState, int]:
    """Start a CUDA process on the GPU or MIG device of a UUID; returns its pid.

    NOT_FOUND: there is no such device. NOT_SUPPORTED: with MIG on, only MIG devices compute. MEMORY: less
    memory is free.
    """
    if pid is None:
        pid = max((one.pid for one in state.processes), default=100_000) + 1
    if any(one.pid == pid for one in state.processes):
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"pid {pid} runs already")
    for gpu in state.gpus:
        for uuid, instance, compute in state.mig_devices(gpu):
            if uuid == device:
                free = state.memory_mib(instance) - used_mib(state.processes_on(gpu, instance))
                return _started(
                    state, gpu, free, GpuProcess(pid, gpu.uuid, instance.id, compute.id, memory_mib)
                )
    gpu = state.gpu(device)
    if gpu.mig_mode:
        raise CallFailed(ReturnCode.NOT_SUPPORTED, f"{device} has MIG on")
    unreserved = state.board.memory_mib - -(-state.reserved_bytes(gpu) // MIB)
    free = unreserved - used_mib(state.processes_on(gpu))
    return _started(state, gpu, free, GpuProcess(pid, gpu.uuid, memory_mib=memory_mib))


def _started(state: NvmlState, gpu: Gpu, free_mib: int, process: GpuProcess) -> tuple[NvmlState, int]:
    if gpu.is_lost:
        raise CallFailed(ReturnCode.GPU_IS_LOST, gpu.uuid)
    if process.memory_mib > free_mib:
        raise CallFailed(ReturnCode.MEMORY, f"{process.memory_mib} MiB asked, {free_mib} MiB free")
    return replace(state, processes=(*state.processes, process)), process.pid


def used_mib(processes: Sequence[GpuProcess]) -> int:
    """Return the memory that these processes hold."""
    return sum(one.memory_mib for one in processes)


def stop_process(state: NvmlState, pid: int) -> NvmlState:
    """End a CUDA process; NOT_FOUND: none has this pid."""
    if all(one.pid != pid for one in state.processes):
        raise CallFailed(ReturnCode.NOT_FOUND, f"no process {pid}")
    return replace(state, processes=tuple(one for one in state.processes if one.pid != pid))


def raise_xid(state: NvmlState, uuid: str, xid: int) -> NvmlState:
    """Report an XID of a GPU. With 79, fallen off the bus, every later call on it returns GPU_IS_LOST."""
    gpu = state.gpu(uuid)
    if xid == XID_FELL_OFF_THE_BUS:
        state = state.with_gpu(replace(gpu, is_lost=True))
    return with_event(state, uuid, EVENT_XID, xid)


def with_event(state: NvmlState, uuid: str, kind: int, data: int = 0) -> NvmlState:
    """Return the state with one more event, without the oldest of too many."""
    event = GpuEvent(state.next_serial, uuid, kind, data)
    return replace(state, events=(*state.events, event)[-MOST_EVENTS:], next_serial=state.next_serial + 1)


def add_fault(state: NvmlState, fault: Fault) -> NvmlState:
    """Let something go wrong at a later call; INVALID_ARGUMENT: a code that NVML does not have."""
    if fault.code is not None and fault.code not in ReturnCode.__members__:
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"no return code {fault.code}")
    return replace(state, faults=(*state.faults, fault))


def release_holder(state: NvmlState, client: str) -> NvmlState:
    """Forget an NVML client that shut down or died."""
    return replace(state, holders=frozenset(pair for pair in state.holders if pair[0] != client))


def to_json(state: NvmlState) -> dict[str, Any]:
    """Return what a driver keeps while clients come and go; `from_json` reads it. Clients are not in it."""
    raw = asdict(replace(state, holders=frozenset()))
    del raw["holders"]
    return raw | {"board": {"sku": state.board.sku, "name": state.board.name}}


def from_json(raw: dict[str, Any], board: Board) -> NvmlState:
    """Return the state that `to_json` wrote, of a node whose GPUs are `board`."""
    return NvmlState(
        **(
            raw
            | {
                "board": board,
                "gpus": tuple(_gpu(one) for one in raw["gpus"]),
                "processes": tuple(GpuProcess(**one) for one in raw["processes"]),
                "faults": tuple(Fault(**one) for one in raw["faults"]),
                "latencies": tuple((name, seconds) for name, seconds in raw["latencies"]),
                "events": tuple(GpuEvent(**one) for one in raw["events"]),
            }
        )
    )


def _gpu(raw: dict[str, Any]) -> Gpu:
    return Gpu(**(raw | {"instances": tuple(_instance(one) for one in raw["instances"])}))


def _instance(raw: dict[str, Any]) -> GpuInstance:
    computes = tuple(ComputeInstance(**one) for one in raw["compute_instances"])
    return GpuInstance(**(raw | {"compute_instances": computes}))
