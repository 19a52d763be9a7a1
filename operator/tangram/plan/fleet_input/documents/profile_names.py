"""Short names of MIG profiles, such as `1g`: the profile with that many compute slices and least memory."""

import re

from tangram.fleet import WHOLE_GPU
from tangram.packing import board

_SHORT = re.compile(r"[1-9][0-9]?g")


def is_short(profile: str) -> bool:
    """Whether a name has no memory size."""
    return _SHORT.fullmatch(profile) is not None


def profile_of_short_name(sku: str, short: str) -> str | None:
    """Return the profile that `short` means on a board: without media extensions, with the least memory."""
    mig_board = board(sku)
    options = mig_board.options if mig_board else ()
    named = [o for o in options if o.profile.split(".")[0] == short and not set("+-") & set(o.profile)]
    return min(named, key=lambda o: (o.mask.bit_count(), o.profile)).profile if named else None


def full_name(sku: str, profile: str) -> str:
    """Return a profile's name as NVIDIA prints it; a full or unknown name is unchanged."""
    return (profile_of_short_name(sku, profile) if is_short(profile) else None) or profile


def board_has(sku: str, profile: str) -> bool:
    """Whether a board has the profile; every board has the whole GPU."""
    mig_board = board(sku)
    return profile == WHOLE_GPU or (mig_board is not None and profile in mig_board.profiles)
