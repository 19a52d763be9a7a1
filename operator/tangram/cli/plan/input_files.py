"""Read the files of `-f FILE` into the input of a plan."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tangram.api import PriorityClasses, classes_of_files
from tangram.api.common.base import GROUP, VERSION
from tangram.catalog import Architecture, InputError
from tangram.catalog.reading.fields import short
from tangram.cli.input_documents import BOM, documents, file_text, shown_name
from tangram.cli.options.lengths import with_histogram_means
from tangram.cli.plan.applied_documents import (
    APPLIED,
    AppliedSnapshot,
    InputDocument,
    read_priority_class,
    with_documents_applied,
    with_further_input,
)
from tangram.plan.fleet_input.documents.fleet_input import FleetInput
from tangram.plan.fleet_input.documents.inventory import read_inventory, read_slice_request
from tangram.plan.fleet_input.documents.llm_deployment import read_llm_deployment
from tangram.plan.fleet_input.documents.merge_documents import merged_input
from tangram.plan.fleet_input.documents.nodes import read_node
from tangram.plan.fleet_input.documents.pods import read_pod
from tangram.plan.fleet_input.documents.pools import read_pool
from tangram.plan.fleet_input.documents.snapshot_file import KIND as SNAPSHOT
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.recommend import without_faulty

KINDS = ("Inventory", "SliceRequest", "LLMDeployment", "GPUPool", "PriorityClass", "Node", "Pod", SNAPSHOT)
CORE = ("Node", "Pod")  # kinds of Kubernetes itself
_GROUPS = dict.fromkeys(CORE, "") | {"PriorityClass": "scheduling.k8s.io"}  # else our own
Models = Mapping[str, Architecture]
_DEEPEST_LIST = 4
_OUTCOMES = ("FleetPlan",)  # written by the operator: no input of a plan
_MOST_KINDS, _MOST_BROKEN = 8, 20


@dataclass(frozen=True, slots=True)
class PlanSource:
    """The input of a plan. `cluster`: the snapshot that it comes from, if there is one."""

    fleet_input: FleetInput
    cluster: AppliedSnapshot | None = None


def read_fleet(names: tuple[str, ...], models: Models) -> PlanSource:
    """Read every file; `-` is standard input. Raises `InputError` naming file, document and key.

    `models`: the models of LLMDeployments by name, from --model-facts.
    """
    skipped = _SkippedDocuments()
    documents_read = [document for name in names for document in _documents_of(name, skipped)]
    if not documents_read and not skipped.kinds:
        raise InputError("--file", f"{', '.join(names)}: the file has no document")
    snapshots = [document for document in documents_read if document.kind == SNAPSHOT]
    if len(snapshots) > 1:
        raise InputError(snapshots[1].where, f"is a second snapshot; {snapshots[0].where} is the first")
    if not snapshots:
        named: set[tuple[str, ...]] = set()
        classes = classes_of_files(
            read_priority_class(d, named) for d in documents_read if d.kind == "PriorityClass"
        )
        parts = [_read(d, models, classes, skipped) for d in documents_read if d.kind != "PriorityClass"]
        return PlanSource(merged_input([FleetInput(notes=tuple(skipped.notes())), *parts]))
    applied = [document for document in documents_read if document.kind in APPLIED]
    others = [document for document in documents_read if document.kind not in (SNAPSHOT, *APPLIED)]
    cluster = with_documents_applied(snapshots[0], applied, models)
    further_input = [_read(document, models, classes_of_files(()), skipped) for document in others]
    base = without_faulty(snapshot_input(cluster.snapshot, cluster.intents, cluster.models))
    base = replace(base, notes=(*skipped.notes(), *cluster.notes, *base.notes))
    return PlanSource(with_further_input(base, further_input), cluster)


@dataclass(slots=True)
class _SkippedDocuments:
    """Documents that are no input of a plan. `kinds`: of other projects, and of what the operator writes."""

    kinds: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)  # objects of a cluster that cannot be read

    def notes(self) -> Iterator[str]:
        """Yield a note for what was skipped."""
        if self.kinds:
            counts = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items())[:_MOST_KINDS])
            more = f" and {len(self.kinds) - _MOST_KINDS} more kinds" if len(self.kinds) > _MOST_KINDS else ""
            yield f"skipped: {counts}{more}; a plan is made from {', '.join(KINDS)}"
        yield from self.broken[:_MOST_BROKEN]
        if len(self.broken) > _MOST_BROKEN:
            yield f"{len(self.broken) - _MOST_BROKEN} more objects cannot be read"


def _documents_of(name: str, skipped: _SkippedDocuments) -> Iterator[InputDocument]:
    shown = shown_name(name)
    for number, document in enumerate(documents(file_text(name).removeprefix(BOM), shown), 1):
        if document is None:
            continue
        for part in _parts(document, f"{shown}: document {number}", skipped):
            yield _with_lengths(part, Path(name).parent)


def _with_lengths(document: InputDocument, folder: Path) -> InputDocument:
    """Read the histograms that an LLMDeployment names, relative to where its file lies."""
    if document.kind != "LLMDeployment":
        return document
    body, lengths = with_histogram_means(document.body, folder, document.where)
    return replace(document, body=body, counted_lengths=lengths)


def _parts(document: Any, where: str, skipped: _SkippedDocuments, depth: int = 0) -> Iterator[InputDocument]:
    if not isinstance(document, Mapping) or not all(isinstance(key, str) for key in document):
        if depth == 0:
            raise InputError(where, "is not an object with a kind")
        skipped.broken.append(f"{where} is not an object with a kind: skipped")
        return
    kind = document.get("kind")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(document.get("items"), list):
        if depth == _DEEPEST_LIST:  # an alias may even put a list into itself
            raise InputError(where, f"nests lists more than {_DEEPEST_LIST} deep")
        of = {"kind": kind.removesuffix("List"), "apiVersion": document.get("apiVersion")}
        for i, item in enumerate(document["items"]):
            bare = isinstance(item, Mapping) and "kind" not in item and of["kind"]  # as the API itself lists
            yield from _parts({**of, **item} if bare else item, f"{where}: items[{i}]", skipped, depth + 1)
    elif kind in KINDS and not _foreign(document, _GROUPS.get(kind, GROUP)):
        _versioned(document, f"{where}: {kind}")
        yield InputDocument(str(kind), document, f"{where}: {kind}")
    elif isinstance(kind, str) and kind and (kind in _OUTCOMES or _foreign(document, GROUP)):
        skipped.kinds[kind if kind.isprintable() else repr(kind)] += 1
    else:
        raise InputError(where, f"kind is {short(kind)}; supported are {', '.join(KINDS)}")


def _foreign(document: Mapping[str, Any], group: str) -> bool:
    """Whether the apiVersion names another API group; an unknown kind of this group is a typing error."""
    version = document.get("apiVersion")
    if not isinstance(version, str) or not version:
        return False
    return (version.rpartition("/")[0]) != group


def _versioned(document: Mapping[str, Any], where: str) -> None:
    """Raise `InputError` for another version of a kind: its fields may mean something else."""
    group = _GROUPS.get(document["kind"])
    supported = f"{GROUP}/{VERSION}" if group is None else f"{group}/v1" if group else "v1"
    version = document.get("apiVersion", supported)
    if version != supported:
        raise InputError(f"{where}: apiVersion", f"is {version!r}; supported is {supported}")


def _read(
    document: InputDocument, models: Models, classes: PriorityClasses, skipped: _SkippedDocuments
) -> FleetInput:
    """Read one document. A Node or Pod that cannot be read is skipped, with a note."""
    try:
        return _input_of(document, models, classes)
    except InputError as error:
        if document.kind not in CORE:
            raise
        skipped.broken.append(f"{error.field} {error.problem}: this {document.kind} is skipped")
        return FleetInput(pods_listed=document.kind == "Pod")


def _input_of(document: InputDocument, models: Models, classes: PriorityClasses) -> FleetInput:
    body, where, lengths = document.body, document.where, document.counted_lengths
    match document.kind:
        case "Inventory":
            return read_inventory(body, where)
        case "SliceRequest":
            return FleetInput(requests=(read_slice_request(body, where),))
        case "LLMDeployment":
            return FleetInput(deployments=(read_llm_deployment(body, where, models, classes, lengths),))
        case "Node":
            return FleetInput(node_facts=((where, read_node(body, where)),))
        case "Pod":
            pod = read_pod(body, where)
            return FleetInput(pods=() if pod is None else (pod,), pods_listed=True)
    return FleetInput(pools=(read_pool(body, where),))
