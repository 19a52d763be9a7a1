"""`-f FILE`: every document of every file, by kind."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tangram.api import PriorityClasses, classes_of_files
from tangram.api.common.base import GROUP, VERSION
from tangram.catalog import Architecture, InputError
from tangram.catalog.reading.fields import short
from tangram.cli.input_documents import BOM, documents, file_text
from tangram.cli.options.lengths import resolved
from tangram.cli.plan.applied_documents import (
    SNAPSHOT,
    Document,
    Observed,
    applied,
    beside,
    read_class,
)
from tangram.recommendation.documents.fleet_input import FleetInput
from tangram.recommendation.documents.inventory import read_inventory, read_slice_request
from tangram.recommendation.documents.llm_deployment import read_llm_deployment
from tangram.recommendation.documents.merge_documents import merged_input
from tangram.recommendation.documents.nodes import read_node
from tangram.recommendation.documents.pods import read_pod
from tangram.recommendation.documents.pools import read_pool
from tangram.recommendation.observed.snapshot_input import snapshot_input
from tangram.recommendation.recommend import without_faulty

KINDS = ("Inventory", "SliceRequest", "LLMDeployment", "GPUPool", "PriorityClass", "Node", "Pod", SNAPSHOT)
CORE = ("Node", "Pod")  # kinds of Kubernetes itself
_GROUPS = dict.fromkeys(CORE, "") | {"PriorityClass": "scheduling.k8s.io"}  # else our own
Models = Mapping[str, Architecture]
_DEEPEST_LIST = 4
_OUTCOMES = ("FleetPlan",)  # kinds of ours that are written by the operator: no input of a plan
_MOST_KINDS, _MOST_BROKEN = 8, 20


@dataclass(frozen=True, slots=True)
class Read:
    """What files say. `observed`: what they hold of a cluster, where one of them is its snapshot."""

    given: FleetInput
    observed: Observed | None = None


def read_fleet(names: tuple[str, ...], models: Models) -> Read:
    """Read every file; `-` is standard input. Raises `InputError` naming file, document and key.

    `models`: what LLMDeployments serve, by name, where the user says it.
    """
    passed = _Passed()
    found = [document for name in names for document in _documents_of(name, passed)]
    if not found and not passed.kinds:
        raise InputError("--file", f"{', '.join(names)}: there is no document in it")
    snapshots = [each for each in found if each.kind == SNAPSHOT]
    if len(snapshots) > 1:
        raise InputError(snapshots[1].where, f"is a second snapshot; {snapshots[0].where} is the first")
    if not snapshots:
        named: set[tuple[str, ...]] = set()
        classes = classes_of_files(read_class(d, named) for d in found if d.kind == "PriorityClass")
        parts = [_read(d, models, classes, passed) for d in found if d.kind != "PriorityClass"]
        return Read(merged_input([FleetInput(notes=tuple(passed.notes())), *parts]))
    fleet = applied(snapshots[0], [each for each in found if each.applies], models)
    others = [each for each in found if not each.applies and each is not snapshots[0]]
    more = [_read(each, models, classes_of_files(()), passed) for each in others]
    given = without_faulty(snapshot_input(fleet.snapshot, fleet.intents, fleet.told))
    return Read(beside(replace(given, notes=(*passed.notes(), *fleet.notes, *given.notes)), more), fleet)


@dataclass(slots=True)
class _Passed:
    """What of a dump is no part of a plan."""

    kinds: Counter[str] = field(default_factory=Counter)  # of other projects, and statuses of ours
    broken: list[str] = field(default_factory=list)  # objects of the cluster that cannot be read

    def notes(self) -> Iterator[str]:
        """Say what was passed over."""
        if self.kinds:
            counts = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items())[:_MOST_KINDS])
            more = f" and {len(self.kinds) - _MOST_KINDS} more kinds" if len(self.kinds) > _MOST_KINDS else ""
            yield f"passed over: {counts}{more}; a plan is made from {', '.join(KINDS)}"
        yield from self.broken[:_MOST_BROKEN]
        if len(self.broken) > _MOST_BROKEN:
            yield f"{len(self.broken) - _MOST_BROKEN} more objects cannot be read"


def _documents_of(name: str, passed: _Passed) -> Iterator[Document]:
    shown = "standard input" if name == "-" else name
    for number, document in enumerate(documents(file_text(name, shown).removeprefix(BOM), shown), 1):
        if document is None:
            continue
        for each in _parts(document, f"{shown}: document {number}", passed):
            yield _with_lengths(each, Path(name).parent)


def _with_lengths(document: Document, folder: Path) -> Document:
    """Read the histograms that an LLMDeployment names, relative to where its file lies."""
    if document.kind != "LLMDeployment":
        return document
    body, counted = resolved(document.body, folder, document.where)
    return replace(document, body=body, counted=counted)


def _parts(document: Any, where: str, passed: _Passed, depth: int = 0) -> Iterator[Document]:
    if not isinstance(document, Mapping) or not all(isinstance(key, str) for key in document):
        if depth == 0:
            raise InputError(where, "is no object with a kind")
        passed.broken.append(f"{where} is no object with a kind: passed over")
        return
    kind = document.get("kind")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(document.get("items"), list):
        if depth == _DEEPEST_LIST:  # an alias may even put a list into itself
            raise InputError(where, "is a list in a list in a list: too deep")
        of = {"kind": kind.removesuffix("List"), "apiVersion": document.get("apiVersion")}
        for i, item in enumerate(document["items"]):
            bare = isinstance(item, Mapping) and "kind" not in item and of["kind"]  # as the API itself lists
            yield from _parts({**of, **item} if bare else item, f"{where}: items[{i}]", passed, depth + 1)
    elif kind in KINDS and not _foreign(document, _GROUPS.get(kind, GROUP)):
        _versioned(document, f"{where}: {kind}")
        yield Document(str(kind), document, f"{where}: {kind}")
    elif isinstance(kind, str) and kind and (kind in _OUTCOMES or _foreign(document, GROUP)):
        passed.kinds[kind if kind.isprintable() else repr(kind)] += 1
    else:
        raise InputError(where, f"kind is {short(kind)}; known are {', '.join(KINDS)}")


def _foreign(document: Mapping[str, Any], group: str) -> bool:
    """Whether a document says that it belongs to another API group: in ours an unknown kind is a typo."""
    version = document.get("apiVersion")
    if not isinstance(version, str) or not version:
        return False
    return (version.rpartition("/")[0]) != group


def _versioned(document: Mapping[str, Any], where: str) -> None:
    """Raise `InputError` for another version of a kind: its fields may mean something else."""
    group = _GROUPS.get(document["kind"])
    known = f"{GROUP}/{VERSION}" if group is None else f"{group}/v1" if group else "v1"
    said = document.get("apiVersion", known)
    if said != known:
        raise InputError(f"{where}: apiVersion", f"is {said!r}, this reads {known}")


def _read(document: Document, models: Models, classes: PriorityClasses, passed: _Passed) -> FleetInput:
    """Read one document. An object that a cluster printed ends nothing: where it cannot be read it is passed
    over, and the notes say so.
    """
    if document.kind not in CORE:
        return _written(document, models, classes)
    try:
        return _printed(document)
    except InputError as error:
        passed.broken.append(f"{error.field} {error.problem}: this {document.kind} is passed over")
        return FleetInput(pods_told=document.kind == "Pod")


def _printed(document: Document) -> FleetInput:
    if document.kind == "Node":
        return FleetInput(nodes=(read_node(document.body, document.where),))
    seen = read_pod(document.body, document.where)
    return FleetInput(pods=() if seen is None else (seen,), pods_told=True)


def _written(document: Document, models: Models, classes: PriorityClasses) -> FleetInput:
    body, where = document.body, document.where
    if document.kind == "Inventory":
        return read_inventory(body, where)
    if document.kind == "SliceRequest":
        return FleetInput(requests=(read_slice_request(body, where),))
    if document.kind == "LLMDeployment":
        return FleetInput(deployments=(read_llm_deployment(body, where, models, classes, document.counted),))
    return FleetInput(pools=(read_pool(body, where),))
