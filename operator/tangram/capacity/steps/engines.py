"""Engine names and versions in any spelling, and the overhead of old versions."""

import re
from dataclasses import replace
from typing import NamedTuple

from tangram.capacity.steps.step_model import Coefficients

# By what a name begins with once only letters and digits are left, the longest first.
_NAMES = (
    ("textgenerationinference", "tgi"),
    ("tensorrtllm", "trtllm"),
    ("tensorrt", "trtllm"),
    ("turbomind", "lmdeploy"),
    ("lmdeploy", "lmdeploy"),
    ("trtllm", "trtllm"),
    ("sglang", "sglang"),
    ("vllm", "vllm"),
    ("tgi", "tgi"),
    ("trt", "trtllm"),
)
_VERSION = re.compile(r"v?(\d[\w.]*)")
_YEAR = re.compile(r"20[12]\d")


class EngineVersion(NamedTuple):
    """An engine (vllm, sglang, trtllm, tangram …), and its version where known ("": measured without one)."""

    name: str
    version: str | None


def engine(name: str | None, version: str | None = None) -> EngineVersion:
    """Return the engine by its usual name: `TensorRT-LLM`, `vLLM v0.6.3` and `vllm-0.6.3` are understood."""
    text = (name or "").strip().lower()
    plain = re.sub(r"[^a-z0-9]", "", text)
    usual_name = next((usual for start, usual in _NAMES if plain.startswith(start)), None)
    stated = None if version is None else version.strip().lower().partition("+")[0].removeprefix("v")
    if usual_name is None:
        return EngineVersion(text, stated)
    inside = re.search(rf"[\s_:=@-]{_VERSION.pattern}$", text)
    return EngineVersion(usual_name, stated or (inside[1] if inside else stated))


# The first version of 2024 (with CUDA graphs) and of 2025 (whose scheduler works beside the GPU), by release
# notes. LMDeploy's TurboMind, in C++, was no slower then.
_FIRST = {
    "vllm": ((0, 3), (0, 8)),
    "sglang": ((0, 1), (0, 4)),
    "trtllm": ((0, 0), (0, 17)),
    "tgi": ((0, 0), (3, 0)),
}
# What an engine spends beside its kernels, as a multiple of today. 2024: chosen by hand on token times
# that Qwen (vLLM 0.6.3, A100) and Argonne (vLLM and TensorRT-LLM, A100 and H100) published; twice is near the
# best of most. 2023: on Splitwise's, where A100 fits 6 and H100 fits 4.
OVERHEADS = {2023: 5.0, 2024: 2.0}


def year(of: EngineVersion) -> int | None:
    """Return 2023 or 2024 if the engine is as old as that; None: newer, or unknown."""
    version = of.version or ""
    if match := _YEAR.match(version):
        return int(match[0]) if of.name != "lmdeploy" and int(match[0]) in OVERHEADS else None
    numbers = tuple(int(digits) for digits in re.findall(r"\d+", version)[:2])
    if of.name not in _FIRST or not numbers:
        return None
    of_2024, of_2025 = _FIRST[of.name]
    return 2023 if numbers < of_2024 else 2024 if numbers < of_2025 else None


def aged(coefficients: Coefficients, of_year: int | None) -> Coefficients:
    """Return the coefficients with the overhead of engines of that year."""
    if of_year is None:
        return coefficients
    factor = OVERHEADS[of_year]
    return replace(
        coefficients,
        step_s=coefficients.step_s * factor,
        layer_s=coefficients.layer_s * factor,
        sequence_s=coefficients.sequence_s * factor,
        sequence_layer_s=coefficients.sequence_layer_s * factor,
    )
