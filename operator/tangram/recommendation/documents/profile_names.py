"""Short names of MIG profiles: `1g` is the plain one of so many compute slices."""

import re

from tangram.fleet import WHOLE_GPU
from tangram.packing import board

_SHORT = re.compile(r"[1-9][0-9]?g")


def is_short(profile: str) -> bool:
    """Whether a name leaves the memory out."""
    return _SHORT.fullmatch(profile) is not None


def profile_of_short_name(sku: str, short: str) -> str | None:
    """Return the profile that `short` means on a board: without media engines, with the least memory."""
    mig_board = board(sku)
    options = mig_board.options if mig_board else ()
    named = [o for o in options if o.profile.split(".")[0] == short and not set("+-") & set(o.profile)]
    return min(named, key=lambda o: (o.mask.bit_count(), o.profile)).profile if named else None


def full_profile_name(sku: str, profile: str) -> str:
    """Return the name as NVIDIA prints it; what is not short, or unknown, as it is."""
    return (profile_of_short_name(sku, profile) if is_short(profile) else None) or profile


def board_has(sku: str, profile: str) -> bool:
    """Whether there is such a slice, or whole GPU, on a board."""
    mig_board = board(sku)
    return profile == WHOLE_GPU or (mig_board is not None and profile in mig_board.profiles)
