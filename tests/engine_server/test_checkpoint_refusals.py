"""Checkpoints are files of strangers: whatever is wrong with one is found before anything is mapped."""

import json
import shutil
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tangram_engine.checkpoint import CheckpointError, read_checkpoint
from tangram_engine.checkpoint.files import strict_object
from tests.support.bad_checkpoints import BAD, Bad, read_parts
from tests.support.served_model import write_model


@pytest.fixture
def good(served_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(served_model, tmp_path / "model"))


def test_the_unspoilt_checkpoint_is_accepted(good: Path) -> None:
    assert read_checkpoint(good).spec.layers == 2


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_checkpoint_is_refused_with_its_reason(bad: Bad, good: Path) -> None:
    bad.spoil(good)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(good)
    assert bad.says in caught.value.message
    assert caught.value.reason == bad.reason


def test_duplicate_keys_are_found_in_linear_time(good: Path) -> None:
    def seconds(count: int) -> float:
        keys = [f'"{i}":0' for i in range(count)]
        raw = ("{" + ",".join([*keys, keys[-1]]) + "}").encode()
        begin = time.process_time()
        with pytest.raises(CheckpointError, match="appears twice"):
            strict_object(raw, "header")
        return time.process_time() - begin

    # Eight times as much takes eight times as long, and sixty-four times where each key is searched for.
    assert min(seconds(160_000) for _ in range(3)) < 24 * min(seconds(20_000) for _ in range(3))


def test_a_missing_directory_and_a_file_in_its_place_are_not_found(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file", Path("\0")):
        with pytest.raises(CheckpointError, match="NotFound"):
            read_checkpoint(path)


def test_auto_map_is_never_followed(good: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    config = json.loads((good / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    (good / "config.json").write_text(json.dumps(config))
    (good / "evil.py").write_text(f"open({str(canary)!r}, 'w')\nclass Evil: pass\n")
    assert read_checkpoint(good).spec.family == "llama"
    assert not canary.exists()


MUTATIONS = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4
)


@pytest.fixture(scope="module")
def mutable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("mutable") / "model")


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations=MUTATIONS, in_config=st.booleans())
def test_mutated_headers_are_refused_or_still_describe_the_same_bytes(
    mutable: Path, mutations: list[tuple[float, int]], in_config: bool
) -> None:
    path = mutable / ("config.json" if in_config else "model.safetensors")
    original = path.read_bytes()
    reach = len(original) if in_config else 8 + len(json.dumps(read_parts(path)[0]))
    mutant = bytearray(original)
    for place, value in mutations:
        mutant[int(place * reach)] = value
    path.write_bytes(mutant)
    try:
        checkpoint = read_checkpoint(mutable)
    except CheckpointError:
        return
    finally:
        path.write_bytes(original)
    # Accepted: then every tensor lies inside the file, no two share a byte, and all bytes are used.
    size = (mutable / "model.safetensors").stat().st_size
    spans = sorted((entry.offset, entry.offset + entry.nbytes) for entry in checkpoint.tensors.values())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert spans[-1][1] <= size
