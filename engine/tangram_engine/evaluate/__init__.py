"""`tangram-engine evaluate`: compare a quantised format with the checkpoint's own, and report the figures.

The operator runs this as a Job on the GPU or slice that would serve the format, and reads the report from the
container's termination message (at most 4096 bytes). Field names are those of the operator's API.
"""

import hashlib
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tangram_engine.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from tangram_engine.checkpoint.errors import invalid, not_found
from tangram_engine.inspect import EXIT_FAILED, EXIT_REFUSED, SCHEMA, publish, refusal
from tangram_engine.start_error import StartError

TOKENS = 4096  # scored, of the built-in text all that it has
FEWEST = 32  # tokens, below which a figure means nothing
_TEXT_LIMIT = 8 << 20  # bytes of a --text file
_BUILT_IN = Path(__file__).parent / "text.txt"


def evaluate(
    model: Path,
    quantize: str,
    *,
    text: Path | None = None,
    tokens: int = TOKENS,
    device: str = "auto",
    output: Path | None = None,
    termination_log: Path | None = None,
) -> int:
    """Print the report, write it to `output` and `termination_log`; return the exit status.

    0: compared, whatever the figures; 1: a defect of this program; 2: a file cannot be written; 3: refused.
    """
    try:
        document, status = _report(model, quantize, text, tokens, device), 0
    except CheckpointError as error:
        document, status = refusal(error.reason, error.message), EXIT_REFUSED
    except StartError as error:  # another attempt finds as little memory, but perhaps another GPU
        reason = type(error).__name__
        document = refusal(reason, str(error))
        status = EXIT_REFUSED if reason == "OutOfMemory" else EXIT_FAILED
    except Exception as error:  # noqa: BLE001  (a defect of this program; the report must come all the same)
        traceback.print_exc()
        document = refusal("EvaluationFailed", f"{type(error).__name__}: {error}")
        status = EXIT_FAILED
    return publish(document, status, {"--output": output, "--termination-log": termination_log})


def _report(model: Path, quantize: str, text: Path | None, tokens: int, device: str) -> dict[str, Any]:
    began = time.perf_counter()
    checkpoint = read_checkpoint(model)
    words, name = _text(text)
    ids = _token_ids(model, checkpoint, words)
    measured, environment = _measure(checkpoint, ids, quantize, tokens, device)
    figures = {"digest": checkpoint.digest, "format": quantize, **measured, "text": name, **environment}
    return {"schema": SCHEMA, "evaluation": figures | {"seconds": round(time.perf_counter() - began, 1)}}


def _text(path: Path | None) -> tuple[str, str]:
    """The text, and what the report calls it."""
    raw = _BUILT_IN.read_bytes()
    if path is not None:
        try:
            raw = path.read_bytes() if path.stat().st_size <= _TEXT_LIMIT else b""
        except OSError as error:
            raise not_found(f"--text {path}: {error.strerror}") from None
        if not raw:
            raise invalid(f"--text {path}: empty, or more than {_TEXT_LIMIT >> 20} MiB")
    try:
        words = raw.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"--text {path}: not UTF-8 at byte {error.start}") from None
    return words, "built-in" if path is None else f"sha256:{hashlib.sha256(raw).hexdigest()[:16]}"


def _token_ids(model: Path, checkpoint: Checkpoint, words: str) -> tuple[int, ...]:
    """Tokenize paragraph by paragraph, in the process without rights that also serves clients."""
    from tangram_engine.serve.text.client import TextClient, TextUnavailable  # noqa: PLC0415
    from tangram_engine.serve.text.tokenizer import TokenizerError  # noqa: PLC0415

    client = TextClient(model, checkpoint.spec.vocab_size, workers=1)
    ids: list[int] = []
    try:
        client.start()
        for paragraph in words.split("\n\n"):
            ids += client.encode(paragraph + "\n\n", 1 << 20, add_special_tokens=False)
    except (TokenizerError, TextUnavailable) as error:
        raise invalid(f"the text cannot be tokenized: {error}") from None
    finally:
        client.close()
    if len(ids) < FEWEST:
        raise invalid(f"the text has {len(ids)} tokens, and at least {FEWEST} are needed: a longer one")
    return tuple(ids)


def _measure(
    checkpoint: Checkpoint, ids: Sequence[int], quantize: str, tokens: int, device: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures, and what they were measured with."""
    import torch  # noqa: PLC0415  (a refusal of the checkpoint must not wait for it)

    from tangram_engine.evaluate.compare import compare, windows  # noqa: PLC0415
    from tangram_engine.models import quantized_on_load  # noqa: PLC0415
    from tangram_engine.quantize import GROUP  # noqa: PLC0415
    from tangram_engine.run import OutOfMemory  # noqa: PLC0415
    from tangram_engine.run.device import (  # noqa: PLC0415
        choose_dtype,
        is_out_of_memory,
        limit_threads,
        open_device,
    )

    where, spec = open_device(device), checkpoint.spec
    if where.type == "cpu":
        limit_threads()
    dtype = choose_dtype("auto", spec.dtype, where, quantized=True)  # of both forms, as `serve --quantize`
    try:
        make = quantized_on_load(spec, quantize, dtype, where)
        comparison = compare(checkpoint, windows(ids, spec, tokens), make, dtype, where)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"{error}; evaluate on a larger GPU or slice") from error
    if not comparison.is_finite:
        raise invalid(f"the {quantize} model computes numbers that are not finite")
    figures = {_camel(key): _rounded(value) for key, value in asdict(comparison).items()}
    device_name = torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu"
    versions = {"tangram": _version(), "torch": torch.__version__}
    environment = {"dtype": str(dtype).removeprefix("torch."), "device": device_name, "versions": versions}
    return figures, environment | ({"groupSize": GROUP} if quantize == "int4" else {})


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.8g}")


def _version() -> str:
    try:
        return version("tangram-operator")
    except PackageNotFoundError:
        return ""
