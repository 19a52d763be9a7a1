"""Boards as makers publish them, which layouts are checked against. Nothing of the product is imported."""

from dataclasses import dataclass, field

FULL = "gpu"

_EIGHT = {  # memory slices, compute slices, starts, by the kind of profile
    "1g": (1, 1, range(7)),
    "1gd": (2, 1, (0, 2, 4, 6)),
    "2g": (2, 2, (0, 2, 4)),
    "3g": (4, 3, (0, 4)),
    "4g": (4, 4, (0,)),
    "7g": (8, 7, (0,)),
}
# NVDEC, NVENC, NVJPG and OFA of a profile, where sums can bind; copy engines never do.
_MEDIA = {
    "": (1, 1, 1, 0),
    "+gfx": (1, 1, 1, 0),
    "-me": (0, 0, 0, 0),
    "+me": (1, 1, 1, 1),
    "+me.all": (4, 4, 4, 1),
}


@dataclass(frozen=True)
class Profile:
    """One kind of slice of one board."""

    name: str
    memory: int
    compute: int
    starts: tuple[int, ...]
    engines: tuple[int, ...] = ()


@dataclass(frozen=True)
class Board:
    """A row of memory slices, the profiles that cut it, and how many engines there are to share."""

    memory: int
    compute: int
    profiles: dict[str, Profile] = field(hash=False)
    engines: tuple[int, ...] = ()

    def share(self, profile):
        """The dominant share of the GPU."""
        if profile == FULL:
            return 1.0
        kind = self.profiles[profile]
        return max(kind.memory / self.memory, kind.compute / self.compute)

    def cells(self, profile, start):
        """The memory slices that it covers."""
        return range(start, start + (self.memory if profile == FULL else self.profiles[profile].memory))

    def wrong(self, slices):
        """Why the driver would refuse this set of (profile, start); None: it would not."""
        covered = set()
        for profile, start in slices:
            if profile == FULL:
                return None if len(slices) == 1 and start == 0 else "a whole GPU is beside slices"
            if profile not in self.profiles:
                return f"{profile} is no profile of the board"
            if start not in self.profiles[profile].starts:
                return f"{profile} may not start at {start}"
            cells = set(self.cells(profile, start))
            if cells & covered:
                return f"{profile}@{start} overlaps"
            covered |= cells
        kinds = [self.profiles[profile] for profile, _ in slices]
        if sum(kind.compute for kind in kinds) > self.compute:
            return "more compute than there is"
        for index, cap in enumerate(self.engines):
            if sum(kind.engines[index] for kind in kinds) > cap:
                return "more media engines than there are"
        return None


def _eight(one, double, two, three, seven):
    names = {
        "1g": f"1g.{one}gb",
        "1gd": f"1g.{double}gb",
        "2g": f"2g.{two}gb",
        "3g": f"3g.{three}gb",
        "4g": f"4g.{three}gb",
        "7g": f"7g.{seven}gb",
    }
    found = {
        name: Profile(name, *_EIGHT[kind][:2], tuple(_EIGHT[kind][2]), (int(kind == "7g"),))
        for kind, name in names.items()
    }
    media = f"{names['1g']}+me"
    found[media] = Profile(media, 1, 1, tuple(range(7)), (1,))
    return Board(8, 7, found, (1,))


def _a30():
    found = [
        Profile("1g.6gb", 1, 1, (0, 1, 2, 3), (0,)),
        Profile("1g.6gb+me", 1, 1, (0, 1, 2, 3), (1,)),
        Profile("2g.12gb", 2, 2, (0, 2), (0,)),
        Profile("2g.12gb+me", 2, 2, (0, 2), (1,)),
        Profile("4g.24gb", 4, 4, (0,), (1,)),
    ]
    return Board(4, 4, {kind.name: kind for kind in found}, (1,))


def _rtx():
    found = []
    for size, starts, variants in (
        (1, (0, 3, 6, 9), ("", "+me", "+gfx", "+me.all", "-me")),
        (2, (0, 6), ("", "+gfx", "+me.all", "-me")),
        (4, (0,), ("", "+gfx")),
    ):
        for variant in variants:
            media = _MEDIA[variant]
            if variant in ("", "+gfx"):
                media = (size, size, size, int(size == 4))
            found.append(Profile(f"{size}g.{24 * size}gb{variant}", 3 * size, size, starts, media))
    return Board(12, 4, {kind.name: kind for kind in found}, (4, 4, 4, 1))


BOARDS = {
    "A30": _a30(),
    "A100-40GB-SXM": _eight(5, 10, 10, 20, 40),
    "A100-80GB-SXM": _eight(10, 20, 20, 40, 80),
    "H100-80GB-SXM": _eight(10, 20, 20, 40, 80),
    "H100-94GB-NVL": _eight(12, 24, 24, 47, 94),
    "H200-141GB-SXM": _eight(18, 35, 35, 71, 141),
    "B200-180GB-SXM": _eight(23, 45, 45, 90, 180),
    "RTX-PRO-6000-SERVER": _rtx(),
    "L4": Board(1, 1, {}),
    "L40S": Board(1, 1, {}),
}
