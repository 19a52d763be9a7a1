from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram.api import crd
from tangram.planner.reasons import Reason

ROOT = Path(__file__).parents[2]
VERSION = crd.document()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields(child, f"{path}.{name}")
    if "items" in schema:
        yield f"{path}[]", schema["items"]
        yield from fields(schema["items"], f"{path}[]")


FIELDS = [(path, schema) for path, schema in fields(SCHEMA) if not path.startswith(".metadata")]
OURS = [(path, schema) for path, schema in FIELDS if path not in (".apiVersion", ".kind")]


def test_the_committed_crd_is_what_the_models_say():
    assert crd.main(["--check", "--output", str(ROOT / crd.DEFAULT_PATH)]) == 0


def test_a_stale_crd_is_told_and_left_alone(tmp_path, capsys):
    path = tmp_path / "crd.yaml"
    path.write_text("old")

    assert crd.main(["--check", "--output", str(path)]) == 1
    assert path.read_text() == "old"
    assert "python -m tangram.api.crd" in capsys.readouterr().err


def test_writing_and_reading_it_gives_the_document(tmp_path):
    path = tmp_path / "deep" / "crd.yaml"

    assert crd.main(["--output", str(path)]) == 0
    assert yaml.safe_load(path.read_text()) == crd.document()


@pytest.mark.parametrize(("path", "schema"), FIELDS, ids=[path for path, _ in FIELDS])
def test_every_field_is_described(path, schema):
    if path.endswith("[]"):
        return
    assert len(schema["description"]) >= 10
    assert schema["description"].rstrip().endswith((".", '".'))


@pytest.mark.parametrize(("path", "schema"), OURS, ids=[path for path, _ in OURS])
def test_every_value_is_bounded(path, schema):
    match schema["type"]:
        case "string":
            assert "maxLength" in schema or "enum" in schema
        case "number":
            assert "minimum" in schema
            assert "maximum" in schema
        case "integer":
            assert "enum" in schema or "minimum" in schema
        case "array":
            assert "maxItems" in schema
            assert "x-kubernetes-list-type" in schema


def test_the_schema_is_structural():
    text = yaml.safe_dump(SCHEMA)

    for word in ("$ref", "anyOf", "allOf", "oneOf", "title:", "additionalProperties", "nullable"):
        assert word not in text


def test_the_spec_has_exactly_the_fields_that_something_acts_on():
    spec = {path.removeprefix(".spec.") for path, _ in FIELDS if path.startswith(".spec.")}
    leaves = {path for path in spec if not any(other.startswith(path + ".") for other in spec)}

    assert {leaf for leaf in leaves if not leaf.endswith("[]")} == {
        "model.uri",
        "model.servedName",
        "engine.maxModelLen",
        "engine.maxRunningRequests",
        "engine.precision",
        "engine.kvCachePrecision",
        "objectives.ttft.percentile",
        "objectives.ttft.milliseconds",
        "objectives.tpot.percentile",
        "objectives.tpot.milliseconds",
        "placement.allowedSKUs",
        "placement.deniedSKUs",
        "traffic.requestsPerSecond",
        "traffic.inputTokens",
        "traffic.outputTokens",
        "placement.mig",
        "placement.pools",
        "placement.tensorParallel",
        "placement.spread.node",
        "placement.spread.zone",
        "placement.budgetPerHour",
        "scaling.min",
        "scaling.max",
        "priority",
        "paused",
    }


def test_printer_columns_read_fields_that_exist():
    paths = {path for path, _ in FIELDS}
    for column in VERSION["additionalPrinterColumns"]:
        path = column["jsonPath"]
        if path.startswith((".metadata", ".status.conditions[?")):
            continue
        assert path in paths, column["name"]


def test_reasons_and_condition_types_fit_the_schema():
    condition = SCHEMA["properties"]["status"]["properties"]["conditions"]["items"]["properties"]

    assert all(len(reason) <= condition["reason"]["maxLength"] for reason in Reason)
    assert all(reason.isalnum() for reason in Reason)
