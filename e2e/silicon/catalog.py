"""What a board is, read from the operator's own catalogue: stand-in and planner cannot disagree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

# In the repository; the image carries a copy and says where with --catalog.
DEFAULT_CATALOG = Path(__file__).resolve().parents[2] / "operator" / "tangram" / "catalog"

FAMILIES = {
    "7.5": "turing",
    "8": "ampere",
    "8.9": "ada-lovelace",
    "9": "hopper",
    "10": "blackwell",
    "12": "blackwell",
}
ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")


@dataclass(frozen=True, slots=True)
class Profile:
    """One MIG profile of one board. `starts` and `size` count the board's memory slices; memory is in MiB.

    NVML knows a profile by two numbers: `enum_value` names its kind, the same on every board; `profile_id` is
    the one that `nvidia-smi mig -lgip` prints and instances are created by, and differs between boards.
    """

    name: str
    compute_slices: int
    memory_mib: int
    multiprocessors: int
    engines: dict[str, int]
    starts: tuple[int, ...]
    size: int
    max_instances: int
    enum_value: int
    profile_id: int

    @property
    def dotted(self) -> str:
        """The name as resources and labels spell it: `+` becomes a dot, a dash stays."""
        return self.name.replace("+", ".")

    @property
    def resource(self) -> str:
        """The extended resource that the mixed strategy offers for it."""
        return f"nvidia.com/mig-{self.dotted}"


@dataclass(frozen=True, slots=True)
class Board:
    """One GPU model. `memory_mib` is what NVML reports for the whole board; `name` is NVML's device name.

    An engine that `engine_caps` maps to None has a limit that no public source states.
    """

    sku: str
    name: str
    memory_mib: int
    compute_capability: str
    memory_slices: int
    compute_slices: int
    engine_caps: dict[str, int | None]
    profiles: dict[str, Profile]

    @property
    def product(self) -> str:
        """The value of the node label nvidia.com/gpu.product."""
        return product_label(self.name)

    @property
    def family(self) -> str:
        """The architecture as GPU feature discovery names it."""
        major = self.compute_capability.partition(".")[0]
        return FAMILIES.get(self.compute_capability) or FAMILIES.get(major, "undefined")


def product_label(name: str) -> str:
    """Spell a device name as GPU feature discovery does: odd characters dropped, blanks to dashes."""
    return re.sub(r"[^A-Za-z0-9\-_. ]", "", name).strip().replace(" ", "-")


def _profile(raw: dict[str, Any]) -> Profile:
    return Profile(
        name=raw["name"],
        compute_slices=raw["compute_slices"],
        memory_mib=raw["memory_mib"],
        multiprocessors=raw["sm_count"],
        engines={engine: raw["engines"].get(engine) or 0 for engine in ENGINES},
        starts=tuple(raw["placement"]["starts"]),
        size=raw["placement"]["size"],
        max_instances=raw["max_instances"],
        enum_value=raw["nvml_profile_enum_value"],
        profile_id=raw["published_profile_id"],
    )


def _usable(raw: dict[str, Any]) -> bool:
    """A profile with unknown numbers cannot be simulated: its labels would be invented."""
    known = (raw.get("memory_mib"), raw.get("sm_count"), raw.get("compute_slices"), raw.get("engines"))
    placement = raw.get("placement") or {}
    return None not in known and bool(placement.get("starts")) and bool(placement.get("size"))


@cache
def _read(path: Path) -> dict[str, Any]:
    """Parse one file of the catalogue; once, for it is large and never changes under a running process."""
    # libyaml's loader where PyYAML has it: twenty times faster on the profile table.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content: dict[str, Any] = yaml.load(path.read_text(), Loader=loader)  # noqa: S506 - both are safe loaders
    return content


def load_board(sku: str, name: str | None = None, catalog: Path = DEFAULT_CATALOG) -> Board:
    """Return the board called `sku` in gpus.yaml.

    `name` is NVML's device name; boards with MIG have one in the catalogue, others must be told.

    Raises:
        ValueError: unknown SKU, missing name, or a name whose label the catalogue would not recognise.
    """
    gpus = _read(catalog / "gpus.yaml")["gpus"]
    if sku not in gpus:
        raise ValueError(f"sku: unknown {sku!r}; known are {', '.join(sorted(gpus))}")
    gpu = gpus[sku]
    migs = {b["key"]: b for b in _read(catalog / "mig_profiles.yaml")["products"]}
    mig = migs.get(gpu["mig_key"], {})
    patterns = [re.compile(pattern) for pattern in gpu["gfd_product_label_patterns"]]
    names = [name] if name else list(mig.get("nvml_names", ()))
    name = next((one for one in names if any(p.match(product_label(one)) for p in patterns)), None)
    if name is None and names:
        known = " or ".join(p.pattern for p in patterns)
        raise ValueError(
            f"name: {names[0]!r} becomes the label {product_label(names[0])!r}, which is no {sku} ({known})"
        )
    if name is None:
        raise ValueError(f"name: {sku} has no device name in the catalogue; give the one NVML prints")
    return Board(
        sku=sku,
        name=name,
        memory_mib=gpu["memory_mib"],
        compute_capability=str(gpu["compute_capability"]),
        memory_slices=mig.get("memory_slices_total", 0),
        compute_slices=mig.get("compute_slices_total", 0),
        engine_caps=dict(mig.get("engine_caps", {})),
        profiles={raw["name"]: _profile(raw) for raw in mig.get("profiles", ()) if _usable(raw)},
    )
