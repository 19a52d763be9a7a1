"""`llmdep/NAME`: which LLMDeployment is meant, and what to say when there is none or more than one."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from tangram.catalog import InputError

FIELD = "explain"
_KINDS = ("llmdep", "llmdeployment", "llmdeployments", "llmdeployments.tangram.dev")
_FORMS = "llmdep/NAME or llmdep/NAMESPACE/NAME"
_MOST_NAMES = 8

Known = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class RequestedName:
    """What somebody typed, understood without looking at any fleet."""

    name: str
    namespace: str | None  # None: whichever has it

    def among(self, known: Sequence[Known]) -> Known:
        """Return the one LLMDeployment that is meant.

        Raises `InputError`: with the nearest names where there is none, with the namespaces where
        there are more.
        """
        name, where = self.name, self.namespace
        found = [each for each in known if each[1] == name and where in {None, each[0]}]
        if len(found) == 1:
            return found[0]
        if found:
            places = ", ".join(sorted(each[0] for each in found))
            raise InputError(
                FIELD, f"{name} is an LLMDeployment in each of the namespaces {places}: say which with -n"
            )
        raise InputError(FIELD, _nothing(name, where, known))


def asked(words: Sequence[str], namespace: str | None) -> RequestedName:
    """Read `llmdep/NAME`, `llmdep/NAMESPACE/NAME`, `llmdep NAME` or `NAME`; `InputError` for the rest."""
    text = "/".join(words)
    kind, slash, rest = text.partition("/")
    if slash and kind.lower() not in _KINDS:
        raise InputError(FIELD, f"{text!r}: only LLMDeployments are explained, as {_FORMS}")
    where, slash, name = (rest if slash else text).rpartition("/")
    if not name or "/" in where or (slash and not where):
        raise InputError(FIELD, f"{text!r} is not {_FORMS}")
    return RequestedName(name, where or namespace)


def _nothing(name: str, where: str | None, known: Sequence[Known]) -> str:
    place = f" in namespace {where}" if where is not None else ""
    problem = f"there is no LLMDeployment {name}{place}"
    elsewhere = sorted(each[0] for each in known if each[1] == name)
    if elsewhere:
        return f"{problem}; one is in {', '.join(elsewhere)}"
    names = sorted({each[1] for each in known})
    near = get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return f"{problem}; did you mean {' or '.join(near)}?"
    if not names:
        return f"{problem}, nor any other"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{problem}; there are {', '.join(names[:_MOST_NAMES])}{more}"
