"""Which engine people mean, and how old it is: names and versions in anybody's spelling."""

import re
from dataclasses import replace
from typing import NamedTuple

from tangram.capacity.steps.step import Coefficients

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
    """Who runs the model: vllm, sglang, trtllm, tangram …, and its version where known ("": not told)."""

    name: str
    version: str | None


def engine(name: str | None, version: str | None = None) -> EngineVersion:
    """Return the engine by its usual name: `TensorRT-LLM`, `vLLM v0.6.3` and `vllm-0.6.3` are understood."""
    text = (name or "").strip().lower()
    found = next((known for start, known in _NAMES if re.sub(r"[^a-z0-9]", "", text).startswith(start)), None)
    told = None if version is None else version.strip().lower().partition("+")[0].removeprefix("v")
    if found is None:
        return EngineVersion(text, told)
    inside = re.search(rf"[\s_:=@-]{_VERSION.pattern}$", text)
    return EngineVersion(found, told or (inside[1] if inside else told))


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
# best of most. 2023: on Splitwise's, where A100 wants 6 and H100 wants 4.
OVERHEADS = {2023: 5.0, 2024: 2.0}


def year(of: EngineVersion) -> int | None:
    """Return 2023 or 2024 if the engine is as old as that; None: newer, or nobody knows."""
    version = of.version or ""
    if told := _YEAR.match(version):
        return int(told[0]) if of.name != "lmdeploy" and int(told[0]) in OVERHEADS else None
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    if of.name not in _FIRST or not numbers:
        return None
    of_2024, of_2025 = _FIRST[of.name]
    return 2023 if numbers < of_2024 else 2024 if numbers < of_2025 else None


def aged(coefficients: Coefficients, of_year: int | None) -> Coefficients:
    """Return what an engine of that year would have had."""
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
