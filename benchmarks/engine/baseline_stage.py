"""The engine as it is: right, how fast, where its time goes, and what it takes of the memory."""

from functools import partial

import torch

from benchmarks.engine.bench_rows import BenchmarkRow, MeasuredValue, Unavailable
from benchmarks.engine.engine_adapter import (
    PRESENT_RUNG,
    EngineChoice,
    memory_model,
    random_prompts,
    same_ids_as_on_the_cpu,
    time_decode,
    time_first_token,
)
from benchmarks.engine.predictions import decode_row, prefill_row, step_kernels
from benchmarks.engine.setting import ROOT, Setting
from benchmarks.engine.step_profile import profile_steps

LOADED = ("load_seconds", "warmup_seconds", "num_blocks", "dtype", "device")


def rows(setting: Setting) -> list[BenchmarkRow]:
    """The rows of the stage."""
    sizes, name = setting.sizes, setting.sizes.large.name
    one = partial(partial, setting=setting)
    found = [
        BenchmarkRow(f"load {name}", 180, one(load, choice=large(setting))),
        BenchmarkRow("memory against its model", 10, one(memory)),
    ]
    found += [
        BenchmarkRow(
            f"decode {batch}", 60, one(decode, choice=large(setting), batch=batch),
            decode_row(name, "bf16", batch, PRESENT_RUNG),
        )
        for batch in sizes.batches
    ]  # fmt: skip
    found += [
        BenchmarkRow(f"prefill {length}", 30, one(prefill, length=length), prefill_row(name, length))
        for length in sizes.prefills
    ]
    middle = sizes.batches[len(sizes.batches) // 2]
    found += [
        BenchmarkRow(f"profile of decode {batch}", 40, one(profile, batch=batch))
        for batch in {sizes.batches[0], middle}
    ]
    found.append(BenchmarkRow("ids equal to the CPU's, float32", 60, one(same_ids)))
    return found


def large(setting: Setting, **changes: object) -> EngineChoice:
    """The engine with the shapes of the large model; `changes` to EngineChoice."""
    sizes = setting.sizes
    wanted = {"max_num_seqs": max(sizes.batches), "max_model_len": sizes.max_model_len} | changes
    return EngineChoice(sizes.large, **wanted)  # type: ignore[arg-type]


def load(_seconds: float, setting: Setting, choice: EngineChoice) -> MeasuredValue:
    """Random weights, warm-up, graphs: seconds until the first request could come."""
    info = setting.engines.get(choice).info
    details = {name: getattr(info, name) for name in LOADED}
    return MeasuredValue(info.load_seconds + info.warmup_seconds, "s", details)


def memory(_seconds: float, setting: Setting) -> MeasuredValue:
    """Bytes that the device lost against what the memory model says, as a ratio."""
    engine = setting.engines.get(large(setting))
    model = memory_model(engine, setting.sizes.large)
    if setting.device.type != "cuda":
        return MeasuredValue(None, details={"model": model})
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    taken = {
        "used on the device": total - free,
        "reserved by torch": torch.cuda.memory_reserved(),
        "allocated": torch.cuda.memory_allocated(),
        "most allocated": torch.cuda.max_memory_allocated(),
    }
    ratio = taken["allocated"] / sum(model.values())
    return MeasuredValue(ratio, "x model", {"model": model, "measured": taken, "total": total})


def decode(seconds: float, setting: Setting, choice: EngineChoice, batch: int) -> MeasuredValue:
    """Output tokens per second of full decode steps."""
    sizes = setting.sizes
    engine = setting.engines.get(choice)
    prompts = random_prompts(batch, sizes.context, choice.shape.vocabulary, seed=batch)
    times = time_decode(engine, prompts, sizes.steps, f"decode {batch} {choice.rung}", seconds)
    steps = sorted(times.step_seconds)
    details = {
        "step ms p50": 1e3 * steps[len(steps) // 2],
        "step ms best": 1e3 * steps[0],
        "step ms worst": 1e3 * steps[-1],
        "steps": len(steps),
        "prefill tok/s": batch * sizes.context / times.prefill_seconds,
    }
    kernels = step_kernels(choice.shape, choice.weights, batch, sizes.context)
    moved = sum(kernel.calls * kernel.bytes for kernel in kernels)
    details["note"] = (
        f"{1e3 * steps[len(steps) // 2]:.2f} ms, {moved / steps[len(steps) // 2] / 1e9:,.0f} GB/s"
    )
    return MeasuredValue(times.tokens / sum(times.step_seconds), "tok/s", details)


def prefill(_seconds: float, setting: Setting, length: int) -> MeasuredValue:
    """Prompt tokens per second of one prompt alone, to its first token; the median of several prompts."""
    engine = setting.engines.get(large(setting))
    prompts = random_prompts(4, length, setting.sizes.large.vocabulary, seed=length)
    spent = []
    for number, prompt in enumerate(prompts):
        spent.append(time_first_token(engine, prompt, f"prefill {length}/{number}"))
    best = sorted(spent[1:])[len(spent[1:]) // 2]
    return MeasuredValue(length / best, "tok/s", {"ms": [1e3 * one for one in spent]})


def profile(_seconds: float, setting: Setting, batch: int) -> MeasuredValue:
    """The thirty operations that take most of the device in a decode step, and its launches."""
    sizes = setting.sizes
    engine = setting.engines.get(large(setting))
    prompts = random_prompts(batch, sizes.context, sizes.large.vocabulary, seed=1000 + batch)
    found = profile_steps(engine, prompts, sizes.steps // 8 + 2, setting.device)
    return MeasuredValue(found.pop("busy"), "busy", found)


def same_ids(_seconds: float, setting: Setting) -> MeasuredValue:
    """Greedy ids of a small checkpoint in float32: on this device and on the CPU."""
    directory = ROOT / "models" / "tangram-tiny"
    if not (directory / "model.safetensors").exists():
        raise Unavailable(f"{directory} holds no weights")
    setting.engines.close()
    share = same_ids_as_on_the_cpu(directory, setting.device, tokens=4 if setting.tiny else 64)
    return MeasuredValue(share, "same")
