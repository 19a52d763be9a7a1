"""Which implementation computes a step: the kernels on GPUs that they support, plain torch elsewhere."""

import logging
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch

from tangram_engine.kernels import ops
from tangram_engine.kernels import triton_runtime as language

GPU = torch.device("cuda", 0)


def capability(monkeypatch, *version):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: version)


@pytest.mark.parametrize("version", [(8, 0), (8, 9), (9, 0), (10, 3), (12, 0)])
def test_a_supported_gpu_computes_with_the_kernels(monkeypatch, caplog, version):
    capability(monkeypatch, *version)
    assert ops.use_kernels(GPU)
    assert not caplog.records


@pytest.mark.parametrize("version", [(7, 0), (7, 5)])
def test_an_older_gpu_computes_in_plain_torch_and_the_log_has_the_reason(monkeypatch, caplog, version):
    capability(monkeypatch, *version)
    with caplog.at_level(logging.WARNING):
        assert not ops.use_kernels(GPU)
    assert [f"compute capability {version[0]}.{version[1]} is below 8.0" in caplog.text] == [True]
    assert len(caplog.records) == 1


def test_without_triton_a_gpu_computes_in_plain_torch(monkeypatch, caplog):
    monkeypatch.setattr(language, "INSTALLED", False)
    assert not ops.use_kernels(GPU)
    assert "Triton is not installed" in caplog.text


class _NoCompiler:
    @property
    def utils(self):
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable")


def test_without_a_compiler_for_the_launcher_a_gpu_computes_in_plain_torch(monkeypatch, caplog):
    capability(monkeypatch, 9, 0)
    monkeypatch.setattr(language, "INTERPRETED", False)
    driver = SimpleNamespace(active=_NoCompiler())
    monkeypatch.setattr(language, "triton", SimpleNamespace(runtime=SimpleNamespace(driver=driver)))
    assert not ops.use_kernels(GPU)
    (record,) = caplog.records
    assert "Failed to find C compiler" in record.message
    assert "install gcc and Python's headers, or name a C compiler in CC" in record.message


def test_a_cpu_computes_in_plain_torch_without_a_word(caplog):
    assert not ops.use_kernels(torch.device("cpu"))
    assert not caplog.records


def test_the_two_tables_have_no_entry_in_common():
    for field in fields(ops.Ops):
        module = getattr(ops, field.name)
        assert getattr(ops.kernel_ops(), field.name) is getattr(module, field.name)
        plain = None if field.name == "small_linear" else module.reference
        assert getattr(ops.reference_ops(), field.name) is plain
