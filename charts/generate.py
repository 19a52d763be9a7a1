"""Write what the chart has from elsewhere: `python -m charts.generate [--check]`.

values.schema.json describes the operator's settings, except those that the templates fill in, and the other
values. files/crds is a copy of crds/: a chart cannot reach outside its own folder.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from charts.chart_values import ChartValues
from tangram.shell.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "tangram"
WIDTH = 120
FILLED_IN = (
    ("engineImage",),
    ("engineImagePullPolicy",),
    ("fetchImage",),
    ("fetchImagePullPolicy",),
    ("metricsPort",),
    ("probePort",),
    ("listenHost",),
    ("admission", "certificateFolder"),
    ("admission", "port"),
    ("leaderElection", "namespace"),
    ("leaderElection", "name"),
    ("prometheus", "bearerTokenFile"),
    ("prometheus", "caFile"),
    ("prometheus", "headersFile"),
)
# What templates read without a default. `null` for one of them takes the chart's own values away.
REQUIRED = (
    *("image.operator", "image.engine", "image.fetch", "image.gateway", "image.agent"),
    *("prometheus", "engine", "gateway", "gateway.service", "gateway.tls", "gateway.tls.secretName"),
    *("gateway.listenAddress", "gateway.maxRequestSeconds", "gateway.drainSeconds", "gateway.maxBodyBytes"),
    *("gateway.maxConnections", "gateway.envoyThreads", "gateway.envoyHeapMiB"),
    *("priorityClasses", "operator"),
    *("admission", "admission.certManager"),
    *("partition", "partition.migManager", "agent", "agent.devicePlugin", "agent.devicePlugin.namespace"),
    *("agent.devicePlugin.podLabels", "agent.metrics", "leaderElection", "crds", "rbac", "networkPolicy"),
    *(
        "networkPolicy.engines",
        "serviceAccount",
        "serviceMonitor",
        "podMonitor",
        "prometheusRule",
        "dashboards",
    ),
    "dashboards.label",
)
_DROPPED = ("$defs", "title", "default", "format", "patternProperties", "x-kubernetes-")


def values_schema() -> dict[str, Any]:
    """Return the JSON schema of the chart's values."""
    chart = TypeAdapter(ChartValues).json_schema()
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the tangram chart"}
    schema = head | _merged(settings_schema(), _inlined(chart, chart["$defs"]))
    for path in REQUIRED:
        *above, name = path.split(".")
        node = schema
        for key in above:
            node = node["properties"][key]
        node["required"] = [*node.get("required", ()), name]
    return schema


def settings_schema() -> dict[str, Any]:
    """Return the JSON schema of the values that are settings of the operator."""
    settings = Settings.model_json_schema()
    schema = _inlined(settings, settings["$defs"])
    for path in FILLED_IN:
        _remove(schema, path)
    return schema


def _inlined(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of pydantic's without references, in which objects refuse unknown keys."""
    node = _without_null(_dereferenced(schema, definitions), definitions)
    plain = {key: value for key, value in node.items() if not key.startswith(_DROPPED)}
    if "description" in node:
        plain["description"] = " ".join(node["description"].split())
    if "x-kubernetes-int-or-string" in node:
        plain["type"] = ["integer", "string"]
    if "anyOf" in node:
        plain["anyOf"] = [_inlined(option, definitions) for option in node["anyOf"]]
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            plain[key] = _inlined(node[key], definitions)
    if "properties" in node:
        plain["properties"] = {name: _inlined(each, definitions) for name, each in node["properties"].items()}
        plain["additionalProperties"] = False
    for pattern, value in node.get("patternProperties", {}).items():  # it allows all other keys
        plain["propertyNames"] = {**node.get("propertyNames", {}), "pattern": pattern}
        plain["additionalProperties"] = _inlined(value, definitions)
    return plain


def _dereferenced(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node with its definition in place; its own keys win."""
    if "$ref" not in node:
        return dict(node)
    own = {key: value for key, value in node.items() if key != "$ref"}
    return {**definitions[node["$ref"].rsplit("/", 1)[1]], **own}


def _without_null(node: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return `anyOf [X, null]` as X that may be null: a validator then names what is wrong with X."""
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) != 1:
        return node
    option = _dereferenced(options[0], definitions)
    own = {key: value for key, value in node.items() if key != "anyOf"}
    return {**option, **own} | ({"type": [option["type"], "null"]} if "type" in option else {})


def _remove(schema: dict[str, Any], path: tuple[str, ...]) -> None:
    for key in path[:-1]:
        schema = schema["properties"][key]
    del schema["properties"][path[-1]]
    if path[-1] in schema.get("required", ()):
        schema["required"].remove(path[-1])


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = {**base, **over}
    for key in base.keys() & over.keys():
        if isinstance(base[key], dict) and isinstance(over[key], dict):
            both[key] = _merged(base[key], over[key])
    return both


def rendered(node: Any, indent: int = 0) -> str:
    """Return JSON text, with what fits into a line on a line."""
    line = json.dumps(node, ensure_ascii=False)
    if not isinstance(node, dict) or len(line) + indent <= WIDTH:
        return line
    inner = " " * (indent + 2)
    fields = (f"{inner}{json.dumps(key)}: {rendered(value, indent + 2)}" for key, value in node.items())
    return "{\n" + ",\n".join(fields) + "\n" + " " * indent + "}"


def contents() -> dict[Path, str]:
    """Return the text of each generated file, by its path in the chart."""
    crds = {Path("files/crds") / path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    return {Path("values.schema.json"): rendered(values_schema()) + "\n", **crds}


def stale(expected: Mapping[Path, str], chart: Path) -> list[Path]:
    """Return the files of the chart that differ, missing and superfluous ones included."""
    copies = {path.relative_to(chart) for path in (chart / "files" / "crds").glob("*.yaml")}
    return sorted(path for path in expected.keys() | copies if _text(chart / path) != expected.get(path))


def write(expected: Mapping[Path, str], chart: Path) -> None:
    """Make the files of the chart those expected."""
    for path in stale(expected, chart):
        if path in expected:
            (chart / path).parent.mkdir(parents=True, exist_ok=True)
            (chart / path).write_text(expected[path])
        else:
            (chart / path).unlink()


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def main() -> int:
    """Write the files, or with `--check` only name the stale ones (exit 1)."""
    parser = argparse.ArgumentParser(prog="python -m charts.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is stale")
    if not parser.parse_args().check:
        write(contents(), CHART)
        return 0
    names = stale(contents(), CHART)
    for name in names:
        sys.stderr.write(f"{(CHART / name).relative_to(ROOT)} is stale: run `make generate`\n")
    return int(bool(names))


if __name__ == "__main__":
    sys.exit(main())
