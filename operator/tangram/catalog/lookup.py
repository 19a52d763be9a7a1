"""Look up GPUs, MIG profiles and shares in the shipped catalog: by SKU, node label or a user's spelling."""

import difflib
import re
from functools import lru_cache

from tangram.catalog.load import load
from tangram.catalog.reading.errors import InputError
from tangram.catalog.reading.fields import short
from tangram.catalog.records import GPU, Profile

# Under strategy `single` a node's nvidia.com/gpu is a slice, and with time-slicing a share of its time:
# neither is a whole GPU, and the label shows it. Such nodes are not used (yet): their memory would be wrong.
_NOT_A_WHOLE_GPU = re.compile(r"-MIG-|-SHARED$")
_MOST_NAMES = 4096  # that lookups remember: users may write any


def skus() -> tuple[str, ...]:
    """Every SKU, sorted."""
    return tuple(load())


def gpu(sku: str) -> GPU | None:
    """Return the facts about a SKU, or None if it is not in the catalog."""
    return load().get(sku)


def required_gpu(sku: str) -> GPU:
    """Return the facts about a SKU. Raises `InputError` if it is not in the catalog."""
    if (board := gpu(sku)) is None:
        raise InputError("sku", f"{sku!r} is not in the catalog; `tangram gpus` lists it")
    return board


@lru_cache(maxsize=_MOST_NAMES)
def match_product(label: str) -> str | None:
    """Return the SKU of a node label `nvidia.com/gpu.product`; None: unknown, a slice, or time-sliced."""
    if _NOT_A_WHOLE_GPU.search(label):
        return None
    for sku, facts in load().items():
        if any(re.search(pattern, label) for pattern in facts.product_patterns):
            return sku
    return None


def match_device_name(name: str) -> str | None:
    """Return the SKU of a GPU by its name as the driver reports it, of which GFD makes the node label."""
    return match_product(re.sub(r"[^A-Za-z0-9\-_. ]", "", name).strip().replace(" ", "-"))


def profile(sku: str, name: str) -> Profile | None:
    """Return the MIG profile `name` on the board of `sku`, or None if there is no such profile."""
    facts = gpu(sku)
    return next((p for p in facts.profiles if p.name == name), None) if facts else None


def profile_of_resource(sku: str, resource: str) -> Profile | None:
    """Return the MIG profile that a node of `sku` offers as `resource`, or None."""
    facts = gpu(sku)
    return next((p for p in facts.profiles if p.resource == resource), None) if facts else None


def share(sku: str, profile_name: str, tensor_parallel: int = 1) -> float:
    """Return how many GPUs a replica uses up: `Profile.dominant_share` of a slice, 1.0 of each whole GPU."""
    facts = profile(sku, profile_name)
    return (facts.dominant_share if facts else 1.0) * tensor_parallel


# Words of a GPU's name that distinguish no GPUs, and words that users leave out.
_NOISE = frozenset(["nvidia", "tesla", "geforce", "rtx", "gpu", "hbm2", "hbm2e", "hbm3", "hbm3e", "edition"])
_FORM = re.compile(r"\d+gb|sxm|pcie|nvl|server")
_MEMORY = re.compile(r"(\d+)gb")
LONGEST_NAME = 200  # characters of a GPU's name: likeness to a longer one takes seconds to measure
_SAME_MEMORY = 0.12  # names have 48GB where NVML has 45 GiB, 192GB where it has 179


@lru_cache(maxsize=_MOST_NAMES)
def find_gpu(name: str) -> GPU | None:
    """Return the GPU that `name` stands for: a SKU, an alias, a product label, in any case and spelling.

    `H100_SXM5`, `nvidia a100-sxm4-40gb`, `L40S-48GB`, `rtx4090`, `8xA100 80G`. None: unknown, or several.
    """
    words = _words(name)
    if not words:
        return None
    boards = load().values()
    for board in boards:
        if any(words == _words(spelling) for spelling in (board.sku, *board.aliases)):
            return board
    if label := match_product(name):
        return gpu(label)
    matches = [
        board for board in boards if words < _words(board.sku) and _only_form(_words(board.sku) - words)
    ]
    if len(matches) == 1:
        return matches[0]
    sizes = {word for word in words if _MEMORY.fullmatch(word)}
    shorter = find_gpu(" ".join(sorted(words - sizes))) if sizes and words - sizes else None
    return shorter if shorter and all(_has_memory(shorter, word) for word in sizes) else None


def gpu_of_name(name: str, field: str) -> GPU:
    """Return the GPU that a user names, in any usual spelling. Raises `InputError(field, ...)`."""
    board = gpu(name) or find_gpu(name)
    if board is None:
        raise unknown_gpu(name, field)
    return board


def unknown_gpu(name: str, field: str) -> InputError:
    """Return the error of a name that no GPU has, with the nearest SKU."""
    return InputError(field, f"no GPU is called {short(name)}{_nearest(name)}; `tangram gpus` lists them")


def _nearest(name: str) -> str:
    """Return `, nearest is X` for a misspelt SKU, nothing where no SKU is like it."""
    if len(name) > LONGEST_NAME:
        return ""
    if meant := find_gpu(name):
        return f", nearest is {meant.sku}"
    by_lower = {sku.lower(): sku for sku in skus()}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.4)
    return f", nearest is {by_lower[close[0]]}" if close else ""


def _words(name: str) -> frozenset[str]:
    alone = re.sub(r"^\s*\d+ ?x ?(?=[a-z])", "", name.lower().replace("_", " "))
    spaced = re.sub(r"(?<=rtx)(?=\d)|(?<=\d)(?=sxm|pcie|nvl)", " ", alone)
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<![a-z0-9.])(\d+) ?g(?:i?b)?\b", r" \1gb ", spaced))
    return frozenset(re.sub(r"^sxm\d$", "sxm", word) for word in words) - _NOISE


def _only_form(words: frozenset[str]) -> bool:
    return all(_FORM.fullmatch(word) for word in words)


def _has_memory(board: GPU, word: str) -> bool:
    return abs(int(word[:-2]) * 1024 / board.memory_mib - 1) < _SAME_MEMORY
