"""Convert documents of an old form: find the edits of each file and the PriorityClasses to add."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import yaml

from tangram.api.common.old_forms import MISSING, Change, OldForm, belongs, forms_of, old_parts, value_at
from tangram.api.common.priority import CHART_DEFAULT_VALUE, HIGHEST_VALUE, NEVER, PRIORITY_CLASS_LABEL
from tangram.api.common.values import LONGEST_DECIMAL
from tangram.catalog import InputError
from tangram.catalog.reading.yaml_text import ERRORS, compose_all, line_and_problem, load_all
from tangram.cli.convert.yaml_edits import (
    Edit,
    EntryChange,
    EntryInsertion,
    EntryRemoval,
    Path,
    edited,
    entry,
    node_at,
    tree,
)
from tangram.cli.input_documents import BOM
from tangram.fleet import PriorityClass

CONVERTED = ("LLMDeployment", "GPUPool")
_WRITTEN_BY_TANGRAM = ("FleetPlan",)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# Written by the API server and controllers: applied again it would conflict, or take over their fields.
_SERVER_FIELDS = (
    ("status",),
    *(("metadata", key) for key in ("managedFields", "resourceVersion", "uid", "generation")),
    *(("metadata", key) for key in ("creationTimestamp", "selfLink")),
    ("metadata", "annotations", _LAST_APPLIED),
)
_DEEPEST_LIST = 4
_LARGEST_EXPONENT = 30
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_PLAIN_DECIMAL = re.compile(r"-?(0|[1-9]\d*)\.\d+")
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class ManifestObject:
    """One object of a file: its place in the document and its name in messages."""

    kind: str
    name: str
    path: Path
    root: Any
    file: str

    def where(self, path: Path = ()) -> str:
        """Return file, line and object, or those of the field at `path`."""
        field_entry = entry(self.root, (*self.path, *path)) if path else None
        mark = (field_entry[1] if field_entry else node_at(self.root, self.path)).start_mark
        field_shown = f": {'.'.join(map(str, path))}" if path else ""
        return f"{self.file}:{mark.line + 1}: {self.kind} {self.name}".rstrip() + field_shown


@dataclass(frozen=True, slots=True)
class Conversion:
    """A file in its old and new form. `changed` has a line per converted field."""

    shown: str
    before: str
    after: str
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Converter:
    """Converts the files of one call, which share their PriorityClasses.

    `default_priority`: the priority of LLMDeployments that name no PriorityClass.
    """

    default_priority: int = CHART_DEFAULT_VALUE
    classes: list[PriorityClass] = field(default_factory=list)
    added: dict[int, PriorityClass] = field(default_factory=dict)  # by the old spec.priority

    def read(self, text: str, shown: str) -> None:
        """Add the PriorityClasses of a file. Raises `InputError` for text that is neither YAML nor JSON."""
        for obj in _objects_of(_roots(text, shown), shown):
            if obj.kind == "PriorityClass":
                self.classes.append(_priority_class(tree(node_at(obj.root, obj.path))))

    def convert(self, text: str, shown: str) -> Conversion:
        """Return a file's new form. Raises `InputError` with file, line and path of a field without one."""
        mark = BOM if text.startswith(BOM) else ""
        text = text.removeprefix(BOM)
        roots = _roots(text, shown)
        edits: dict[int, list[Edit]] = {id(root): [] for root in roots}
        changed: list[str] = []
        notes: list[str] = []
        added_before = len(self.added)
        for obj in _objects_of(roots, shown):
            if obj.kind in _WRITTEN_BY_TANGRAM:
                notes.append(f"{obj.where()} is written by the operator: not converted, do not apply it")
            elif obj.kind in CONVERTED:
                own, lines = self._converted(obj)
                dropped = list(_dropped(obj))
                edits[id(obj.root)] += [*own, *dropped]
                changed += lines
                if dropped:
                    paths = ", ".join(".".join(map(str, edit.path[len(obj.path) :])) for edit in dropped)
                    notes.append(f"{obj.where()}: dropped fields that only the cluster writes: {paths}")
        after = edited(text, [edits[id(root)] for root in roots], shown)
        _check_nothing_old(after, shown)
        for number, added in list(self.added.items())[added_before:]:
            after = with_object(after, _document(number, added))
            notes.append(
                f"{shown}: added PriorityClass {added.name}, as no file has one of value {added.value}"
            )
        return Conversion(shown, mark + text, mark + after, tuple(changed), tuple(notes))

    def _converted(self, obj: ManifestObject) -> tuple[list[Edit], list[str]]:
        edits: list[Edit] = []
        lines: list[str] = []
        for form in forms_of(obj.kind):
            field_entry = entry(obj.root, (*obj.path, *form.path))
            if field_entry is None or not form.is_old(_value(field_entry[2])):
                continue
            edits += self._edits(obj, form, field_entry[2])
            lines.append(f"{obj.where(form.path)} {form.advice}")
        return edits, lines

    def _edits(self, obj: ManifestObject, form: OldForm, value: Any) -> list[Edit]:
        place = (*obj.path, *form.path)
        if form.change is Change.DECIMAL:
            return [EntryChange(place, value=f'"{_decimal(obj, form, value)}"')]
        if form.change is Change.LENGTH:
            return [EntryChange(place, value=_length(obj, form, value))]
        if form.change is Change.PRIORITY:
            return [self._priority(obj, form, value)]
        return list(_moved(obj, form, value))

    def _priority(self, obj: ManifestObject, form: OldForm, value: Any) -> Edit:
        place = (*obj.path, *form.path)
        number = _value(value)
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise InputError(obj.where(form.path), f"is {value.value!r}, not a whole number")
        if node_at(obj.root, (*obj.path, *form.new_path)) is not None:
            raise _both_set(obj, form)
        if not number:
            return EntryRemoval(place)
        quote = _quote(obj, form)
        return EntryChange(
            place, key=form.new_path[-1], value=f"{quote}{self._class(obj, form, number)}{quote}"
        )

    def _class(self, obj: ManifestObject, form: OldForm, number: int) -> str:
        """Return the name of the PriorityClass for an old priority; add one if there is none.

        LLMDeployments without a priority had 0 and now have the default priority: all values are raised by
        that difference, which keeps their order.
        """
        value = self.default_priority + number
        if not -HIGHEST_VALUE <= value <= HIGHEST_VALUE:
            raise InputError(
                obj.where(form.path), f"is {number}: its PriorityClass would have the value {value}"
            )
        usable = [item for item in self.classes if item.is_allowed and not item.preempts]
        names = sorted(item.name for item in usable if item.value == value)
        if names:
            return names[0]
        name = f"tangram-priority-{number}" if number > 0 else f"tangram-priority-minus-{-number}"
        if any(item.name == name for item in self.classes):
            raise InputError(
                obj.where(form.path),
                f"needs a PriorityClass, and {name} of the files does not fit: give it value {value},"
                f' the label {PRIORITY_CLASS_LABEL}: "true" and preemptionPolicy Never',
            )
        self.added.setdefault(number, PriorityClass(name, value, is_allowed=True, preempts=False))
        return name


