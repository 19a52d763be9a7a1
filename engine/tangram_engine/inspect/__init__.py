"""`tangram-engine inspect`: validate a checkpoint without torch and report its facts as one JSON document.

The operator runs this as a short Job and reads the document from the container's termination message
(Kubernetes keeps at most 4096 bytes of it). Field names are those of the operator's `CheckpointFacts`.
"""

import base64
import json
import math
import resource
import sys
import traceback
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tangram_engine.checkpoint import (
    EMBEDDING,
    Checkpoint,
    CheckpointError,
    RefusalReason,
    read_checkpoint,
    read_other,
)

SCHEMA = 1
EXIT_FAILED = 1
EXIT_ARGUMENT = 2
EXIT_REFUSED = 3
DOCUMENT_LIMIT = 4096  # bytes; the kubelet cuts termination messages there
MESSAGE_LIMIT = 1000  # characters
OTHER_MESSAGE_LIMIT = 300  # characters, beside the config.json of a checkpoint for other runtimes
CONFIG_LIMIT = 3000  # characters of it, compressed
# Keys of config.json that change no size. `auto_map` names code, which no runtime is to load.
LEFT_OUT = frozenset(
    {"auto_map", "id2label", "label2id", "transformers_version", "_name_or_path", "task_specific_params"}
)
# Bytes of memory, one after the other, in an inspect Job of 1 GiB. `text.process` has a limit for loading.
MEMORY_LIMIT = 768 << 20
TEXT_MEMORY = 192 << 20


def inspect(model: Path, termination_log: Path | None) -> int:
    """Print the document (and write it to `termination_log`); return the exit status.

    0: accepted, or refused with what another runtime may serve of it; 1: a defect of this program;
    2: `termination_log` cannot be written; 3: refused.
    """
    return publish(*_report(model), {"--termination-log": termination_log})


def publish(document: dict[str, Any], status: int, files: Mapping[str, Path | None]) -> int:
    """Print a document and write it to `files`, by the name of their flag; return the exit status."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    for flag, file in files.items():
        try:
            if file is not None:
                file.write_text(text, encoding="ascii")
        except OSError as error:
            sys.stderr.write(f"{flag} {file}: {error.strerror}\n")
            return EXIT_ARGUMENT
    return status


def _report(model: Path) -> tuple[dict[str, Any], int]:
    """Document and exit status, whatever the checkpoint holds."""
    try:
        with _memory_limit():
            facts, vocab_size = _read(model)
        _check_text(model, vocab_size)
    except CheckpointError as error:
        other = _other(model)
        if other is None:
            return refusal(error.reason, error.message), EXIT_REFUSED
        return refusal(error.reason, error.message, OTHER_MESSAGE_LIMIT) | {"other": other}, 0
    except MemoryError:
        message = f"reading config.json and the headers needs more than {MEMORY_LIMIT >> 20} MiB of memory"
        return refusal(RefusalReason.INVALID, message), EXIT_REFUSED
    except Exception as error:  # noqa: BLE001  (a defect of this program; the report must come all the same)
        traceback.print_exc()
        return refusal("InspectionFailed", f"{type(error).__name__}: {error}"), EXIT_FAILED
    return {"schema": SCHEMA, "facts": facts}, 0


def _read(model: Path) -> tuple[dict[str, Any], int]:
    """Facts and vocabulary size. The headers themselves are let go of: the tokenizer needs the memory."""
    checkpoint = read_checkpoint(model)
    return facts(checkpoint), checkpoint.spec.vocab_size


def _other(model: Path) -> dict[str, Any] | None:
    """What other runtimes may serve of a checkpoint whose config.json this engine does not implement; None:
    the files are at fault, or config.json is too long for the document.
    """
    try:
        with _memory_limit():
            other = read_other(model)
    except (CheckpointError, MemoryError):
        return None
    config = "" if other is None else _compressed(other.config)
    if other is None or len(config) > CONFIG_LIMIT:
        return None
    return {"digest": other.digest, "weightBytes": other.weight_bytes, "config": config}


def _compressed(config: Mapping[str, Any]) -> str:
    """config.json without what changes no size, as the operator reads it: JSON, zlib, base64."""
    kept = {key: value for key, value in config.items() if not _is_left_out(key)}
    text = json.dumps(kept, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _is_left_out(key: str) -> bool:
    return key.endswith("_token_id") or key in LEFT_OUT


def _check_text(model: Path, vocab_size: int) -> None:
    """Load tokenizer and chat template as `serve` does, and use each once. Raises CheckpointError."""
    from tangram_engine.serve.text.client import TextClient  # noqa: PLC0415  (loads a native library)

    client = TextClient(model, vocab_size, memory=TEXT_MEMORY, workers=1)
    try:
        client.start()
    finally:
        client.close()


@contextmanager
def _memory_limit() -> Iterator[None]:
    """Let the address space grow by MEMORY_LIMIT at most: MemoryError comes before the kernel kills."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the operator plans with. Bytes are those of the tensors that are loaded."""
    spec = checkpoint.spec
    return {
        "architecture": spec.architecture,
        "digest": checkpoint.digest,
        "dtype": spec.dtype,
        "layers": spec.layers,
        "hiddenSize": spec.hidden_size,
        "heads": spec.heads,
        "kvHeads": spec.kv_heads,
        "headDim": spec.head_dim,
        "vocabSize": spec.vocab_size,
        "maxPositionEmbeddings": spec.max_position_embeddings,
        "parameters": sum(math.prod(entry.shape) for entry in checkpoint.tensors.values()),
        "weightBytes": checkpoint.weight_bytes,
        "embeddingBytes": checkpoint.tensors[EMBEDDING].nbytes,
        "tiedEmbeddings": spec.tied_embeddings,
        "attentionBias": spec.attention_bias,
        "qkNorm": spec.qk_norm,
    }


def refusal(reason: str, message: str, limit: int = MESSAGE_LIMIT) -> dict[str, Any]:
    """The error document, always within the limits, whatever is in the names of files and tensors."""
    message = message.encode("utf-8", "replace").decode()  # half of a surrogate pair cannot be stored
    if len(message) > limit:
        message = message[: limit - 1] + "…"
    # Escaped, one character can take twelve bytes (a surrogate pair): cut until the document fits.
    most = DOCUMENT_LIMIT - 200 if limit == MESSAGE_LIMIT else 2 * limit
    while len(json.dumps(message)) > most:
        message = message[: len(message) * 3 // 4]
    return {"schema": SCHEMA, "error": {"reason": str(reason), "message": message}}
