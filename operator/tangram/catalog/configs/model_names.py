"""Parts of a checkpoint's name beside its model: uploader, tuning and weight format."""

import re
from collections.abc import Iterator

# Accounts that upload models of others, unchanged or quantised. A folder of another name stays a folder.
_OWNERS = {
    "amd", "bartowski", "casperhansen", "cyankiwi", "deepseek-ai", "gaunernst", "google",
    "hugging-quants", "ibnzterrell", "intel", "ista-daslab", "kaitchup", "lmstudio-community",
    "meta-llama", "microsoft", "mistralai", "modelcloud", "moonshotai", "neuralmagic", "nm-testing",
    "nousresearch", "nvidia", "openai", "quanttrio", "qwen", "redhatai", "solidrust", "stelterlab",
    "thebloke", "unsloth",
}  # fmt: skip
SIXTEEN_BITS = "16 bits"  # not quantised, in the data type of the model
# Ends of names, and the weight format that they stand for; none: tensors and sizes are the same.
_FORMATS = (
    (r"gptq[-_]?(?:int)?8(?:bit)?", "int8_gptq"),
    (r"gptq(?:[-_]?(?:int)?4(?:bit)?)?(?:[-_]g?128g?)?", "int4_gptq"),
    (r"awq(?:[-_]?(?:int)?4(?:bit)?)?", "int4"),
    (r"(?:quantized[._-])?(?:int4[-_])?w4a16(?:[-_]g128)?", "int4"),
    (r"(?:unsloth[-_])?(?:bnb[-_])?4bit|int4", "int4"),
    (r"(?:quantized[._-])?(?:int8[-_])?w8a8", "int8"),
    (r"fp8[-_]block", "fp8_block"),
    (r"fp8(?:[-_](?:dynamic|kv))?", "fp8"),
    (r"nvfp4|fp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"bf16|fp16", SIXTEEN_BITS),
    (r"instruct|chat|it|hf|base", None),
)
_END = re.compile(
    r"[-_ ](?:" + "|".join(f"(?P<f{at}>{form})" for at, (form, _) in enumerate(_FORMATS)) + r")$"
)


def meanings(name: str) -> Iterator[tuple[str, str | None]]:
    """Return what a name may stand for, nearest first: a shorter name, and the weight format in the rest.

    `unsloth/Qwen3-32B-Instruct-AWQ` may be Qwen3-32B-Instruct-AWQ, Qwen3-32B-Instruct in int4, or Qwen3-32B.
    """
    left, form = name.strip().lower(), None
    yield left, form
    owner, _, rest = left.partition("/")
    if owner in _OWNERS and rest and "/" not in rest:
        left = rest
        yield left, form
    while ending := _END.search(left):
        named_form = _FORMATS[int((ending.lastgroup or "f0")[1:])][1]
        left, form = left[: ending.start()], form or named_form
        yield left, form
        if left.startswith("meta-"):
            yield left.removeprefix("meta-"), form