def _moved(obj: ManifestObject, form: OldForm, value: Any) -> Iterator[Edit]:
    """Yield the edits that move a value to its new key, in the same object or its parent."""
    place, new = (*obj.path, *form.path), (*obj.path, *form.new_path)
    new_value = node_at(obj.root, new)
    if new_value is not None:
        if tree(new_value) != tree(value):
            raise _both_set(obj, form)
        yield EntryRemoval(place)
    elif form.change is Change.RENAMED:
        yield EntryChange(place, key=form.new_path[-1])
    elif len(node_at(obj.root, place[:-1]).value) == 1:  # the only key of its parent: it replaces the parent
        yield EntryChange(place[:-1], key=form.new_path[-1], value=_scalar(obj, form, value))
    else:
        yield EntryInsertion(place[:-1], form.new_path[-1], place)
        yield EntryRemoval(place)


def _both_set(obj: ManifestObject, form: OldForm) -> InputError:
    return InputError(obj.where(form.path), f"is set as well as {'.'.join(form.new_path)}: keep one of them")


def with_object(text: str, document: Mapping[str, Any]) -> str:
    """Return a file with one more object: a document at the end of YAML, an item of a List in JSON."""
    if not _is_json(text):
        line_end = "\r\n" if "\r\n" in text else "\n"
        end = "" if not text or text.endswith("\n") else line_end
        written = yaml.safe_dump(dict(document), sort_keys=False).replace("\n", line_end)
        return f"{text}{end}---{line_end}{written}"
    written = json.dumps(document, indent=4)
    (root,) = compose_all(text)
    items = node_at(root, ("items",))
    if isinstance(items, yaml.SequenceNode) and items.value:
        place = items.value[0].start_mark.index
        return f"{text[:place]}{written}, {text[place:]}"
    return f'{{"apiVersion": "v1", "kind": "List", "items": [\n{written},\n{text.strip()}\n]}}\n'


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _document(number: int, added: PriorityClass) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": added.name, "labels": {PRIORITY_CLASS_LABEL: "true"}},
        # No globalDefault: the API server drops `false`, and tools that compare would apply it for ever.
        "value": added.value,
        "preemptionPolicy": NEVER,
        "description": f"LLMDeployments that had spec.priority {number}.",
    }


