"""Memory, CPUs and blocks: everything is sized from what the container or slice may use."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tangram_engine.config import EngineConfig
from tangram_engine.models.rope import Rope
from tangram_engine.run import host, load
from tangram_engine.run.attention.reference import TorchAttention
from tangram_engine.run.memory import (
    MIB,
    OutOfMemory,
    check_weights,
    count_blocks,
    cpu_pool_bytes,
    cuda_pool_bytes,
)

GIB = 1 << 30


@pytest.fixture
def files(tmp_path):
    def write(**contents):
        for name, text in contents.items():
            path = tmp_path / name.replace("__", "/").replace("DOT", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.fixture(autouse=True)
def _sixteen_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


V2 = {"proc__self__cgroup": "0::/pod/container\n"}
V1 = {"proc__self__cgroup": "5:memory:/pod/c\n3:cpu,cpuacct:/pod/c\n0::/\n"}


def test_version_2_takes_the_smallest_limit_on_the_way_up(files):
    root = files(
        **V2,
        sys__fs__cgroup__pod__container__cpuDOTmax="max 100000\n",
        sys__fs__cgroup__pod__cpuDOTmax="250000 100000\n",
        sys__fs__cgroup__pod__container__memoryDOTmax=f"{GIB}\n",
        sys__fs__cgroup__pod__memoryDOTmax="max\n",
    )
    assert host.cpu_limit(root) == 2.5
    assert host.memory_limit_bytes(root) == GIB


def test_version_2_inside_its_own_namespace_reads_the_root_of_the_mount(files):
    root = files(
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__cpuDOTmax="50000 100000",
        sys__fs__cgroup__memoryDOTmax="7",
    )
    assert host.cpu_limit(root) == 0.5
    assert host.memory_limit_bytes(root) == 7


def test_version_1_reads_quota_and_limit(files):
    root = files(
        **V1,
        sys__fs__cgroup__cpu__pod__c__cpuDOTcfs_quota_us="300000",
        sys__fs__cgroup__cpu__pod__c__cpuDOTcfs_period_us="100000",
        sys__fs__cgroup__memory__pod__c__memoryDOTlimit_in_bytes=str(2 * GIB),
        sys__fs__cgroup__memory__memoryDOTlimit_in_bytes="9223372036854771712",
    )
    assert host.cpu_limit(root) == 3.0
    assert host.memory_limit_bytes(root) == 2 * GIB


def test_without_any_limit_the_machine_is_the_limit(files):
    root = files(
        **V1,
        sys__fs__cgroup__cpu__cpuDOTcfs_quota_us="-1",
        sys__fs__cgroup__cpu__cpuDOTcfs_period_us="100000",
    )
    assert host.cpu_limit(root) == 16
    assert host.memory_limit_bytes(root) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(("limit", "threads"), [(0.2, 1), (1.0, 1), (1.9, 1), (2.5, 2), (16.0, 16)])
def test_threads_are_whole_cpus_and_at_least_one(limit, threads):
    assert host.threads(limit) == threads


def test_a_cpu_pool_is_a_quarter_of_the_limit_within_reason():
    assert cpu_pool_bytes(512 * MIB) == 128 * MIB
    assert cpu_pool_bytes(1 << 40) == 1024 * MIB


def test_a_gpu_pool_is_what_weights_activations_and_reserve_leave():
    assert cuda_pool_bytes(7 * GIB, 10 * GIB, 0.9, GIB) == 9 * GIB - 3 * GIB - GIB - 256 * MIB
    assert cuda_pool_bytes(130 * GIB, 140 * GIB, 1.0, 0) == 130 * GIB - 140 * GIB // 100


def test_the_pool_must_hold_one_request_of_full_length():
    assert count_blocks(1000, 100, 16, 160) == 10
    with pytest.raises(
        OutOfMemory, match=r"max_model_len 161 needs 11.*largest workable max_model_len is 160"
    ):
        count_blocks(1000, 100, 16, 161)
    with pytest.raises(OutOfMemory, match="nothing fits"):
        count_blocks(-5, 100, 16, 1)


def test_weights_that_cannot_fit_are_refused_before_they_are_read(checkpoint, monkeypatch):
    directory, _ = checkpoint("llama")
    monkeypatch.setattr(host, "memory_limit_bytes", lambda: 100_000)
    monkeypatch.setattr(load, "load_weights", lambda *_: pytest.fail("they were read"))

    with pytest.raises(OutOfMemory, match=r"the weights need \d+ MiB, but the engine may use 0 MiB"):
        load.load(EngineConfig(directory, device="cpu"))


def test_weights_as_large_as_the_memory_are_not_refused():
    check_weights(10, 10)
    with pytest.raises(OutOfMemory):
        check_weights(11, 10)


@pytest.mark.parametrize(
    "field",
    [
        {"max_model_len": 0},
        {"block_size": 0},
        {"gpu_memory_utilization": 0.0},
        {"gpu_memory_utilization": 1.1},
        {"dtype": "int8"},
        {"device": "tpu"},
    ],
)
def test_a_configuration_that_means_nothing_is_refused(tmp_path, field):
    with pytest.raises(ValueError, match=next(iter(field))):
        EngineConfig(tmp_path, **field)


def test_a_pool_on_the_cpu_is_committed_only_when_used():
    def resident():
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    spec = SimpleNamespace(
        layers=2,
        heads=8,
        kv_heads=4,
        head_dim=32,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        rope_scaling=None,
        unrotated_layers=(),
        attention_scale=None,
    )
    rope = Rope(spec, 64, torch.float32, torch.device("cpu"))
    before = resident()
    attention = TorchAttention(spec, rope, 8192, 16, torch.float32)
    assert attention.pool.nbytes == 256 * MIB
    assert resident() - before < 32 * MIB
