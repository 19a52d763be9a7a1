"""Parse `llmdep/NAME` and find the LLMDeployment of that name among those that exist."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from tangram.catalog import InputError
from tangram.catalog.reading.fields import shortened

FIELD = "explain"
_KINDS = ("llmdep", "llmdeployment", "llmdeployments", "llmdeployments.tangram.dev")
_FORMS = "llmdep/NAME or llmdep/NAMESPACE/NAME"
_MOST_NAMES = 8

NamespacedName = tuple[str, str]
"""Namespace and name of an LLMDeployment."""


@dataclass(frozen=True, slots=True)
class RequestedName:
    """The name that the user typed."""

    name: str
    namespace: str | None  # None: not given

    def among(self, deployments: Sequence[NamespacedName]) -> NamespacedName:
        """Return the LLMDeployment of this name.

        Raises `InputError`: if there is none, with the nearest names; if several, with their namespaces.
        """
        name, namespace = self.name, self.namespace
        matches = [pair for pair in deployments if pair[1] == name and namespace in {None, pair[0]}]
        if len(matches) == 1:
            return matches[0]
        if matches:
            namespaces = ", ".join(sorted(match[0] for match in matches))
            raise InputError(
                FIELD, f"namespaces {namespaces} have an LLMDeployment {name} each: choose one with -n"
            )
        raise InputError(FIELD, _not_found(name, namespace, deployments))


def requested_name(words: Sequence[str], namespace: str | None) -> RequestedName:
    """Parse `llmdep/NAME`, `llmdep/NAMESPACE/NAME`, `llmdep NAME` or `NAME`. Raises `InputError`."""
    text = "/".join(words)
    kind, slash, rest = text.partition("/")
    if slash and kind.lower() not in _KINDS:
        raise InputError(FIELD, f"{text!r}: only LLMDeployments can be explained: {_FORMS}")
    where, slash, name = (rest if slash else text).rpartition("/")
    if not name or "/" in where or (slash and not where):
        raise InputError(FIELD, f"{text!r} is not {_FORMS}")
    return RequestedName(name, where or namespace)


def _not_found(name: str, namespace: str | None, deployments: Sequence[NamespacedName]) -> str:
    place = f" in namespace {namespace}" if namespace is not None else ""
    problem = f"there is no LLMDeployment {name}{place}"
    elsewhere = sorted(space for space, known_name in deployments if known_name == name)
    if elsewhere:
        return f"{problem}; one is in {', '.join(elsewhere)}"
    names = sorted({known_name for _, known_name in deployments})
    near = get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        return f"{problem}; did you mean {' or '.join(near)}?"
    if not names:
        return f"{problem}; there are no LLMDeployments"
    return f"{problem}; there are {shortened(names, _MOST_NAMES)}"
