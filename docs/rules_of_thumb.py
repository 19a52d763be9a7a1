"""Well-known rules of thumb against the capacity model: what it says, and whether they agree.

    python docs/rules_of_thumb.py

prints the body of `docs/rules-of-thumb.md`, where `docs/refresh.py` puts it. The words are in
`rules_of_thumb.yaml`, every number is computed here.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml

from tangram.capacity.hardware import PCIE_GBPS, hardware
from tangram.capacity.memory.budget import GIB, memory_budget
from tangram.capacity.memory.engine_buffers import EngineSettings
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.sizing import SizedShape, SizingRequest, size
from tangram.capacity.steps.calibration import coefficients_for
from tangram.capacity.steps.step_model import Coefficients, StepModel
from tangram.catalog import Architecture, known_model
from tangram.fleet import WHOLE_GPU, Shape

ENGINE = "vllm"
AT_ONCE = 256  # requests: so many that hardware limits the rate, and not the engine's --max-num-seqs
H100, L40S, H200 = "H100-80GB-SXM", "L40S", "H200-141GB-SXM"
KIB, GB = 1024, 1e9
# Azure's conversation trace of 2023 (Splitwise, ISCA 2024): means, tokens.
PROMPT, ANSWER = 1155, 211
CONTEXT = 1024  # tokens that a decoding request attends to
AGREES, PARTLY, DISAGREES = "agrees", "partly", "does not agree"


@dataclass(frozen=True)
class Found:
    """What the model says of one rule. `value` decides the verdict; tests hold it to a range."""

    value: float
    verdict: str
    numbers: dict[str, float | str]


def _graded(value: float, agrees: tuple[float, float], partly: tuple[float, float] | None = None) -> str:
    if agrees[0] <= value <= agrees[1]:
        return AGREES
    return PARTLY if partly and partly[0] <= value <= partly[1] else DISAGREES


def _model(name: str) -> Architecture:
    found = known_model(name)
    if found is None:
        raise LookupError(name)
    return found


@cache
def _steps(name: str, weights: str, sku: str = H100, tp: int = 1) -> StepModel:
    """Step times of a well-known model on whole GPUs."""
    board = hardware(sku)
    known = coefficients_for(ENGINE, None, weights, sku, name).coefficients
    return StepModel(footprint(_model(name), weights, "bf16", tp, board), board, known)


def _data_sheet(model: StepModel) -> StepModel:
    return replace(model, coefficients=Coefficients())


def _single_stream(model: StepModel) -> float:
    """Tokens per second of one request alone."""
    return 1 / model.decode_s(1, CONTEXT).total


def _chat(name: str, form: str, sku: str = H100, tp: int = 1, profile: str = WHOLE_GPU) -> SizedShape:
    """What `tangram size` says of one shape for chat within P90 TTFT 1 s and P90 TPOT 50 ms."""
    request = SizingRequest(
        PROMPT,
        ANSWER,
        1.0,
        ttft_ms=1000,
        tpot_ms=50,
        engine=ENGINE,
        kv_precision="bf16",
        max_running=AT_ONCE,
    )
    found = size(_model(name), request, among=[Shape(sku, profile, tp, form)])
    if not found.rows:
        raise LookupError(f"{name} {form} on {sku} {profile} TP{tp}: {found.rejected[0].message}")
    return found.rows[0]


def weights_7b() -> Found:
    """Bytes of weights."""
    names = {"llama2": "Llama-2-7B", "mistral": "Mistral-7B-v0.3", "qwen": "Qwen2.5-7B"}
    sizes = {key: footprint(_model(name), "fp16").weight_bytes / GB for key, name in names.items()}
    gib = sizes["llama2"] * GB / GIB
    return Found(sizes["llama2"], _graded(sizes["llama2"], (13.4, 14.6)), {**sizes, "gib": gib})


def weights_70b_int4() -> Found:
    """Bytes of weights with scales and zeros; embeddings and head in 16 bits."""
    old, new = (footprint(_model(name), "int4").weight_bytes for name in ("Llama-2-70B", "Llama-3-70B"))
    llama3 = _model("Llama-3-70B")
    tables = 2 * 2 * llama3.vocab_size * llama3.hidden_size
    verdict = _graded(max(old / GB, new / GIB), (35, 38))
    return Found(
        new / GB,
        verdict,
        {"llama2": old / GB, "llama3": new / GB, "gib": new / GIB, "tables": tables / GB},
    )


def serving_memory() -> Found:
    """Weights, cache and buffers over weights."""
    found: dict[str, float | str] = {
        "llama2": _serving_ratio("Llama-2-7B", "fp16", 16, PROMPT + ANSWER),
        "llama3": _serving_ratio("Llama-3-8B", "bf16", 16, PROMPT + ANSWER),
        "large": _serving_ratio("Llama-3-70B", "int4", 16, PROMPT + ANSWER),
    }
    long = _serving_ratio("Llama-3-8B", "bf16", 64, 8192)
    inside = [1.45 <= float(ratio) <= 2.05 for ratio in (*found.values(), long)]
    verdict = AGREES if all(inside) else PARTLY if any(inside) else DISAGREES
    return Found(long, verdict, {**found, "long": long})


def _serving_ratio(name: str, form: str, count: int, tokens: int) -> float:
    asked = EngineSettings(max_model_len=_model(name).max_position_embeddings, max_running=count)
    budget = memory_budget(footprint(_model(name), form), hardware(H200), asked)
    engine = budget.overhead - budget.reserve
    return (budget.weights + engine + count * budget.request_bytes(tokens)) / budget.weights


def kv_per_token() -> Found:
    """Bytes of cache per token."""
    full, grouped, large = (
        footprint(_model(name), "bf16").kv_bytes(1) / KIB
        for name in ("Llama-2-7B", "Llama-3-8B", "Llama-3-70B")
    )
    verdict = AGREES if (full, grouped) == (512, 128) else DISAGREES
    return Found(full / grouped, verdict, {"full": full, "grouped": grouped, "large": large})


def two_walls() -> Found:
    """The largest part of a decode step and of a prompt, of a request alone."""
    models = {
        "middle": _steps("Llama-3.1-8B", "bf16"),
        "large": _steps("Llama-3-70B", "fp8", tp=2),
        "small": _steps("Llama-3.2-1B", "bf16"),
    }
    walls = {
        key: (model.decode_s(1, CONTEXT).wall, model.step_s(0, 0, CONTEXT, CONTEXT / 2).wall)
        for key, model in models.items()
    }
    expected = sum(pair == ("memory bandwidth", "compute") for pair in walls.values())
    # From here on reading weights takes less time than the products, and does not count in a step.
    steps = models["middle"]
    turn = next(batch for batch in range(1, 4096) if steps.decode_s(batch, CONTEXT).weights_s == 0.0)
    told: dict[str, float | str] = {key: f"{decode} / {prompt}" for key, (decode, prompt) in walls.items()}
    verdict = AGREES if expected == len(walls) else PARTLY if expected else DISAGREES
    return Found(turn, verdict, {**told, "turn": turn})


def of_the_wire() -> Found:
    """Part of the data-sheet speed that one stream reaches."""
    model = _steps("Llama-3.1-8B", "bf16")
    ours, wire = _single_stream(model), _single_stream(_data_sheet(model))
    share = ours / wire
    verdict = _graded(share, (0.9, 1.0), partly=(0.5, 0.9))
    return Found(share, verdict, {"ours": ours, "wire": wire, "share": share})


def stream_70b_int4() -> Found:
    """Tokens per second of one stream."""
    model = _steps("Llama-3-70B", "int4")
    step, sheet = model.decode_s(1, CONTEXT), _data_sheet(model).decode_s(1, CONTEXT)
    ours = 1 / step.total
    numbers: dict[str, float | str] = {
        "ours": ours,
        "wire": 1 / sheet.total,
        "half": _single_stream(_data_sheet(_steps("Llama-3-70B", "fp16"))),
        "step_ms": step.total * 1e3,
        "launch_ms": step.launch_s * 1e3,
        "read_ms": step.weights_s * 1e3,
        "sheet_ms": sheet.weights_s * 1e3,
    }
    return Found(ours, _graded(ours, (25, 37)), numbers)


def prompt_speed() -> Found:
    """Part of peak FLOP/s that a long prompt reaches."""
    model, tokens = _steps("Llama-3.1-8B", "bf16"), 4 * CONTEXT
    rate = tokens / model.prefill_s(tokens)
    share = rate * model.footprint.linear_flops_per_token / (model.hardware.flops_of("bf16") or 1.0)
    return Found(share, _graded(share, (0.4, 0.6), partly=(0.3, 0.85)), {"rate": rate, "share": share})


def doubling() -> Found:
    """Tokens per second by batch; the largest batch that still gains 1.8 times over its half."""
    model = _steps("Llama-3.1-8B", "bf16")
    rates = {2**power: 2**power / model.decode_s(2**power, CONTEXT).total for power in range(9)}
    last = max((batch for batch in rates if batch > 1 and rates[batch] / rates[batch // 2] >= 1.8), default=1)
    numbers: dict[str, float | str] = {f"b{batch}": rate for batch, rate in rates.items()}
    late = rates[256] / rates[128]
    return Found(last, AGREES if last >= 16 else PARTLY, {**numbers, "last": last, "late": late})


def fp8_doubles() -> Found:
    """Requests per second within the objectives, FP8 over FP16."""
    half, eight = _chat("Llama-3-70B", "fp16", tp=4).max_rate, _chat("Llama-3-70B", "fp8", tp=4).max_rate
    pair = _chat("Llama-3-70B", "fp8", tp=2).max_rate
    gain, per_gpu = eight / half, (pair / 2) / (half / 4)
    verdict = AGREES if gain >= 1.8 else PARTLY if per_gpu >= 1.25 else DISAGREES
    return Found(gain, verdict, {"gain": gain, "pair": per_gpu})


def l40s() -> Found:
    """Dollars per million answer tokens, L40S over H100."""
    small, big = _chat("Llama-3.1-8B", "fp8", L40S), _chat("Llama-3.1-8B", "fp8")
    hour = {"small_hour": small.usd_per_hour / small.replicas, "big_hour": big.usd_per_hour / big.replicas}
    usd = {
        "small_usd": hour["small_hour"] / (small.max_rate * ANSWER * 3600) * 1e6,
        "big_usd": hour["big_hour"] / (big.max_rate * ANSWER * 3600) * 1e6,
    }
    fast, slow = _steps("Llama-3.1-8B", "fp8"), _steps("Llama-3.1-8B", "fp8", L40S)
    speed, money = _single_stream(fast) / _single_stream(slow), usd["small_usd"] / usd["big_usd"]
    ratios = {
        "speed": speed,
        "wires": fast.hardware.bandwidth / slow.hardware.bandwidth,
        "carries": big.max_rate / small.max_rate,
        "prices": hour["big_hour"] / hour["small_hour"],
    }
    verdict = DISAGREES if speed < 2 else AGREES if money < 0.95 else PARTLY
    return Found(money, verdict, {**hour, **usd, **ratios})


def nvlink() -> Found:
    """Part of a prompt's time that goes into all-reduces over PCIe."""
    joined = _steps("Llama-3-70B", "fp16", tp=4)
    board = replace(joined.hardware, nvlink=False, link_bandwidth=PCIE_GBPS[5] * 1e9)
    pair = joined, replace(joined, hardware=board)
    alone = [model.decode_s(1, CONTEXT).total for model in pair]
    prompt = [model.step_s(0, 0, 2 * CONTEXT, CONTEXT) for model in pair]
    share = prompt[1].communication_s / prompt[1].total
    numbers: dict[str, float | str] = {
        "share": share,
        "prompt": prompt[1].total / prompt[0].total,
        "decode": alone[1] / alone[0],
    }
    return Found(share, _graded(share, (0.4, 1.0), partly=(0.1, 0.4)), numbers)


