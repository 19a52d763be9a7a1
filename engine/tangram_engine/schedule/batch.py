"""What one step computes."""

from dataclasses import dataclass
from typing import NamedTuple

from tangram_engine.schedule.sequence import Sequence


class BatchRow(NamedTuple):
    """`length` tokens of one sequence, beginning at position `start`.

    A tuple: each step builds hundreds, and a dataclass that is frozen takes three times as long.
    """

    sequence: Sequence
    start: int
    length: int
    samples: bool = True  # whether it reaches the sequence's last token, so that its logits give the next one
    first: bool = True  # since the sequence was given its slot

    @property
    def decodes(self) -> bool:
        """Whether it feeds its sequence's last token and no other one: the device knows that token's id."""
        return self.length == 1 and self.samples

    @property
    def tokens(self) -> list[int]:
        """The ids to feed. None when the only one is still being computed on the device."""
        return self.sequence.tokens[self.start : self.start + self.length]


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """The rows of one step and what was counted while they were chosen."""

    rows: tuple[BatchRow, ...]
    preemptions: int = 0
    prefix_queries: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hits: int = 0  # of these, found

    @property
    def tokens(self) -> int:
        """Tokens fed in this step."""
        return sum([row.length for row in self.rows])

    @property
    def prompt_tokens(self) -> int:
        """Of these, tokens of prompts."""
        begun = [row for row in self.rows if row.start < row.sequence.prompt_length]
        return sum(min(row.length, row.sequence.prompt_length - row.start) for row in begun)
