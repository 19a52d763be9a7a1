"""`tangram-engine serve`, `inspect` and `evaluate`: the contract between operator and engine."""

import argparse
import gc
import math
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run it. Argument errors exit with 2. Flags are named as what they set."""
    options = vars(_parser().parse_args(arguments))
    command = options.pop("command")
    if command == "inspect":
        from tangram_engine.inspect import inspect  # noqa: PLC0415  (must not load the server)

        return inspect(**options)
    if command == "evaluate":
        from tangram_engine.evaluate import evaluate  # noqa: PLC0415

        return evaluate(**options)
    return _serve(options)


def _serve(options: dict[str, Any]) -> int:
    # The imports take seconds on a small share of a CPU, and there is nothing yet that would have to be ended
    # in order. In an image without an init, process 1 would ignore the signals that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    gc.disable()  # modules are made to stay: looking for garbage among them is a tenth of the start
    from tangram_engine.config import EngineConfig  # noqa: PLC0415
    from tangram_engine.serve.server import ServeOptions, serve  # noqa: PLC0415
    from tangram_http.connections import ConnectionLimits  # noqa: PLC0415

    gc.freeze()
    gc.enable()

    def settings(kind: Any, **others: Any) -> Any:
        values = options | others
        return kind(**{field.name: values[field.name] for field in fields(kind)})

    seconds = {name: options[name] for name in ("header_seconds", "idle_seconds", "stall_seconds")}
    limits = ConnectionLimits(connections=options["max_connections"], **seconds)
    server = settings(ServeOptions, served_name=options["served_model_name"], limits=limits)
    return serve(server, settings(EngineConfig))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tangram-engine", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser(
        "inspect", help="validate a checkpoint and print its facts", allow_abbrev=False
    )
    inspect.add_argument("--model", type=Path, required=True, metavar="DIR")
    inspect.add_argument("--termination-log", type=Path, metavar="FILE")
    _add_evaluate(commands)
    serve = commands.add_parser("serve", help="serve the OpenAI API", allow_abbrev=False)
    serve.add_argument("--model", type=Path, required=True, metavar="DIR")
    serve.add_argument("--served-model-name", required=True, metavar="NAME")
    serve.add_argument("--host", default="", help="default: every address, of IPv6 and of IPv4")
    serve.add_argument("--port", type=_integer(0, 65535), default=8000)
    serve.add_argument("--max-model-len", type=_integer(2), help="tokens; default: the model's own context")
    serve.add_argument("--max-num-seqs", type=_integer(1), default=64, help="sequences in one step")
    serve.add_argument("--max-num-batched-tokens", type=_integer(1), help="tokens in one step")
    serve.add_argument("--block-size", type=_integer(1, 1024), default=16, help="tokens per KV block")
    serve.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    serve.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    serve.add_argument("--gpu-memory-utilization", type=_share, default=0.9, help="share of the GPU or slice")
    serve.add_argument("--kv-cache-bytes", type=_integer(1), help="default: what the memory leaves")
    serve.add_argument("--max-queued-requests", type=_integer(0), default=256, help="beyond them: 429")
    serve.add_argument("--max-request-seconds", type=_duration, default=600.0, help="then it ends: timeout")
    serve.add_argument("--drain-seconds", type=_seconds, default=5.0, help="still accepting after SIGTERM")
    serve.add_argument(
        "--generation-config",
        choices=("auto", "vllm"),
        default="auto",
        help="sampling defaults: auto reads generation_config.json of the model, vllm has none",
    )
    serve.add_argument(
        "--step-timeout-seconds", type=_duration, default=60.0, help="a longer step is hung: /health says 503"
    )
    serve.add_argument(
        "--load-format",
        choices=("auto", "dummy"),
        default="auto",
        help="dummy: random weights in the shapes of config.json, for benchmarks; needs no safetensors",
    )
    serve.add_argument(
        "--quantize",
        choices=("fp8", "int4"),
        help="keep the layers' weights in this format, made while they are read; default: as stored",
    )
    serve.add_argument("--seed", type=_integer(0), default=0, help="of requests that bring none")
    serve.add_argument("--max-connections", type=_integer(1), default=1024, help="then the idlest closes")
    serve.add_argument("--max-body-bytes-in-flight", type=_integer(0), default=256 << 20, help="beyond: 503")
    serve.add_argument("--header-seconds", type=_duration, default=10.0, help="for a request's headers")
    serve.add_argument("--body-seconds", type=_duration, default=20.0, help="for a request's body")
    serve.add_argument("--idle-seconds", type=_duration, default=75.0, help="then an idle connection closes")
    serve.add_argument(
        "--stall-seconds", type=_duration, default=30.0, help="for a client that reads nothing"
    )
    serve.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="one key a line, read again when the file changes; default: no key",
    )
    serve.add_argument(
        "--tool-call-parser",
        choices=("auto", "none", "deepseek", "harmony", "hermes", "llama3_json", "mistral", "qwen3_coder"),
        default="auto",
        help="the format of the model's tool calls; auto: by its chat template",
    )
    serve.add_argument(
        "--reasoning-parser",
        choices=("auto", "none", "think"),
        default="auto",
        help="think: answers begin with reasoning between <think> tags; auto: by the chat template",
    )
    serve.add_argument(
        "--allowed-origins",
        type=_origin,
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="web pages that may call from a browser: https://chat.example.com, or * for all; default: none",
    )
    return parser


def _add_evaluate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    evaluate = commands.add_parser(
        "evaluate", help="compare a quantised format with the checkpoint's own", allow_abbrev=False
    )
    evaluate.add_argument("--model", type=Path, required=True, metavar="DIR")
    evaluate.add_argument("--quantize", choices=("fp8", "int4"), required=True)
    evaluate.add_argument("--text", type=Path, metavar="FILE", help="UTF-8; default: a text of its own")
    evaluate.add_argument("--tokens", type=_integer(32, 1 << 20), default=4096, help="scored at most")
    evaluate.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    evaluate.add_argument("-o", "--output", type=Path, metavar="FILE", help="the report as JSON")
    evaluate.add_argument("--termination-log", type=Path, metavar="FILE")


def _integer(low: int, high: int = (1 << 63) - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
        return value

    parse.__name__ = "integer"  # argparse says "invalid integer value"
    return parse


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0 <= value <= 86400):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds between 0 and 86400")
    return value


def _duration(text: str) -> float:
    value = _seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 s is no duration: it must be above 0")
    return value


def _origin(text: str) -> str:
    if text != "*" and not _ORIGIN.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither * nor an origin as browsers write it: scheme://host or scheme://host:port, "
            "in small letters, without a path"
        )
    return text


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
