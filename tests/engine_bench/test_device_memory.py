"""The memory of an engine that was cut off while it loads is free again before the next row."""

import gc
import weakref
from functools import partial

import pytest
import torch

from benchmarks.engine import engine_adapter
from benchmarks.engine.baseline_stage import large, load
from benchmarks.engine.bench_rows import BenchmarkRow, MeasuredValue, ResultFile, RowTimeout, run_rows
from benchmarks.engine.setting import MOST_HELD_BYTES, TINY, Setting

POOL_BYTES = 60 << 30


class HalfLoaded:
    """The tensors of an engine that is not ready yet, which refer to each other."""

    def __init__(self):
        self.graphs = self


class FakeDevice:
    """The allocator as rows see it: bytes of tensors that are gone stay taken until its cache is emptied."""

    def __init__(self):
        self.reserved = 0
        self.tensors = None  # a weak reference to what holds them

    def allocate(self, holder):
        self.reserved, self.tensors = POOL_BYTES, weakref.ref(holder)

    def empty_cache(self):
        if self.tensors is not None and self.tensors() is None:
            self.reserved = 0


@pytest.fixture
def device(monkeypatch):
    fake = FakeDevice()
    monkeypatch.setattr(torch.cuda, "empty_cache", fake.empty_cache)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: fake.reserved)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA H100 80GB HBM3")
    return fake


@pytest.fixture
def setting(device):
    return Setting(torch.device("cuda", 0), TINY, tiny=True)


@pytest.fixture
def no_collector():
    """Objects in cycles stay until the benchmark collects them, whenever `gc` would run by itself."""
    gc.disable()
    yield
    gc.enable()


def run(setting, tmp_path, *others):
    """Load an engine in a row, and whatever the other rows do."""
    rows = [BenchmarkRow("load", 60, partial(load, setting=setting, choice=large(setting)))]
    rows += [BenchmarkRow(f"row {number}", 60, other) for number, other in enumerate(others)]
    file = ResultFile(tmp_path / "model.json")
    return run_rows(rows, file, 200, {}, setting.broken), [result.status for result in file.results]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(("cut_off_by", "status"), [(RowTimeout, "out of time"), (RuntimeError, "failed")])
def test_the_row_behind_a_load_that_was_cut_off_finds_the_device_empty(
    device, setting, tmp_path, monkeypatch, cut_off_by, status
):
    def build(*_):
        half = HalfLoaded()
        device.allocate(half)
        raise cut_off_by

    def next_row(_seconds):
        return MeasuredValue(float(device.reserved), "bytes")

    monkeypatch.setattr(engine_adapter, "build", build)

    assert run(setting, tmp_path, next_row) == (True, [status, "ok"])
    assert device.tensors() is None
    assert device.reserved == 0


@pytest.mark.usefixtures("no_collector")
def test_the_engine_of_a_server_finds_the_device_empty_though_no_row_looked(device, setting, monkeypatch):
    """The serve stage frees the engine before it starts its server."""

    def build(*_):
        half = HalfLoaded()
        device.allocate(half)
        raise RowTimeout

    monkeypatch.setattr(engine_adapter, "build", build)
    with pytest.raises(RowTimeout):
        setting.engines.get(large(setting))

    setting.engines.close()

    assert device.reserved == 0


def test_the_process_starts_again_behind_a_row_whose_memory_stays_taken(
    device, setting, tmp_path, monkeypatch, capfd
):
    kept = HalfLoaded()

    def build(*_):
        device.allocate(kept)
        raise RowTimeout

    monkeypatch.setattr(engine_adapter, "build", build)

    assert run(setting, tmp_path, lambda _: MeasuredValue(1.0)) == (False, ["out of time"])
    assert "61440 MiB of the device stay taken" in capfd.readouterr().out
    assert device.reserved > MOST_HELD_BYTES


@pytest.mark.usefixtures("no_collector")
def test_nothing_refers_to_an_engine_that_was_cut_off_while_it_warms_up(tmp_path, monkeypatch):
    runners = []

    def warm_up(runner, *_):
        runners.append(weakref.ref(runner))
        raise RowTimeout

    monkeypatch.setattr("tangram_engine.run.load.warm_up", warm_up)
    found = []

    goes_on, _ = run(
        Setting(torch.device("cpu"), TINY, tiny=True),
        tmp_path,
        lambda _: found.append(runners[0]()) or MeasuredValue(1.0),
    )

    assert goes_on
    assert found == [None]