def _roots(text: str, shown: str) -> list[Any]:
    try:
        for _ in load_all(text):  # checks size limits and repeated keys
            pass
        return list(compose_all(text))
    except ERRORS as error:
        line, problem = line_and_problem(error)
        template = "; templates are converted as `helm template` prints them" if "{{" in text else ""
        raise InputError(f"{shown}{line}", f"not YAML: {problem}{template}") from error


def _objects_of(roots: Sequence[Any], shown: str) -> Iterator[ManifestObject]:
    for root in roots:
        yield from _objects(root, (), shown, {}, 0)


def _objects(
    root: Any, path: Path, shown: str, of: Mapping[str, str], depth: int
) -> Iterator[ManifestObject]:
    """Yield the objects of this API and PriorityClasses, also those inside Lists."""
    node = node_at(root, path)
    if not isinstance(node, yaml.MappingNode):
        return
    plain = {key.value: value for key, value in node.value if isinstance(value, yaml.ScalarNode)}
    kind = plain["kind"].value if "kind" in plain else of.get("kind", "")
    version = plain["apiVersion"].value if "apiVersion" in plain else of.get("apiVersion") or None
    items = node_at(root, (*path, "items"))
    if kind.endswith("List") and isinstance(items, yaml.SequenceNode) and depth < _DEEPEST_LIST:
        inner = {} if kind == "List" else {"kind": kind.removesuffix("List"), "apiVersion": version or ""}
        for i in range(len(items.value)):
            yield from _objects(root, (*path, "items", i), shown, inner, depth + 1)
    elif (kind in (*CONVERTED, *_WRITTEN_BY_TANGRAM) and belongs(version)) or kind == "PriorityClass":
        meta = {step: node_at(root, (*path, "metadata", step)) for step in ("namespace", "name")}
        name = "/".join(part.value for part in meta.values() if isinstance(part, yaml.ScalarNode))
        yield ManifestObject(kind, name, path, root, shown)


def _dropped(obj: ManifestObject) -> Iterator[EntryRemoval]:
    for path in _SERVER_FIELDS:
        if entry(obj.root, (*obj.path, *path)) is not None:
            yield EntryRemoval((*obj.path, *path))


