"""Log-probabilities of the tokens of a prompt, as the engine process sends them. Free of torch and numpy.

Bytes of arrays in native order: a prompt of a hundred thousand tokens has two million values, and no step
waits until each is an object.
"""

from collections.abc import Iterator
from typing import NamedTuple


class PromptToken(NamedTuple):
    """One token of a prompt, and the most likely ones in its place."""

    logprob: float
    rank: int  # 1: the most likely
    top: tuple[tuple[int, float], ...]


class PromptLogprobs(NamedTuple):
    """Of the N tokens of a prompt behind the first one."""

    logprobs: bytes  # float32 [N]
    ranks: bytes  # int32 [N]
    top_ids: bytes  # int32 [N, most]
    top_logprobs: bytes  # float32 [N, most]

    def tokens(self) -> Iterator[PromptToken]:
        """Each token, in the order of the prompt."""
        ids, values = memoryview(self.top_ids).cast("i"), memoryview(self.top_logprobs).cast("f")
        most = len(self.top_ids) // max(len(self.ranks), 1)
        scored = zip(memoryview(self.logprobs).cast("f"), memoryview(self.ranks).cast("i"), strict=True)
        for index, (logprob, rank) in enumerate(scored):
            part = slice(index * most, (index + 1) * most)
            yield PromptToken(logprob, rank, tuple(zip(ids[part], values[part], strict=True)))
