from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram.api import crd
from tangram.api.definitions import ALL, LLM_DEPLOYMENT, Definition
from tangram.eligibility.reasons import Reason

ROOT = Path(__file__).parents[2]


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield f"{path}[]", schema[key]
            yield from fields(schema[key], f"{path}[]")


def version(kind: Definition) -> dict[str, Any]:
    return crd.document(kind)["spec"]["versions"][0]


def schema_of(kind: Definition) -> dict[str, Any]:
    return version(kind)["schema"]["openAPIV3Schema"]


FIELDS = [
    (path, schema)
    for kind in ALL
    for path, schema in fields(schema_of(kind), kind.kind)
    if not path.startswith(f"{kind.kind}.metadata")
]
OURS = [(path, schema) for path, schema in FIELDS if not path.endswith((".apiVersion", ".kind"))]


def test_no_field_of_a_status_has_a_default():
    """The API server would add it to what is stored, and each new leader would write the status again."""
    defaults = [path for path, schema in FIELDS if ".status." in path and "default" in schema]

    assert defaults == []


def test_the_committed_crds_are_what_the_models_say():
    assert crd.main(["--check", "--output", str(ROOT / crd.FOLDER)]) == 0


def test_a_stale_a_missing_and_a_superfluous_crd_are_told_and_left_alone(tmp_path, capsys):
    crd.main(["--output", str(tmp_path)])
    (tmp_path / "tangram.dev_gpupools.yaml").write_text("old")
    (tmp_path / "tangram.dev_fleetplans.yaml").unlink()
    (tmp_path / "other.yaml").write_text("{}")

    assert crd.main(["--check", "--output", str(tmp_path)]) == 1
    assert (tmp_path / "tangram.dev_gpupools.yaml").read_text() == "old"
    told = capsys.readouterr().err
    assert [line.split("/")[-1].split()[0] for line in told.splitlines()] == [
        "other.yaml",
        "tangram.dev_fleetplans.yaml",
        "tangram.dev_gpupools.yaml",
    ]
    assert "python -m tangram.api.crd" in told


def test_writing_and_reading_them_gives_the_documents(tmp_path):
    assert crd.main(["--output", str(tmp_path / "deep")]) == 0
    for kind in ALL:
        assert yaml.safe_load((tmp_path / "deep" / crd.file_name(kind)).read_text()) == crd.document(kind)


@pytest.mark.parametrize(("path", "schema"), FIELDS, ids=[path for path, _ in FIELDS])
def test_every_field_is_described(path, schema):
    if path.endswith("[]"):
        return
    assert len(schema["description"]) >= 10
    assert schema["description"].rstrip().endswith((".", '".'))


@pytest.mark.parametrize(("path", "schema"), OURS, ids=[path for path, _ in OURS])
def test_every_value_is_bounded(path, schema):
    if "x-kubernetes-int-or-string" in schema:
        assert "maxLength" in schema
        rules = [rule["rule"] for rule in schema["x-kubernetes-validations"]]
        assert sum("double(self) <= " in rule or "')) <= 0" in rule for rule in rules) == 1
        return
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


def test_a_map_says_how_many_keys_it_may_have():
    maps = [(path, schema) for path, schema in FIELDS if "additionalProperties" in schema]

    assert {path for path, _ in maps} == {
        "LLMDeployment.spec.metadata.labels",
        "LLMDeployment.spec.metadata.annotations",
        "GPUPool.spec.nodeSelector",
        "GPUPool.status.allocatable",
        "GPUPool.status.free",
    }
    assert all("maxProperties" in schema for _, schema in maps)
    assert dict(maps)["GPUPool.spec.nodeSelector"]["minProperties"] == 1


@pytest.mark.parametrize("kind", ALL, ids=[kind.kind for kind in ALL])
def test_the_schema_is_structural(kind):
    text = yaml.safe_dump(schema_of(kind))

    for word in ("$ref", "anyOf", "allOf", "oneOf", "title:", "nullable", "propertyNames"):
        assert word not in text


def test_the_spec_has_exactly_the_fields_that_something_acts_on():
    prefix = "LLMDeployment.spec."
    spec = {path.removeprefix(prefix) for path, _ in FIELDS if path.startswith(prefix)}
    leaves = {path for path in spec if not any(other.startswith(path + ".") for other in spec)}

    assert {leaf for leaf in leaves if not leaf.endswith("[]")} == {
        "model.uri",
        "model.revision",
        "model.secretRef.name",
        "model.servedName",
        "runtime.name",
        "runtime.arguments",
        "runtime.arguments[].name",
        "runtime.arguments[].value",
        "runtime.variables",
        "runtime.variables[].name",
        "runtime.variables[].value",
        "engine.maxModelLen",
        "engine.maxRunningRequests",
        "engine.maxRequestSeconds",
        "engine.precision",
        "engine.precisionTolerance.perplexityIncrease",
        "engine.precisionTolerance.top1Agreement",
        "engine.kvCachePrecision",
        "engine.resources.requests.cpu",
        "engine.resources.requests.memory",
        "engine.apiKeySecretRef.name",
        "engine.apiKeySecretRef.key",
        "metadata.labels",
        "metadata.annotations",
        "objectives.ttft.percentile",
        "objectives.ttft.milliseconds",
        "objectives.tpot.percentile",
        "objectives.tpot.milliseconds",
        "placement.allowedSKUs",
        "placement.deniedSKUs",
        "traffic.requestsPerSecond",
        "traffic.inputTokens.mean",
        "traffic.inputTokens.p90",
        "traffic.inputTokens.fixed",
        "traffic.outputTokens.mean",
        "traffic.outputTokens.p90",
        "traffic.outputTokens.fixed",
        "placement.mig",
        "placement.pools",
        "placement.tensorParallel",
        "placement.spread.node",
        "placement.spread.zone",
        "placement.budgetPerHour",
        "replicas",
        "scaling.minReplicas",
        "scaling.maxReplicas",
        "priorityClassName",
        "paused",
    }


@pytest.mark.parametrize("kind", ALL, ids=[kind.kind for kind in ALL])
def test_printer_columns_read_fields_that_exist_and_have_their_type(kind):
    types = {
        path.removeprefix(kind.kind): schema.get("type", "string")
        for path, schema in FIELDS
        if kind.kind in path
    }
    for column in version(kind)["additionalPrinterColumns"]:
        path = column["jsonPath"]
        if path.startswith((".metadata", ".status.conditions[?")):
            continue
        assert types[path] == column["type"], column["name"]


def test_reasons_and_condition_types_fit_the_schema():
    status = schema_of(LLM_DEPLOYMENT)["properties"]["status"]
    condition = status["properties"]["conditions"]["items"]["properties"]

    assert all(len(reason) <= condition["reason"]["maxLength"] for reason in Reason)
    assert all(reason.isalnum() for reason in Reason)
