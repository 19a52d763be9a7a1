"""The board file: which GPUs a node pretends to have and how each is cut, checked as a driver would."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from e2e.silicon.catalog import DEFAULT_CATALOG, ENGINES, Board, Profile, load_board

WHOLE_GPU = "nvidia.com/gpu"
_KEYS = {"sku", "name", "driver", "cuda", "machine", "memoryMiB", "gpus"}


class BoardError(ValueError):
    """The board file asks for silicon that cannot exist; the message names the field and the rule."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One MIG device: a profile at its first memory slice."""

    profile: Profile
    start: int
    uuid: str

    @property
    def slices(self) -> range:
        """The memory slices it covers."""
        return range(self.start, self.start + self.profile.size)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `instances` is None while MIG is off; an empty tuple is MIG switched on, not yet cut."""

    index: int
    uuid: str
    instances: tuple[Instance, ...] | None


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's silicon as a whole."""

    board: Board
    driver: str
    cuda: str
    name: str
    gpus: tuple[Gpu, ...]

    def devices(self) -> dict[str, tuple[str, ...]]:
        """Resource name -> device ids in the mixed strategy: a GPU with MIG on is no `nvidia.com/gpu`."""
        found: dict[str, list[str]] = {}
        for gpu in self.gpus:
            if gpu.instances is None:
                found.setdefault(WHOLE_GPU, []).append(gpu.uuid)
            for instance in gpu.instances or ():
                found.setdefault(instance.profile.resource, []).append(instance.uuid)
        return {resource: tuple(ids) for resource, ids in found.items()}

    def parents(self) -> dict[str, str]:
        """Device id -> id of the GPU that carries it (itself, for a whole GPU)."""
        pairs = [(gpu.uuid, gpu.uuid) for gpu in self.gpus]
        pairs += [(one.uuid, gpu.uuid) for gpu in self.gpus for one in gpu.instances or ()]
        return dict(pairs)


def device_uuid(kind: str, node: str, *where: object) -> str:
    """Return an id of NVIDIA's form that is the same after every restart, as real ones are."""
    return f"{kind}-{uuid.uuid5(uuid.NAMESPACE_DNS, '/'.join([node, *map(str, where)]))}"


def _instance(text: object, board: Board, node: str, gpu: int) -> Instance:
    if not isinstance(text, str) or "@" not in text:
        raise BoardError(f"gpus[{gpu}].mig: {text!r} is not of the form PROFILE@START, as in 1g.10gb@0")
    name, _, start = text.partition("@")
    profile = board.profiles.get(name)
    if profile is None:
        known = ", ".join(board.profiles) or "none: this board has no MIG"
        raise BoardError(f"gpus[{gpu}].mig: {board.sku} has no profile {name!r} (it has {known})")
    if not start.isdigit() or int(start) not in profile.starts:
        raise BoardError(f"gpus[{gpu}].mig: {name} cannot start at {start!r}, only at {list(profile.starts)}")
    return Instance(profile, int(start), device_uuid("MIG", node, gpu, name, start))


def _check_fit(instances: tuple[Instance, ...], board: Board, gpu: int) -> None:
    """A set is legal if no memory slice is used twice and no engine is given out beyond what there is."""
    owner: dict[int, Instance] = {}
    for instance in instances:
        for piece in instance.slices:
            if piece in owner:
                other = owner[piece]
                raise BoardError(
                    f"gpus[{gpu}].mig: {instance.profile.name}@{instance.start} and "
                    f"{other.profile.name}@{other.start} both need memory slice {piece}"
                )
            owner[piece] = instance
    for engine in ENGINES:
        wanted = sum(instance.profile.engines[engine] for instance in instances)
        if wanted > (cap := board.engine_caps.get(engine) or 0):
            raise BoardError(
                f"gpus[{gpu}].mig: these instances need {wanted} {engine} engines, the board has {cap}"
            )


def _gpu(index: int, raw: object, board: Board, node: str) -> Gpu:
    if not isinstance(raw, dict) or set(raw) - {"mig"}:
        raise BoardError(
            f"gpus[{index}]: expected {{}} for a whole GPU or {{mig: [PROFILE@START, …]}}, got {raw!r}"
        )
    identity = device_uuid("GPU", node, index)
    if "mig" not in raw:
        return Gpu(index, identity, None)
    if not board.profiles:
        raise BoardError(f"gpus[{index}].mig: {board.sku} has no MIG")
    if not isinstance(raw["mig"], list):
        raise BoardError(f"gpus[{index}].mig: expected a list of PROFILE@START, got {raw['mig']!r}")
    instances = tuple(_instance(text, board, node, index) for text in raw["mig"])
    _check_fit(instances, board, index)
    return Gpu(index, identity, instances)


def _with_memory(board: Board, memory: dict[str, int]) -> Board:
    """Drivers differ by a few MiB; a board file may say what its driver reports."""
    if unknown := set(memory) - set(board.profiles):
        raise BoardError(f"memoryMiB: {board.sku} has no profile {sorted(unknown)[0]!r}")
    changed = {name: replace(board.profiles[name], memory_mib=int(mib)) for name, mib in memory.items()}
    return replace(board, profiles={**board.profiles, **changed})


def parse_machine(raw: dict[str, Any], node: str, catalog: Path = DEFAULT_CATALOG) -> Machine:
    """Check a board file's content and return the silicon it describes.

    Raises:
        BoardError: with the field's path and the rule that was broken.
    """
    if unknown := set(raw) - _KEYS:
        raise BoardError(f"{sorted(unknown)[0]}: unknown field; known are {', '.join(sorted(_KEYS))}")
    if not isinstance(raw.get("gpus"), list) or not raw["gpus"]:
        raise BoardError("gpus: expected a list with at least one GPU")
    try:
        board = load_board(str(raw.get("sku")), raw.get("name"), catalog)
    except ValueError as unknown_board:
        raise BoardError(str(unknown_board)) from unknown_board
    board = _with_memory(board, raw.get("memoryMiB") or {})
    return Machine(
        board=board,
        driver=str(raw.get("driver", "580.95.05")),
        cuda=str(raw.get("cuda", "13.0")),
        name=str(raw.get("machine", "Simulated")),
        gpus=tuple(_gpu(index, gpu, board, node) for index, gpu in enumerate(raw["gpus"])),
    )


def load_machine(path: Path, node: str, catalog: Path = DEFAULT_CATALOG) -> Machine:
    """Read and check a board file.

    Raises:
        BoardError: not YAML, not a mapping, or silicon that cannot exist.
    """
    try:
        raw = yaml.safe_load(path.read_text())
    except yaml.YAMLError as broken:
        raise BoardError(f"{path}: not YAML: {broken}") from broken
    if not isinstance(raw, dict):
        raise BoardError(f"{path}: expected a mapping with sku and gpus")
    return parse_machine(raw, node, catalog)
