"""Which modules of a model a list of patterns names, in the dialects of published `quantization_config`s.

- `re:EXPRESSION` (compressed-tensors): a regular expression from the start of the name
- `*` and `?` (ModelOpt): shell wildcards for the name, or for the name of a part that contains the module
- a path: the module, or a part that contains it. One component without dots: anywhere in the path
"""

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import comb

from tangram.catalog.reading.errors import InputError
from tangram.catalog.reading.fields import short

# Names have about 40 characters: an expression with n unbounded repeats fails after up to C(40 + n, n) steps.
_NAME_LENGTH = 40
_MOST_STEPS = 10**9  # of all matches of one list: ten seconds
_NAMES_PER_LAYER = 28  # seven linear layers, each in four spellings
_LONGEST = 1000  # characters
_MOST_REPEATS = 4  # unbounded ones of one expression: the time of a match grows with their number
_REPEATED_GROUP = re.compile(r"(?<!\\)\)[*+{]")
_REPEAT = re.compile(r"(?<!\\)[*+{]")


@dataclass(frozen=True, slots=True)
class ModulePatterns:
    """Patterns of one list. Made by `module_patterns`."""

    paths: frozenset[str]
    prefixes: frozenset[str]  # of names: `PATH*`
    components: frozenset[str]
    expressions: tuple[re.Pattern[str], ...]

    def match(self, names: Iterable[str]) -> bool:
        """Whether a pattern names the module, or a part that contains it; `names` are its spellings."""
        return any(self._match(name) for name in names)

    def _match(self, name: str) -> bool:
        components = name.split(".")
        if not self.components.isdisjoint(components):
            return True
        if any(".".join(components[:end]) in self.paths for end in range(1, len(components) + 1)):
            return True
        if self.prefixes and any(name[:end] in self.prefixes for end in range(1, len(name) + 1)):
            return True
        return any(expression.match(name) for expression in self.expressions)


def module_patterns(patterns: Iterable[str], layers: int, where: str) -> ModulePatterns:
    """Return the patterns of a list, for a model of `layers`. Raises `InputError` naming `where`."""
    paths, prefixes, components, expressions = set(), set(), set(), list[re.Pattern[str]]()
    for pattern in patterns:
        if pattern.startswith("re:"):
            expressions.append(expression(pattern[3:], where))
        elif pattern.endswith("*") and not any(mark in pattern[:-1] for mark in "*?["):
            prefixes.add(pattern[:-1])
        elif "*" in pattern or "?" in pattern:
            plain = fnmatch.translate(re.sub(r"\*+", "*", pattern)).removesuffix(r"\Z").removesuffix(r"\z")
            expressions.append(_compiled(f"(?:{plain}(?:\\.|$))", pattern, where))
        elif "." in pattern:
            paths.add(pattern)
        else:
            components.add(pattern)
    check_cost(expressions, layers, where)
    return ModulePatterns(frozenset(paths), frozenset(prefixes), frozenset(components), tuple(expressions))


def check_cost(expressions: Iterable[re.Pattern[str]], layers: int, where: str) -> None:
    """Raise `InputError` where matching every module of `layers` could take more than seconds."""
    repeats = [len(_REPEAT.findall(pattern.pattern)) for pattern in expressions]
    steps = sum(comb(_NAME_LENGTH + count, count) for count in repeats) * layers * _NAMES_PER_LAYER
    if steps > _MOST_STEPS:
        raise InputError(where, f"has {len(repeats)} expressions, too many for {layers} layers")


def expression(text: str, where: str) -> re.Pattern[str]:
    """Return a regular expression of the input. Raises `InputError` for one that could match for ages."""
    if _REPEATED_GROUP.search(text):
        raise InputError(where, f"{short(text)} repeats a group, which is not read")
    return _compiled(re.sub(r"(\.\*)+", ".*", text), text, where)


def _compiled(text: str, shown: str, where: str) -> re.Pattern[str]:
    if len(text) > _LONGEST or len(_REPEAT.findall(text)) > _MOST_REPEATS:
        raise InputError(
            where, f"{short(shown)} has over {_LONGEST} characters or over {_MOST_REPEATS} repeats"
        )
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(where, f"{short(shown)} is no expression: {error}") from None
