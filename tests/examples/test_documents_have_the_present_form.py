"""Objects that documents, notes and examples show are what the API takes today."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram.api import parse, parse_pool
from tangram.api.common.priority import CHART_CLASSES, priority_classes
from tangram.fleet import InvalidIntent, InvalidPool

ROOT = Path(__file__).parents[2]
META = {"uid": "1", "namespace": "a", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
TEXTS = [
    ROOT / "README.md",
    ROOT / "charts" / "tangram" / "templates" / "NOTES.txt",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def fragments(text: str) -> Iterator[str]:
    """YAML blocks of Markdown, and here-documents of the chart's notes."""
    yield from re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in re.findall(r"<<'YAML'\n(.*?)^ *YAML$", text, re.DOTALL | re.MULTILINE):
        yield re.sub("^  ", "", block, flags=re.MULTILINE)


def objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects of our API by where they are; a bare `spec` is one of an LLMDeployment."""
    sources = [(path, part) for path in TEXTS for part in fragments(path.read_text())]
    sources += [(path, path.read_text()) for path in sorted((ROOT / "examples").rglob("*.yaml"))]
    number = itertools.count(1)
    for path, text in sources:
        for body in yaml.safe_load_all(text):
            where = f"{path.relative_to(ROOT)}-{next(number)}"
            if body.keys() == {"spec"}:
                model = {"model": {"uri": "image:///models/shown"}}
                yield (
                    where,
                    {"kind": "LLMDeployment", "metadata": {"name": "shown"}, "spec": model | body["spec"]},
                )
            elif body.get("kind") in ("LLMDeployment", "GPUPool"):
                yield where, body


def unknown(given: object, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Paths that a CustomResourceDefinition does not have: `parse` leaves those to the API server."""
    if isinstance(given, dict) and "properties" in schema:
        for key, value in given.items():
            if key in schema["properties"]:
                yield from unknown(value, schema["properties"][key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"


SHOWN = dict(objects())


@pytest.mark.parametrize("where", SHOWN)
def test_an_object_that_is_shown_is_valid(where: str) -> None:
    body = SHOWN[where]
    given = body | {"metadata": META | body["metadata"]}
    definition = yaml.safe_load((ROOT / "crds" / f"tangram.dev_{body['kind'].lower()}s.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert list(unknown(body["spec"], spec, "spec")) == []
    if body["kind"] == "GPUPool":
        pool = parse_pool(given)
        assert not isinstance(pool, InvalidPool), pool.message
    else:
        found = parse(given, priority_classes(CHART_CLASSES))
        assert not isinstance(found, InvalidIntent), found.message
        assert found.refusal is None


def test_objects_are_found_in_documents_and_notes() -> None:
    files = {where.rpartition("-")[0] for where in SHOWN}

    assert {
        "README.md",
        "charts/tangram/templates/NOTES.txt",
        "docs/engine-pods.md",
        "examples/gpupool.yaml",
    } <= files
