"""The chart carries a copy of crds/, and a stale one is noticed."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def sync_crds():
    spec = importlib.util.spec_from_file_location("sync_crds", ROOT / "charts" / "sync_crds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_copy_in_the_chart_is_not_stale(sync_crds):
    assert sync_crds.stale() == [], "run `make generate`"


def test_a_changed_a_missing_and_a_superfluous_file_are_all_noticed_and_mended(sync_crds, tmp_path):
    source, copy = tmp_path / "crds", tmp_path / "copy"
    source.mkdir()
    copy.mkdir()
    (source / "changed.yaml").write_text("a: 2\n")
    (copy / "changed.yaml").write_text("a: 1\n")
    (source / "missing.yaml").write_text("b: 1\n")
    (copy / "superfluous.yaml").write_text("c: 1\n")
    (source / "same.yaml").write_text("d: 1\n")
    (copy / "same.yaml").write_text("d: 1\n")
    assert sync_crds.stale(source, copy) == ["changed.yaml", "missing.yaml", "superfluous.yaml"]
    sync_crds.sync(source, copy)
    assert sync_crds.stale(source, copy) == []
    assert {path.name for path in copy.iterdir()} == {path.name for path in source.iterdir()}
