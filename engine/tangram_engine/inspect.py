"""`tangram-engine inspect`: validate a checkpoint without torch and report its facts as one JSON document.

The operator runs this as a short Job and reads the document from the container's termination message
(Kubernetes keeps at most 4096 bytes of it). Field names are those of the operator's `CheckpointFacts`.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

from tangram_engine.checkpoint import EMBEDDING, Checkpoint, CheckpointError, read_checkpoint

SCHEMA = 1
EXIT_ARGUMENT = 2
EXIT_REFUSED = 3
DOCUMENT_LIMIT = 4096  # bytes; the kubelet cuts termination messages there
MESSAGE_LIMIT = 1000  # characters


def inspect(model: Path, termination_log: Path | None) -> int:
    """Print the document (and write it to `termination_log`); the exit status: 0, or 3 when refused."""
    try:
        document = {"schema": SCHEMA, "facts": facts(checked(model))}
        status = 0
    except CheckpointError as error:
        document = refusal(error)
        status = EXIT_REFUSED
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    if termination_log is not None:
        try:
            termination_log.write_text(text, encoding="ascii")
        except OSError as error:
            sys.stderr.write(f"--termination-log {termination_log}: {error.strerror}\n")
            return EXIT_ARGUMENT
    return status


def checked(model: Path) -> Checkpoint:
    """The checkpoint, if it can be served: weights and tokenizer. Raises CheckpointError."""
    from tangram_engine.serve.tokenizer import load_tokenizer  # noqa: PLC0415  (loads a native library)

    checkpoint = read_checkpoint(model)
    load_tokenizer(model, checkpoint.spec.vocab_size)
    return checkpoint


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
    }


def refusal(error: CheckpointError) -> dict[str, Any]:
    """The error document, always within the limits, whatever strangers wrote into file names."""
    message = (
        error.message if len(error.message) <= MESSAGE_LIMIT else error.message[: MESSAGE_LIMIT - 1] + "…"
    )
    # Escaped, one character can take twelve bytes (a surrogate pair): cut until the document fits.
    while len(json.dumps(message)) > DOCUMENT_LIMIT - 200:
        message = message[: len(message) * 3 // 4]
    return {"schema": SCHEMA, "error": {"reason": str(error.reason), "message": message}}
