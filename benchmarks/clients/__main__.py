"""Clients of others against the engine, each unchanged and in a virtual environment of its own.

    make clients [CLIENTS="litellm guidellm"]

The engine serves `models/tangram-tiny` on loopback, with a chat template that reads tools. What a client asks is in
`use_NAME.py`, which ends with an error where an answer is not what the client's users expect; load generators run by
their own command, and a run counts only where every request was answered. Environments are removed after use: the
packages stay in the cache of uv. The table names the versions, and why a client fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.dialect_servers import repeating_server
from tests.support.engine_process import EngineProcess, engine_process

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL = ROOT / "models" / "tangram-tiny"
TIMEOUT_S = 540
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|system|>\n{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for m in messages %}{% set role = 'user' if m.role == 'tool' else m.role %}<|{{ role }}|>\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@dataclass(frozen=True)
class Target:
    """What a client is given."""

    url: str
    model: Path  # the checkpoint, for tokenizers
    scratch: Path


@dataclass(frozen=True)
class Client:
    """One client: what pip installs, and its command behind the interpreter of the environment."""

    needs: tuple[str, ...]
    command: Callable[[Target], list[str]]
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"
    program: str = "python"
    environment: dict[str, str] = field(default_factory=dict)
    repeats: bool = False  # whether the engine repeats its prompt instead of serving the model


def script(name: str) -> Callable[[Target], list[str]]:
    return lambda target: [str(HERE / f"{name}.py"), target.url]


def guidellm(target: Target) -> list[str]:
    options = {
        "backend": f"kind=openai_http,target={target.url},model=tiny",
        "profile": "kind=concurrent,streams=2",
        "constraint": "kind=max_requests,count=8",
        "tokenizer": f"kind=hf_auto,model={target.model}",
        "data": "kind=synthetic_text,prompt_tokens=24,output_tokens=12",
        "output": f"kind=json,path={target.scratch}/report.json",
    }
    return ["run", "--disable-progress", *(f"--{name}={value}" for name, value in options.items())]


def aiperf(target: Target) -> list[str]:
    lengths = ["--synthetic-input-tokens-mean", "24", "--output-tokens-mean", "12"]
    load = ["--concurrency", "2", "--request-count", "8", "--streaming", "--endpoint-type", "chat"]
    where = ["--url", target.url, "--model", "tiny", "--tokenizer", str(target.model)]
    folder = ["--output-artifact-dir", str(target.scratch), "--ui", "none"]
    return ["profile", *where, *load, *lengths, *folder]


def inference_perf(target: Target) -> list[str]:
    text = (HERE / "inference_perf.yml").read_text()
    config = target.scratch / "config.yml"
    config.write_text(
        text.replace("URL", target.url)
        .replace("TOKENIZER", str(target.model))
        .replace("FOLDER", str(target.scratch))
    )
    return ["--config_file", str(config)]


def lm_eval(task: str) -> Callable[[Target], list[str]]:
    def command(target: Target) -> list[str]:
        data = (HERE / "lm_eval_task" / f"{task}.yaml").read_text()
        (target.scratch / "task.yaml").write_text(data.replace("FOLDER", str(HERE / "lm_eval_task")))
        server = f"model=tiny,base_url={target.url}/v1/completions,max_retries=1"
        model = f"{server},tokenizer={target.model},tokenizer_backend=huggingface"
        what = ["--tasks", f"tangram_{task}", "--include_path", str(target.scratch), "--batch_size", "1"]
        return ["--model", "local-completions", "--model_args", model, *what]

    return command


CLIENTS: dict[str, Client] = {
    "sdk_exchanges": Client(
        ("openai", "anthropic"),
        lambda target: [
            str(HERE / "sdk_exchanges.py"),
            target.url,
            str(ROOT / "tests/engine_server/sdk_exchanges.json"),
        ],
        environment={"PYTHONPATH": str(ROOT)},
        repeats=True,
    ),
    "langchain-openai": Client(("langchain-openai",), script("use_langchain_openai")),
    "litellm": Client(("litellm",), script("use_litellm")),
    "instructor": Client(("instructor",), script("use_instructor")),
    "pydantic-ai": Client(("pydantic-ai-slim[openai,anthropic]",), script("use_pydantic_ai")),
    "lm-eval": Client(("lm-eval[api]", "transformers"), lm_eval("words"), program="lm_eval"),
    # Likelihoods of texts: it asks for `echo` with `logprobs`.
    "lm-eval-choices": Client(("lm-eval[api]", "transformers"), lm_eval("choices"), program="lm_eval"),
    "guidellm": Client(("guidellm",), guidellm, program="guidellm"),
    "inference-perf": Client(("inference-perf",), inference_perf, python="3.12", program="inference-perf"),
    "aiperf": Client(("aiperf",), aiperf, program="aiperf", environment={"HF_HUB_OFFLINE": ""}),
}


@dataclass(frozen=True)
class Row:
    """What became of a client."""

    name: str
    versions: str
    works: bool
    seconds: float
    last_words: str


def model_with_tools(folder: Path) -> Path:
    model = folder / "model"
    shutil.copytree(MODEL, model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


@contextmanager
def environment(client: Client, folder: Path) -> Iterator[Path]:
    """An environment with the client, which is removed."""
    home = folder / "environment"
    uv = [str(ROOT / ".venv" / "bin" / "uv")]
    try:
        subprocess.run([*uv, "venv", "--quiet", "--python", client.python, home], check=True)
        install = ["pip", "install", "--quiet", "--python", str(home / "bin" / "python")]
        subprocess.run([*uv, *install, *client.needs], check=True, timeout=TIMEOUT_S)
        yield home / "bin"
    finally:
        shutil.rmtree(home, ignore_errors=True)


def versions(binaries: Path, needs: Sequence[str]) -> str:
    names = [need.partition("[")[0] for need in needs]
    code = "import sys; from importlib.metadata import version; print(', '.join(f'{n} {version(n)}' for n in sys.argv[1:]))"
    run = subprocess.run(
        [binaries / "python", "-c", code, *names], check=True, capture_output=True, text=True
    )
    return run.stdout.strip()


def counted(server: EngineProcess) -> tuple[float, float]:
    """Answers and refusals so far."""
    return server.metric("vllm:request_success_total"), server.metric("tangram:requests_rejected_total")


def use(name: str, client: Client, server: EngineProcess, model: Path, folder: Path) -> Row:
    with environment(client, folder) as binaries, tempfile.TemporaryDirectory(dir=folder) as scratch:
        target = Target(server.url, model, Path(scratch))
        offline = {
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "NO_PROXY": "127.0.0.1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        keys = {"OPENAI_API_KEY": "key", "ANTHROPIC_API_KEY": "key"}
        environ = os.environ | offline | keys | {"HF_HOME": scratch, "PYTHONPATH": ""} | client.environment
        before, begin = counted(server), time.monotonic()
        run = subprocess.run(
            [binaries / client.program, *client.command(target)],
            env=environ,
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        seconds = time.monotonic() - begin
        served, refused = (now - then for now, then in zip(counted(server), before, strict=True))
        (ROOT / "build").mkdir(exist_ok=True)
        (ROOT / "build" / f"client-{name}.log").write_text(run.stdout + run.stderr)
        lines = [
            line.strip()
            for line in (run.stderr if run.returncode else run.stdout).splitlines()
            if line.strip()
        ]
        last = lines[-1][:160] if lines and (run.returncode or client.program == "python") else ""
        works = run.returncode == 0 and served > 0
        words = f"{served:.0f} answers, {refused:.0f} refusals. {last}"
        return Row(name, versions(binaries, client.needs), works, seconds, words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "clients", nargs="*", default=list(CLIENTS), metavar="CLIENT", help=", ".join(CLIENTS)
    )
    chosen = parser.parse_args().clients
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = model_with_tools(folder)
        for name in chosen:
            client = CLIENTS[name]
            repeated = folder / name
            repeated.mkdir()
            serving = (
                repeating_server(repeated)
                if client.repeats
                else engine_process(model, repeated / "log", "--device", "cpu", "--max-num-seqs", "8")
            )
            with serving as server:
                try:
                    row = use(name, client, server, model, repeated)
                except (subprocess.SubprocessError, OSError) as error:
                    row = Row(name, ", ".join(client.needs), False, 0.0, str(error)[:160])
            rows.append(row)
            print(
                f"{row.name}: {'works' if row.works else 'FAILS'} ({row.versions}), {row.seconds:.0f} s. {row.last_words}"
            )
    return 0 if all(row.works for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
