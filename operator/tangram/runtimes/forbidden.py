"""Flags and variables that are never rendered: they run code of a checkpoint, of a client or of a file that
nobody reviewed, read options from elsewhere, or open routes for development.

A flag is compared as argparse does: `_` is `-`, `=` ends the name, and the beginning of a name stands for it.
"""

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from tangram.runtimes.flag_names import flag_name

FLAGS = frozenset(
    {
        # Code of the checkpoint.
        *("--trust-remote-code", "--code-revision", "--hf-overrides", "--json-model-override-args"),
        *("--model-class-overrides", "--model-loader-extra-config", "--custom-weight-loader"),
        # Code by the name of a module or a file.
        *("--worker-cls", "--worker-extension-cls", "--scheduler-cls", "--logits-processors", "--middleware"),
        *("--tool-parser-plugin", "--reasoning-parser-plugin", "--io-processor-plugin", "--forward-hooks"),
        *("--enable-sidecar", "--sidecar", "--additional-config", "--compilation-config", "-O", "-cc"),
        *("--kv-transfer-config", "--ec-transfer-config", "--unified-cache-external-linker-config"),
        *(
            "--distributed-executor-backend",
            "--speculative-config",
            "-sc",
            "--warmups",
            "--weight-transfer-config",
        ),
        # Code or templates of clients.
        *(
            "--enable-custom-logit-processor",
            "--trust-request-chat-template",
            "--tool-server",
            "--mcp-server",
        ),
        # Options from a file.
        *("--config", "--log-config-file", "--decrypted-config-file", "--decrypted-draft-config-file"),
        # Secrets in a command line, and other places to listen or to read.
        *("--api-key", "--hf-token", "--uds", "--allowed-local-media-path", "--profiler-config"),
        "--enable-tokenizer-info-endpoint",
    }
)
VARIABLES = frozenset(
    {
        *("VLLM_SERVER_DEV_MODE", "VLLM_PLUGINS", "VLLM_ALLOW_INSECURE_SERIALIZATION"),
        *("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_TORCH_PROFILER_DIR", "VLLM_HOST_IP", "VLLM_PORT"),
        *("SGLANG_EXTERNAL_MODEL_PACKAGE", "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE"),
        *(
            "SGL_FORCE_SHUTDOWN",
            "NIM_TRUST_CUSTOM_CODE",
            "NIM_FORCE_TRUST_REMOTE_CODE",
            "NIM_CUSTOM_GUIDED_DECODING_BACKENDS",
        ),
        *(
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "PYTHONHOME",
            "PYTHONINSPECT",
            "PYTHONUSERBASE",
            "BASH_ENV",
            "ENV",
            "PATH",
        ),
        *(
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "LD_AUDIT",
            "NCCL_NET_PLUGIN",
            "NCCL_TUNER_PLUGIN",
            "NCCL_PROFILER_PLUGIN",
        ),
        "TANGRAM_POD_UID",
    }
)
_SECRET_VARIABLES = ("_TOKEN", "_KEY", "_SECRET", "_PASSWORD", "_CREDENTIALS")
# Keys of options in JSON and YAML, and parts of words: `_`, `-`, a dot or nothing stands between their parts.
_KEYS = {
    key: re.compile(rf"(?<![a-z]){key.replace('_', '[^a-z]?')}(?![a-z])")
    for key in (
        "trust_remote_code",
        "trust_custom_code",
        "trust_request_chat_template",
        "auto_map",
        "code_revision",
    )
}
_MOST_DEPTH = 16
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u0085\u2028\u2029]")


def forbidden_flag(word: str, known: Collection[str] = ()) -> str:
    """Return the forbidden flag that a word sets or may stand for, the empty string where it sets none.

    `known`: flags of some version, which stand for themselves although another one begins like them.
    """
    name = flag_name(word).partition(".")[0]  # vLLM: --hf-overrides.key value
    positive = f"--{name[5:]}" if name.startswith("--no-") else name
    if name in FLAGS or positive in FLAGS:
        return positive if positive in FLAGS else name
    if name.startswith(("-O", "-cc", "-sc")):
        return name[:3]
    if name in known or not name.startswith("--"):
        return ""
    return next((flag for flag in sorted(FLAGS) if flag.startswith(name)), "")


def forbidden_variable(name: str) -> str:
    """Return why a variable is never set, the empty string where it may be."""
    upper = name.upper()
    if upper in VARIABLES or re.search("trust_?(remote|custom)_?code", name.lower()):
        return f"{name} runs code that is not the image's, or opens what must stay closed"
    if upper.endswith(_SECRET_VARIABLES):
        return f"{name} holds a secret, and the value of a variable is no secret"
    return ""


def forbidden_value(text: str) -> str:
    """Return why a value is never admissible, the empty string where it may be: it has a control character,
    or sets a forbidden key anywhere in JSON, in YAML or in words.
    """
    if _CONTROL.search(text):
        return "has a line break or another control character"
    parts = (part.lower() for part in (text, *_decoded(text)))
    key = next((key for part in parts for key, pattern in _KEYS.items() if pattern.search(part)), "")
    return f"sets {key}, which runs code of the checkpoint or of clients" if key else ""


def _decoded(text: str) -> Iterator[str]:
    """Yield the keys and texts of a value in JSON: `\\u0074` is a letter there."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    yield from _texts(document, 0)


def _texts(value: Any, depth: int) -> Iterator[str]:
    if depth > _MOST_DEPTH:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _texts(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, depth + 1)
    elif isinstance(value, str):
        yield value
        yield from _decoded(value) if depth < _MOST_DEPTH and value[:1] in "{[" else ()
