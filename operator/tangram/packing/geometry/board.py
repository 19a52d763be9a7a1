"""A board that MIG can cut: its memory slices, its engines, and every option of one slice."""

from dataclasses import dataclass
from functools import cache

from tangram import catalog
from tangram.catalog import InputError


@dataclass(frozen=True, slots=True, order=True)
class Option:
    """One profile at one start. `mask` has a bit for each memory slice that it covers."""

    start: int
    profile: str
    mask: int
    compute: int
    engines: tuple[tuple[str, int], ...] = ()
    memory_mib: int | None = None  # usable memory; None: not published


@dataclass(frozen=True, slots=True)
class Board:
    """Geometry of one kind of GPU. From the catalog, or as a driver reports it, which wins."""

    key: str
    memory_slices: int  # placement units: 8 on an H100, 4 on an A30, 12 on an RTX PRO 6000
    compute_slices: int
    engine_caps: tuple[tuple[str, int], ...]
    options: tuple[Option, ...]  # sorted by start, then profile

    def __post_init__(self) -> None:
        """Raise `InputError` for a board that nothing could be planned on."""
        for option in self.options:
            if option.mask <= 0 or option.mask >> self.memory_slices or option.compute < 1:
                raise InputError(f"board {self.key}", f"{option.profile} at {option.start} leaves the board")
        if list(self.options) != sorted(self.options):
            object.__setattr__(self, "options", tuple(sorted(self.options)))

    def __hash__(self) -> int:
        """Hash little: boards are keys of many caches, and those that differ in options alone are few."""
        return hash((self.key, self.memory_slices, len(self.options)))

    @property
    def profiles(self) -> tuple[str, ...]:
        """Every profile that has a legal start, sorted."""
        return tuple(sorted({option.profile for option in self.options}))

    def option(self, profile: str, start: int) -> Option | None:
        """Return the option `profile` at `start`, or None where no driver would create it."""
        return next((o for o in self.options if o.profile == profile and o.start == start), None)

    def last_start(self, profile: str) -> int | None:
        """Return the highest legal start of a profile; None: the board has no such profile."""
        return max((option.start for option in self.options if option.profile == profile), default=None)

    def only(self, profiles: frozenset[str]) -> "Board":
        """Return the same board with fewer profiles: fewer layouts to choose from."""
        options = tuple(option for option in self.options if option.profile in profiles)
        return Board(self.key, self.memory_slices, self.compute_slices, self.engine_caps, options)


@cache
def board(sku: str) -> Board | None:
    """Return the catalog's board of `sku`; None: MIG cannot cut it, or its placements are not published."""
    gpu = catalog.gpu(sku)
    if gpu is None or gpu.mig_key is None:
        return None
    options = tuple(
        Option(
            start=start,
            profile=profile.name,
            mask=((1 << profile.memory_slices) - 1) << start,
            compute=profile.compute_slices,
            engines=profile.engines,
            memory_mib=profile.memory_mib if profile.memory_is_known else None,
        )
        for profile in gpu.profiles
        for start in profile.starts
    )
    if not options:
        return None
    return Board(gpu.mig_key, gpu.memory_slices, gpu.compute_slices, gpu.engine_caps, options)
