"""What the device can do: versions, bandwidth, products, and what a kernel costs without its work."""

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import time
from functools import partial

import torch
from torch import Tensor

from benchmarks.engine import timing
from benchmarks.engine.bench_rows import BenchmarkRow, MeasuredValue, Unavailable
from benchmarks.engine.setting import Setting

OPTIONAL = ("triton", "numpy", "safetensors", "aiohttp", "pydantic", "msgspec", "prometheus_client", "tokenizers", "jinja2", "transformers")  # fmt: skip
ROWS_OF_PRODUCTS = (1, 8, 64, 256, 1024)


def rows(setting: Setting) -> list[BenchmarkRow]:
    """The rows of the stage."""
    shape = setting.sizes.large
    one = partial(partial, setting=setting)
    found = [
        BenchmarkRow("versions", 20, one(versions)),
        BenchmarkRow("read bandwidth, sum", 15, one(read_bandwidth)),
        BenchmarkRow("read bandwidth, matrix times vector", 15, one(vector_bandwidth)),
        BenchmarkRow("copy bandwidth", 15, one(copy_bandwidth), "copy bandwidth"),
        BenchmarkRow("bf16 product", 15, one(product, rows_=setting.sizes.product), "bf16 product"),
        BenchmarkRow(
            "fp8 scaled product", 15, one(scaled_product, rows_=setting.sizes.product), "fp8 scaled product"
        ),
    ]
    for count in ROWS_OF_PRODUCTS if not setting.tiny else (16,):
        for name, parameters in shape.matrices.items():
            columns = shape.hidden if name != "down" else shape.intermediate
            columns = shape.heads * shape.head_dim if name == "o" else columns
            sizes = {"rows_": count, "columns": columns, "outputs": parameters // columns}
            found.append(BenchmarkRow(f"bf16 product, {name}, {count} rows", 10, one(product, **sizes)))
            found.append(
                BenchmarkRow(f"fp8 scaled product, {name}, {count} rows", 10, one(scaled_product, **sizes))
            )
    found += [
        BenchmarkRow("kernel in a CUDA graph", 10, one(kernel_in_a_graph), "kernel in a CUDA graph"),
        BenchmarkRow("torch operation, host", 10, one(eager_operation)),
        BenchmarkRow("Triton launch, host", 20, one(triton_launch)),
        BenchmarkRow("wait for one id", 10, one(wait_for_one_id)),
        BenchmarkRow("attention calls of torch", 30, one(attention_calls)),
    ]
    return found


def versions(_seconds: float, setting: Setting) -> MeasuredValue:
    """What is installed, and what the device says of itself."""
    details: dict[str, object] = {"python": platform.python_version(), "torch": torch.__version__}
    details |= {name: _version(name) for name in OPTIONAL}
    if setting.device.type != "cuda":
        return MeasuredValue(None, details=details)
    properties = torch.cuda.get_device_properties(setting.device)
    names = ("name", "major", "minor", "multi_processor_count", "total_memory", "L2_cache_size")
    details |= {name: getattr(properties, name, None) for name in names}
    details |= {"memory free, total": torch.cuda.mem_get_info(), "cuda": torch.version.cuda}
    details["cudnn"] = torch.backends.cudnn.version()
    if shutil.which("nvidia-smi"):
        query = [
            "nvidia-smi",
            "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu",
            "--format=csv",
        ]
        details["nvidia-smi"] = subprocess.run(
            query, capture_output=True, text=True, timeout=15, check=False
        ).stdout
    return MeasuredValue(float(properties.multi_processor_count), "SMs", details)


def _version(name: str) -> str | None:
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return importlib.metadata.version(name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "?"


def read_bandwidth(_seconds: float, setting: Setting) -> MeasuredValue:
    """A sum over floats: every byte is read, next to nothing written."""
    x = torch.randn(setting.sizes.probe_bytes // 4, device=setting.device)
    return _rate(x.nbytes, timing.seconds_per_call([x.sum], setting.device))


def vector_bandwidth(_seconds: float, setting: Setting) -> MeasuredValue:
    """The library's product of a bf16 matrix and a vector, as batch 1 has it."""
    wide = setting.sizes.large.hidden
    x = timing.random_like_weights(
        (setting.sizes.probe_bytes // 2 // wide, wide), torch.bfloat16, setting.device
    )
    vector = torch.randn(1, wide, dtype=torch.bfloat16, device=setting.device)
    return _rate(
        x.nbytes, timing.seconds_per_call([lambda: torch.nn.functional.linear(vector, x)], setting.device)
    )


def copy_bandwidth(_seconds: float, setting: Setting) -> MeasuredValue:
    """Bytes read and bytes written, both counted."""
    x = torch.randn(setting.sizes.probe_bytes // 4, device=setting.device)
    y = torch.empty_like(x)
    return _rate(2 * x.nbytes, timing.seconds_per_call([lambda: y.copy_(x)], setting.device))


def _rate(moved: int, seconds: float) -> MeasuredValue:
    return MeasuredValue(moved / seconds / 1e9, "GB/s", {"bytes": moved, "us": 1e6 * seconds})


def product(
    _seconds: float, setting: Setting, rows_: int, columns: int | None = None, outputs: int | None = None
) -> MeasuredValue:
    """Random numbers: a product of zeros runs faster."""
    columns, outputs = columns or rows_, outputs or rows_
    x = torch.randn(rows_, columns, dtype=torch.bfloat16, device=setting.device)
    count = timing.rotations(2 * columns * outputs, setting.device)
    weights = [
        timing.random_like_weights((outputs, columns), torch.bfloat16, setting.device) for _ in range(count)
    ]
    calls = [partial(torch.nn.functional.linear, x, weight) for weight in weights]
    return _products(timing.seconds_per_call(calls, setting.device), rows_, columns, outputs, 2)


def scaled_product(
    _seconds: float, setting: Setting, rows_: int, columns: int | None = None, outputs: int | None = None
) -> MeasuredValue:
    """fp8 with a scale for each row and each column, where this build has it."""
    columns, outputs = columns or rows_, outputs or rows_
    if not hasattr(torch, "_scaled_mm"):
        raise Unavailable("this torch has no _scaled_mm")
    x = _fp8(rows_, columns, setting)
    count = timing.rotations(columns * outputs, setting.device)
    weights = [_fp8(outputs, columns, setting).t() for _ in range(count)]
    a = torch.rand(rows_, 1, device=setting.device)
    b = torch.rand(1, outputs, device=setting.device)

    def call(weight: Tensor) -> Tensor:
        result: Tensor = torch._scaled_mm(x, weight, scale_a=a, scale_b=b, out_dtype=torch.bfloat16)  # noqa: SLF001  (the public name came later)
        return result

    try:
        call(weights[0])
    except (RuntimeError, NotImplementedError) as error:
        raise Unavailable(
            f"_scaled_mm by row does not run here: {str(error).splitlines()[0][:100]}"
        ) from error
    calls = [partial(call, weight) for weight in weights]
    return _products(timing.seconds_per_call(calls, setting.device), rows_, columns, outputs, 1)


def _fp8(rows_: int, columns: int, setting: Setting) -> Tensor:
    return torch.randn(rows_, columns, device=setting.device).to(torch.float8_e4m3fn)


def _products(seconds: float, rows_: int, columns: int, outputs: int, item: int) -> MeasuredValue:
    weights = item * columns * outputs
    details = {
        "us": 1e6 * seconds,
        "weights GB/s": weights / seconds / 1e9,
        "shape": [rows_, columns, outputs],
    }
    return MeasuredValue(2e-12 * rows_ * columns * outputs / seconds, "TFLOP/s", details)


def kernel_in_a_graph(_seconds: float, setting: Setting) -> MeasuredValue:
    """From one dependent tiny kernel to the next."""
    x = torch.zeros(256, device=setting.device)
    return MeasuredValue(1e6 * timing.seconds_per_call([lambda: x.add_(1.0)] * 20, setting.device), "us")


def eager_operation(_seconds: float, setting: Setting) -> MeasuredValue:
    """What one torch operation costs the host, the device not waited for."""
    x = torch.zeros(256, device=setting.device)
    seconds = timing.host_seconds_per_call(lambda: x.add_(1.0), setting.device, 20 if setting.tiny else 2000)
    return MeasuredValue(1e6 * seconds, "us")


def triton_launch(_seconds: float, setting: Setting) -> MeasuredValue:
    """What the launch of a kernel of Triton costs the host, its compilation apart."""
    if _version("triton") is None:
        raise Unavailable("Triton is not installed")
    from benchmarks.engine.triton_probe import add_one  # noqa: PLC0415

    x = torch.zeros(256, device=setting.device)
    begin = time.perf_counter()
    add_one(x)
    timing.synchronize(setting.device)
    first = time.perf_counter() - begin
    if not bool((x == 1).all()):
        raise RuntimeError("the kernel gave a wrong result")
    seconds = timing.host_seconds_per_call(lambda: add_one(x), setting.device, 2 if setting.tiny else 1000)
    return MeasuredValue(1e6 * seconds, "us", {"first launch with compilation, s": first})


def wait_for_one_id(_seconds: float, setting: Setting) -> MeasuredValue:
    """A tiny kernel, its copy to the host and the wait: what each synchronous step pays."""
    x = torch.zeros(256, dtype=torch.int32, device=setting.device)

    def once() -> None:
        x.add_(1).tolist()

    return MeasuredValue(
        1e6 * timing.host_seconds_per_call(once, setting.device, 5 if setting.tiny else 200), "us"
    )


def attention_calls(_seconds: float, setting: Setting) -> MeasuredValue:
    """The rate of a causal prompt on torch's attention."""
    shape, length = setting.sizes.large, max(setting.sizes.prefills)
    dtype = torch.bfloat16 if setting.device.type == "cuda" else torch.float32
    q = torch.randn(1, shape.heads, length, shape.head_dim, dtype=dtype, device=setting.device)
    k, v = (
        torch.randn(1, shape.kv_heads, length, shape.head_dim, dtype=dtype, device=setting.device)
        for _ in "kv"
    )

    def attend() -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    seconds = timing.seconds_per_call([attend], setting.device)
    flops = 4 * shape.heads * shape.head_dim * length**2 / 2
    return MeasuredValue(flops / seconds / 1e12, "TFLOP/s", {"us": 1e6 * seconds, "length": length})
