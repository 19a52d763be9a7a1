"""Words with typed holes: `{maxModelLen}` stands for a number of the plan, `{modelPath}` for a path.

The list of holes is closed. A value fills its hole as it is: no shell, no further expansion.
"""

import re
from collections.abc import Mapping
from enum import StrEnum


class Hole(StrEnum):
    """What a word may stand for."""

    MODEL_PATH = "modelPath"  # the directory of the checkpoint
    SERVED_NAME = "servedName"  # the model name of requests and metrics
    PORT = "port"
    MAX_MODEL_LEN = "maxModelLen"  # tokens of the longest request
    MAX_RUNNING_REQUESTS = "maxRunningRequests"
    MAX_BATCHED_TOKENS = "maxBatchedTokens"  # tokens of one step
    MEMORY_SHARE = "memoryShare"  # of the GPU or slice, 0 to 1
    STATIC_MEMORY_SHARE = "staticMemoryShare"  # of weights and KV cache alone
    TENSOR_PARALLEL = "tensorParallel"  # GPUs of one replica, or of one stage of its pipeline
    PIPELINE_PARALLEL = "pipelineParallel"  # stages of one replica
    TTFT_EDGES = "ttftEdges"  # seconds: edges of the histogram, JSON array
    TPOT_EDGES = "tpotEdges"
    TTFT_EDGE_WORDS = "ttftEdgeWords"  # the same, one word each: a word of its own
    TPOT_EDGE_WORDS = "tpotEdgeWords"
    DRAIN_SECONDS = "drainSeconds"  # from SIGTERM until requests are cut
    CACHE_PATH = "cachePath"  # a directory that the engine may write to
    POD_UID = "podUID"  # a key that no client of the model knows


_HOLE = re.compile(r"\{([A-Za-z]+)\}")
LONGEST_VALUE = 600  # characters that fill a hole: a URI has 512 at most, and edges are some 20 numbers
_WORD_LISTS = (Hole.TTFT_EDGE_WORDS, Hole.TPOT_EDGE_WORDS)
# The pod's own variable, which Kubernetes expands in arguments and values.
POD_UID_VARIABLE = "TANGRAM_POD_UID"
HoleValues = Mapping[Hole, str | tuple[str, ...]]


def unknown_hole(word: str) -> str:
    """Return what is wrong with the holes of a word, the empty string where nothing is."""
    for name in _HOLE.findall(word):
        if name not in set(Hole):
            return f"{{{name}}} is not one of {', '.join(f'{{{hole}}}' for hole in Hole)}"
        if name in _WORD_LISTS and word != f"{{{name}}}":
            return f"{{{name}}} stands for several words, so it must be a word of its own"
    return ""


def filled_length(word: str) -> int:
    """Return how many characters a word has at most once its holes are filled."""
    return len(word) + LONGEST_VALUE * len(_HOLE.findall(word))


def filled(word: str, values: HoleValues) -> tuple[str, ...]:
    """Return the words that one word becomes. Raises KeyError for a hole without a value."""
    whole = _HOLE.fullmatch(word)
    value = values[Hole(whole[1])] if whole else None
    if isinstance(value, tuple):
        return value
    return (_HOLE.sub(lambda hole: str(values[Hole(hole[1])]), escaped(word)),)


def escaped(text: str) -> str:
    """Return text of which Kubernetes expands no reference to a variable, `$(NAME)`."""
    return text.replace("$(", "$$(")
