"""`llmdep/NAME`: which LLMDeployment is meant, and what to say when there is none or more than one."""

from collections.abc import Sequence
from difflib import get_close_matches

from tangram.catalog import InputError

FIELD = "explain"
_KINDS = ("llmdep", "llmdeployment", "llmdeployments", "llmdeployments.tangram.dev")
_MOST_NAMES = 8

Known = tuple[str, str]
"""Namespace and name."""


def named(words: Sequence[str], namespace: str | None, known: Sequence[Known]) -> Known:
    """Return the LLMDeployment that `llmdep/NAME`, `llmdep/NAMESPACE/NAME`, `llmdep NAME` or `NAME` means.

    Raises `InputError`: with the nearest names where there is none, with the namespaces where there are more.
    """
    where, name = _parts(words, known)
    where = namespace if where is None else where
    found = [each for each in known if each[1] == name and where in {None, each[0]}]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(sorted(each[0] for each in found))
        raise InputError(
            FIELD, f"{name} is an LLMDeployment in each of the namespaces {places}: say which with -n"
        )
    raise InputError(FIELD, _nothing(name, where, known))


def _parts(words: Sequence[str], known: Sequence[Known]) -> tuple[str | None, str]:
    text = "/".join(words)
    kind, _, rest = text.partition("/")
    if not rest and "/" not in text:
        rest = text  # a name alone
    elif kind.lower() not in _KINDS:
        if tuple(text.split("/")) in known:
            rest = text
        else:
            raise InputError(FIELD, f"{text!r}: LLMDeployments are explained, as llmdep/NAME")
    where, slash, name = rest.rpartition("/")
    if not name or "/" in where or (slash and not where):
        raise InputError(FIELD, f"{text!r} is not llmdep/NAME")
    return where or None, name


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
