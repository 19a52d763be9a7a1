"""The tokens of a model as bytes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What grammars know of the tokens of a model. A token without bytes is never allowed."""

    tokens: tuple[bytes, ...]
    special: tuple[int, ...]  # that match no text
    ends: tuple[int, ...]  # that end an answer
