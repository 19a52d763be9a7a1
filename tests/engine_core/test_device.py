"""A device that cannot do what is asked is refused in one line, before anything is loaded."""

import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tangram_engine.config import EngineConfig
from tangram_engine.run import OutOfMemory, load
from tangram_engine.run.device import UnusableDevice, choose_dtype, is_out_of_memory, open_device
from tests.contracts.memory_golden import LLAMA, sizes

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040).\nPlease update your GPU driver"
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might"


class Computed:
    """A tensor on a GPU that is not there."""

    def __init__(self, error=None):
        self.error = error

    def add(self, _):
        return self

    def item(self):
        if self.error:
            raise RuntimeError(self.error)
        return 2.0


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Pretend that there is a GPU; return its driver's device node."""

    def make(capability=(9, 0), *, available=True, driver=True, init_error=None, launch_error=None):
        def is_available():
            if not available:
                warnings.warn(TOO_OLD, stacklevel=2)
            return available

        def init():
            if init_error:
                raise RuntimeError(init_error)

        monkeypatch.setattr(torch.cuda, "is_available", is_available)
        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA X")
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
        monkeypatch.setattr(torch, "ones", lambda *_, **__: Computed(launch_error))
        node = tmp_path / "nvidiactl"
        if driver:
            node.touch()
        return node

    return make


def test_without_a_gpu_a_cpu_computes(gpu):
    assert open_device("auto", gpu(available=False, driver=False)) == CPU


def test_a_gpu_that_works_is_taken(gpu):
    assert open_device("auto", gpu()) == GPU


def test_attention_on_a_gpu_needs_no_plan_for_each_length_of_a_prompt(gpu):
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]):
        open_device("auto", gpu())
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()


def test_a_cpu_that_was_asked_for_is_taken_beside_a_gpu(gpu):
    assert open_device("cpu", gpu(init_error="not asked")) == CPU


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_a_driver_that_is_too_old_is_no_reason_to_compute_on_the_cpu(gpu, wanted):
    node = gpu(available=False, init_error=TOO_OLD)
    with pytest.raises(UnusableDevice) as refused:
        open_device(wanted, node)
    assert "driver on your system is too old (found version 11040)" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert ("--device cpu" in str(refused.value)) == (wanted == "auto")


def test_a_gpu_for_which_torch_was_not_built_is_named_with_what_it_was_built_for(gpu):
    with pytest.raises(
        UnusableDevice, match=r"NVIDIA X \(sm_70\) cannot run torch .* sm_75, sm_90: .*no kernel"
    ):
        open_device("auto", gpu((7, 0), launch_error=NO_KERNEL))


@pytest.mark.parametrize(
    ("capability", "wanted", "stored", "dtype"),
    [
        ((9, 0), "auto", "bf16", torch.bfloat16),
        ((9, 0), "auto", "fp32", torch.float32),
        ((8, 0), "bfloat16", "fp16", torch.bfloat16),
        ((7, 5), "auto", "fp16", torch.float16),
        ((7, 5), "auto", "bf16", torch.float16),
        ((7, 5), "float32", "bf16", torch.float32),
    ],
)
def test_the_dtype_is_the_stored_one_where_the_gpu_has_it(gpu, caplog, capability, wanted, stored, dtype):
    gpu(capability)
    assert choose_dtype(wanted, stored, GPU) is dtype
    replaced = (capability, wanted, stored) == ((7, 5), "auto", "bf16")
    assert ("served in float16" in caplog.text) == replaced


def test_bfloat16_that_was_asked_for_is_refused_where_the_gpu_has_none(gpu):
    gpu((7, 5))
    with pytest.raises(UnusableDevice, match=r"sm_75\) has no bfloat16: use --dtype float16"):
        choose_dtype("bfloat16", "bf16", GPU)


def test_a_cpu_computes_in_float32_unless_told_otherwise():
    assert choose_dtype("auto", "bf16", CPU) is torch.float32
    assert choose_dtype("bfloat16", "fp16", CPU) is torch.bfloat16


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), True),
        (RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:1154"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_means_that_memory_is_full(error, memory):
    assert is_out_of_memory(error) is memory


@pytest.mark.parametrize("message", ["CUDA out of memory", "NVML_SUCCESS == r INTERNAL ASSERT FAILED"])
def test_memory_that_ends_at_start_names_the_context_that_would_fit(tmp_path, monkeypatch, message):
    import json

    config = LLAMA | sizes(2, 64, 112, 4, 2, 199, 1 << 20)
    (tmp_path / "config.json").write_text(json.dumps(config))

    def full(*_):
        raise torch.OutOfMemoryError(message) if "CUDA" in message else RuntimeError(message)

    monkeypatch.setattr(load, "warm_up", full)
    monkeypatch.setattr(load.host, "memory_limit_bytes", lambda: 512 << 20)
    options = {"max_num_seqs": 4, "kv_cache_bytes": 1 << 40, "load_format": "dummy"}
    monkeypatch.setattr(load.TorchAttention, "resize", lambda *_: 0)
    with pytest.raises(
        OutOfMemory, match=r"do not fit into 512 MiB: the largest workable max_model_len is about"
    ):
        load.load(EngineConfig(tmp_path, device="cpu", **options))


def test_other_errors_at_start_stay_what_they_are(tmp_path, monkeypatch, checkpoint):
    def defect(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(load, "warm_up", defect)
    with pytest.raises(RuntimeError, match="a defect"):
        load.load(EngineConfig(checkpoint()[0], device="cpu"))
