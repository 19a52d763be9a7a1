"""EngineRuntimes as the chart ships them, with an image each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tangram.api import parse_engine_runtime
from tangram.fleet import EngineRuntime, InvalidEngineRuntime

FOLDER = Path(__file__).parents[2] / "charts" / "tangram" / "files" / "runtimes"
IMAGE = f"registry.example.com/engine@sha256:{'0' * 64}"
OTHERS = ("vllm", "sglang", "nim")


def shipped_spec(name: str, **changed: Any) -> dict[str, Any]:
    """Return the spec of a runtime of the chart, with an image and changed fields."""
    spec = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return spec | ({} if name == "tangram" else {"image": IMAGE}) | changed


def runtime_object(name: str, spec: Mapping[str, Any], **status: Any) -> dict[str, Any]:
    """Return an EngineRuntime as the API server has it."""
    metadata = {"name": name, "uid": f"uid-{name}", "generation": 1}
    return {"kind": "EngineRuntime", "metadata": metadata, "spec": dict(spec), "status": status}


def parsed(name: str, **changed: Any) -> EngineRuntime | InvalidEngineRuntime:
    """Return a runtime of the chart as it is parsed, with changed fields."""
    return parse_engine_runtime(runtime_object(name, shipped_spec(name, **changed)))


def shipped(name: str, **changed: Any) -> EngineRuntime:
    """Return a valid runtime of the chart."""
    runtime = parsed(name, **changed)
    assert isinstance(runtime, EngineRuntime), runtime
    return runtime


def refusal(name: str, **changed: Any) -> str:
    """Return why a runtime of the chart with changed fields is not accepted."""
    runtime = parsed(name, **changed)
    assert isinstance(runtime, InvalidEngineRuntime), runtime
    return runtime.message


def runtime_cases() -> list[dict[str, Any]]:
    """Return EngineRuntimes that API server and parser accept or refuse alike."""
    accepted = [
        {"name": name, "verdict": "accepted", "spec": shipped_spec(name)} for name in ("tangram", *OTHERS)
    ]
    changes: dict[str, tuple[dict[str, Any], str]] = {
        "tag": ({"image": "vllm/vllm-openai:latest"}, "a tag may name another program tomorrow"),
        "root": ({"runAsUser": 0}, "runAsUser"),
        "low-port": ({"port": 80}, "port"),
        "unknown-engine": ({"engine": "Ollama"}, "engine"),
        "too-many-words": ({"arguments": ["x"] * 129}, "arguments"),
        "long-word": ({"arguments": ["x" * 1025]}, "arguments"),
        "flag-with-a-value": ({"allowedArguments": ["--a=b"]}, "allowedArguments"),
        "variable-with-a-blank": ({"variables": [{"name": "A B", "value": ""}]}, "variables"),
        "path-with-a-query": ({"metrics": {"path": "/metrics?x"}}, "metrics"),
        "unknown-precision": ({"serves": {"precisions": ["fp9"]}}, "precisions"),
        "nine-gpus": ({"serves": {"maxTensorParallel": 9}}, "maxTensorParallel"),
    }
    refused = [
        {"name": name, "verdict": "refused", "spec": shipped_spec("vllm", **changed), "message": message}
        for name, (changed, message) in changes.items()
    ]
    return accepted + refused
