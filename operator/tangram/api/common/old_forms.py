"""Fields of v1alpha1 before they got their final names and types.

The one list of changes: `tangram convert` follows it, files of the command line are checked against
it, and the tables in CHANGELOG.md and docs/upgrading.md are compared with it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tangram.api.common.base import GROUP, VERSION
from tangram.api.common.priority import PRIORITY_CLASS_LABEL

HINT = "`tangram convert FILE` writes the new form"
NOT_CONVERTED = (
    "the object is of an older form, of which the API server shows only a part: convert it as"
    " docs/upgrading.md says"
)


class Change(Enum):
    """How a field changed."""

    RENAMED = "renamed"  # another key, the same value
    MOVED = "moved"  # another place, the same value
    DECIMAL = "decimal"  # a float became a decimal string
    LENGTH = "length"  # a number of tokens became an object
    PRIORITY = "priority"  # a number became the name of a PriorityClass
    OBSERVED = "observed"  # in objects that Tangram writes: nothing to convert


@dataclass(frozen=True, slots=True)
class OldForm:
    """One field that changed. `old` and `new` are an example of both, as a line of YAML."""

    kind: str
    path: tuple[str, ...]
    change: Change
    new_path: tuple[str, ...]
    old: str
    new: str

    @property
    def shown(self) -> str:
        """The path, as in messages."""
        return ".".join(self.path)

    @property
    def advice(self) -> str:
        """What is written instead."""
        new = ".".join(self.new_path)
        if self.change is Change.DECIMAL:
            return f"is a decimal string: write it in quotes, as in {self.new}"
        if self.change is Change.LENGTH:
            return f"is an object: write {{mean: N}}, as in {self.new}"
        if self.change is Change.PRIORITY:
            return f"is now {new}: the name of a PriorityClass with the label {PRIORITY_CLASS_LABEL}"
        return f"is now {new}"

    def is_old(self, value: Any) -> bool:
        """Whether a value at `path` is of the old form."""
        if self.change is Change.OBSERVED:
            return False
        if self.change is Change.DECIMAL:
            return isinstance(value, float)
        if self.change is Change.LENGTH:
            return value is not None and not isinstance(value, Mapping)
        return True


def _form(kind: str, change: Change, name: str, new_name: str, old: str, new: str) -> OldForm:
    """`name` and `new_name`: paths below `spec`. `old` and `new`: example values."""
    path, new_path = ("spec", *name.split(".")), ("spec", *new_name.split("."))
    return OldForm(kind, path, change, new_path, f"{name}: {old}", f"{new_name}: {new}")


def _decimal(kind: str, name: str, example: str) -> OldForm:
    return _form(kind, Change.DECIMAL, name, name, example, f'"{example}"')


def _length(name: str, example: int) -> OldForm:
    return _form("LLMDeployment", Change.LENGTH, name, name, str(example), f"{{mean: {example}}}")


def _figure(name: str) -> OldForm:
    old, new = ("spec", name), ("status", name)
    return OldForm("FleetPlan", old, Change.OBSERVED, new, ".".join(old), ".".join(new))


OLD_FORMS = (
    _form("LLMDeployment", Change.RENAMED, "scaling.min", "scaling.minReplicas", "2", "2"),
    _form("LLMDeployment", Change.RENAMED, "scaling.max", "scaling.maxReplicas", "8", "8"),
    _form("LLMDeployment", Change.PRIORITY, "priority", "priorityClassName", "10", "tangram-priority-10"),
    _decimal("LLMDeployment", "traffic.requestsPerSecond", "0.5"),
    _length("traffic.inputTokens", 1024),
    _length("traffic.outputTokens", 256),
    _decimal("LLMDeployment", "placement.spread.node", "0.5"),
    _decimal("LLMDeployment", "placement.spread.zone", "0.5"),
    _decimal("LLMDeployment", "placement.budgetPerHour", "12.5"),
    OldForm(
        "LLMDeployment",
        ("status", "replicas"),
        Change.OBSERVED,
        ("status", "replicasDisplay"),
        'status.replicas: "3/4"',
        'status.replicas: 4, status.replicasDisplay: "3/4"',
    ),
    _decimal("GPUPool", "pricePerGPUHour", "2.5"),
    _form("GPUPool", Change.MOVED, "nodes.sku", "sku", "H100-80GB-SXM", "H100-80GB-SXM"),
    _figure("currentCostPerHour"),
    _figure("savesPerHour"),
    _figure("solveSeconds"),
)


def forms_of(kind: str) -> tuple[OldForm, ...]:
    """Return what changed in one kind."""
    return tuple(form for form in OLD_FORMS if form.kind == kind)


def belongs(api_version: object) -> bool:
    """Whether an object with this apiVersion is of this API. Files of the command line may go without."""
    return api_version in {None, f"{GROUP}/{VERSION}"}


def old_parts(kind: str, document: Mapping[str, Any]) -> Iterator[OldForm]:
    """Yield the old forms in a document, in the order of the list."""
    for form in forms_of(kind):
        value = value_at(document, form.path)
        if value is not MISSING and form.is_old(value):
            yield form


def stored_before(document: Mapping[str, Any]) -> bool:
    """Whether an LLMDeployment was last written under definitions of the old form.

    Its spec, as the API server shows it, is then not what was written: fields that the present definitions
    lack are gone, and defaults take their place. The text in `status.replicas` outlasts that.
    """
    return isinstance(value_at(document, ("status", "replicas")), str)


MISSING: Any = object()
"""What `value_at` returns where there is nothing."""


def value_at(document: object, path: tuple[str, ...]) -> Any:
    """Return what lies at a path of keys, `MISSING` where there is nothing."""
    for key in path:
        if not isinstance(document, Mapping) or key not in document:
            return MISSING
        document = document[key]
    return document
