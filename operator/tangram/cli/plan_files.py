"""`-f FILE`: every document of every file, by kind."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tangram.api.base import GROUP, VERSION
from tangram.catalog import Architecture, InputError
from tangram.cli.documents import documents
from tangram.cli.plan_snapshot import SNAPSHOT, Document, Observed, applied, beside
from tangram.planner.joint.deployment import wanted
from tangram.planner.joint.inventory import inventory, slice_request
from tangram.planner.joint.join import join
from tangram.planner.joint.nodes import node
from tangram.planner.joint.nouns import FleetInput
from tangram.planner.joint.observed import observed
from tangram.planner.joint.pods import pod
from tangram.planner.joint.pools import pool

LARGEST_FILE = 256 << 20
KINDS = ("Inventory", "SliceRequest", "LLMDeployment", "GPUPool", "Node", "Pod", SNAPSHOT)
CORE = ("Node", "Pod")  # kinds of Kubernetes itself
Models = Mapping[str, Architecture]
_DEEPEST_LIST = 4


@dataclass(frozen=True, slots=True)
class Read:
    """What files say. `observed`: what they hold of a cluster, where one of them is its snapshot."""

    given: FleetInput
    observed: Observed | None = None


def read_fleet(names: tuple[str, ...], models: Models) -> Read:
    """Read every file; `-` is standard input. Raises `InputError` naming file, document and key.

    `models`: what LLMDeployments serve, by name, where the user says it.
    """
    found = [document for name in names for document in _documents_of(name)]
    if not found:
        raise InputError("--file", f"{', '.join(names)}: there is no document in it")
    snapshots = [each for each in found if each.kind == SNAPSHOT]
    if len(snapshots) > 1:
        raise InputError(snapshots[1].where, f"is a second snapshot; {snapshots[0].where} is the first")
    if not snapshots:
        return Read(join([_read(each, models) for each in found]))
    fleet = applied(snapshots[0], [each for each in found if each.applies], models)
    more = [_read(each, models) for each in found if not each.applies and each is not snapshots[0]]
    given = observed(fleet.snapshot, fleet.intents, fleet.told)
    return Read(beside(replace(given, notes=(*fleet.notes, *given.notes)), more), fleet)


def _documents_of(name: str) -> Iterator[Document]:
    shown = "standard input" if name == "-" else name
    for number, document in enumerate(documents(_text(name, shown), shown), 1):
        if document is None:
            continue
        yield from _parts(document, f"{shown}: document {number}")


def _parts(document: Any, where: str, depth: int = 0) -> Iterator[Document]:
    if not isinstance(document, Mapping) or not all(isinstance(key, str) for key in document):
        raise InputError(where, "is no object with a kind")
    kind = document.get("kind")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(document.get("items"), list):
        if depth == _DEEPEST_LIST:  # an alias may even put a list into itself
            raise InputError(where, "is a list in a list in a list: too deep")
        for i, item in enumerate(document["items"]):
            yield from _parts(item, f"{where}: items[{i}]", depth + 1)
    elif kind not in KINDS:
        raise InputError(where, f"kind is {kind!r}; known are {', '.join(KINDS)}")
    else:
        _versioned(document, f"{where}: {kind}")
        yield Document(str(kind), document, f"{where}: {kind}")


def _versioned(document: Mapping[str, Any], where: str) -> None:
    """Raise `InputError` for another version of a kind: its fields may mean something else."""
    known = "v1" if document["kind"] in CORE else f"{GROUP}/{VERSION}"
    said = document.get("apiVersion", known)
    if said != known:
        raise InputError(f"{where}: apiVersion", f"is {said!r}, this reads {known}")


def _read(document: Document, models: Models) -> FleetInput:
    body, where = document.body, document.where
    if document.kind == "Inventory":
        return inventory(body, where)
    if document.kind == "SliceRequest":
        return FleetInput(requests=(slice_request(body, where),))
    if document.kind == "LLMDeployment":
        return FleetInput(deployments=(wanted(body, where, models),))
    if document.kind == "GPUPool":
        return FleetInput(pools=(pool(body, where),))
    if document.kind == "Node":
        return FleetInput(nodes=(node(body, where),))
    seen = pod(body, where)
    return FleetInput(pods=() if seen is None else (seen,), pods_told=True)


def _text(name: str, shown: str) -> str:
    try:
        data = sys.stdin.buffer.read(LARGEST_FILE + 1) if name == "-" else _bytes(Path(name), shown)
        if len(data) > LARGEST_FILE:
            raise InputError("--file", f"{shown} is larger than {LARGEST_FILE >> 20} MiB")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError("--file", f"{shown} is not UTF-8 text") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        if isinstance(error, InputError):
            raise
        raise InputError("--file", f"cannot read {shown!r}: {error}") from error


def _bytes(path: Path, shown: str) -> bytes:
    if path.is_dir():
        raise InputError("--file", f"{shown!r} is a directory")
    with path.open("rb") as stream:
        return stream.read(LARGEST_FILE + 1)