def _value(node: Any) -> Any:
    """Return a scalar as Kubernetes reads it, else an empty object or list."""
    if not isinstance(node, yaml.ScalarNode):
        return {} if isinstance(node, yaml.MappingNode) else []
    tag = node.tag.removeprefix(_TAG)
    if tag == "null":
        return None
    if tag == "bool":
        return True
    if tag == "int" and re.fullmatch(r"[-+]?(0|[1-9]\d*)", node.value):
        return int(node.value)
    if tag == "float" or (not node.style and tag == "str" and _NUMBER.fullmatch(node.value)):
        return 0.0
    return node.value


def _decimal(obj: ManifestObject, form: OldForm, node: Any) -> str:
    """Return a float as it is written, or without exponent and excess digits."""
    text = str(node.value)
    if _PLAIN_DECIMAL.fullmatch(text) and len(text) <= LONGEST_DECIMAL:
        return text
    if not _NUMBER.fullmatch(text) or abs(int((text.lower().partition("e")[2]) or 0)) > _LARGEST_EXPONENT:
        raise InputError(obj.where(form.path), f"is {text}, not a decimal: write it as in {form.new}")
    plain = f"{Decimal(text).normalize():f}"
    if len(plain) > LONGEST_DECIMAL:
        places = max(LONGEST_DECIMAL - 1 - len(plain.partition(".")[0]), 0)
        plain = f"{Decimal(f'{Decimal(text):.{places}f}').normalize():f}"
    if len(plain) > LONGEST_DECIMAL or not Decimal(plain):
        raise InputError(obj.where(form.path), f"is {text}, not a decimal of {LONGEST_DECIMAL} characters")
    return plain


def _length(obj: ManifestObject, form: OldForm, node: Any) -> str:
    value = _value(node)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(obj.where(form.path), f"is not a number of tokens: write it as in {form.new}")
    quote = _quote(obj, form)
    return f"{{{quote}mean{quote}: {value}}}"


def _quote(obj: ManifestObject, form: OldForm) -> str:
    """Return the quotes of JSON where the text is JSON, else none."""
    field_entry = entry(obj.root, (*obj.path, *form.path))
    return '"' if field_entry and field_entry[1].style == '"' else ""


def _scalar(obj: ManifestObject, form: OldForm, node: Any) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise InputError(obj.where(form.path), "is not a name")
    if node.style == '"' or _quote(obj, form):
        return json.dumps(node.value)
    return f"'{node.value}'" if node.style == "'" else str(node.value)


def _priority_class(manifest: Any) -> PriorityClass:
    def text(*path: str) -> str:
        value = value_at(manifest, path)
        return value[1] if isinstance(value, tuple) else ""

    number = text("value")
    has_value = re.fullmatch(r"[-+]?\d{1,10}", number) is not None
    return PriorityClass(
        name=text("metadata", "name"),
        value=int(number) if has_value else 0,
        is_allowed=has_value and text("metadata", "labels", PRIORITY_CLASS_LABEL) == "true",
        preempts=text("preemptionPolicy") != NEVER,
    )


def _check_nothing_old(text: str, shown: str) -> None:
    """Raise `InputError` for a field that still has the old form because a merge (`<<`) inserts it."""
    for document in load_all(text):
        for kind, manifest in _plain_objects(document):
            for form in old_parts(kind, manifest):
                name = value_at(manifest, ("metadata", "name"))
                object_name = f"{kind} {'' if name is MISSING else name}".rstrip()
                raise InputError(
                    f"{shown}: {object_name}: {form.shown}",
                    f"{form.advice}; it is merged in with `<<`: write it out first",
                )


def _plain_objects(document: Any, depth: int = 0) -> Iterable[tuple[str, Mapping[str, Any]]]:
    if not isinstance(document, Mapping):
        return
    kind, items = document.get("kind"), document.get("items")
    if isinstance(items, list) and depth < _DEEPEST_LIST:
        for item in items:
            yield from _plain_objects(item, depth + 1)
    elif kind in CONVERTED and belongs(document.get("apiVersion")):
        yield kind, document