def mig() -> Found:
    """Requests per second of slices that fill a GPU over those of the whole GPU."""
    whole = _chat("Llama-3.1-8B", "fp8").max_rate
    halves = 2 * _chat("Llama-3.1-8B", "fp8", profile="3g.40gb").max_rate / whole
    quarters = 3 * _chat("Llama-3.1-8B", "fp8", profile="2g.20gb").max_rate / whole
    best = max(halves, quarters)
    return Found(best, AGREES if best < 1.15 else DISAGREES, {"halves": halves, "quarters": quarters})


def gpus_for_405b() -> Found:
    """Fewest GPUs that hold weights, engine and one request of 8,192 tokens."""
    numbers = {
        "bf16": _fewest("bf16", H100),
        "bf16_h200": _fewest("bf16", H200),
        "fp8": _fewest("fp8", H100),
        "int4": _fewest("int4", H100),
    }
    right = [numbers[form] == count for form, count in (("bf16", 16), ("fp8", 8), ("int4", 4))]
    return Found(numbers["fp8"], AGREES if all(right) else PARTLY if any(right) else DISAGREES, {**numbers})


def _fewest(form: str, sku: str) -> int:
    for tp in (1, 2, 4, 8, 16):
        foot = footprint(_model("Llama-3.1-405B"), form, "bf16", tp, hardware(sku))
        if memory_budget(foot, hardware(sku), EngineSettings(8192, max_running=16)).fits:
            return tp
    raise LookupError(f"Llama-3.1-405B in {form} does not fit 16 x {sku}")


RULES: dict[str, Callable[[], Found]] = {
    rule.__name__: rule
    for rule in (
        weights_7b,
        weights_70b_int4,
        serving_memory,
        kv_per_token,
        two_walls,
        of_the_wire,
        stream_70b_int4,
        prompt_speed,
        doubling,
        fp8_doubles,
        l40s,
        nvlink,
        mig,
        gpus_for_405b,
    )
}


def words() -> dict[str, dict[str, str]]:
    """Return what is said of each rule, by the name of its function."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def page() -> Iterator[str]:
    """Yield the page's body: a table, then why."""
    found = {name: rule() for name, rule in RULES.items()}
    said = words()
    yield "| rule | the model says | |\n| --- | --- | --- |"
    for name, each in found.items():
        rule, says = said[name]["rule"], said[name]["says"].format(**each.numbers)
        yield f"| [{rule}](#{name}) | {says} | **{each.verdict}** |"
    for name, each in found.items():
        yield f'\n### <a id="{name}"></a>{said[name]["rule"]}: {each.verdict}\n'
        yield f"{said[name]['says'].format(**each.numbers)}. {said[name]['why'].format(**each.numbers)}\n"
        yield f"Said by: {'; '.join(said[name]['said_by'])}."


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()) + "\n")
