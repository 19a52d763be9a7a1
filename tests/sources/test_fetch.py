"""All bytes of a checkpoint: verified, continued after a cut, and in their place only when whole."""

import errno
import hashlib
import json
from pathlib import Path

import pytest

from tangram.sources.checkpoint.errors import SourceError, SourceReason
from tangram.sources.download import fetch
from tests.sources.conftest import shards
from tests.support.hub_server import Request


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def fetched(checkpoint, target, **options):
    pauses = []
    lines = []
    fetch(checkpoint, target, lines.append, pause=pauses.append, **options)
    return pauses, lines


def refused(checkpoint, target, **options) -> SourceError:
    with pytest.raises(SourceError) as caught:
        fetched(checkpoint, target, **options)
    assert not target.exists()
    return caught.value


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def cut(after: int, *, for_good: bool = False):
    """End the connection after so many bytes of a large file; `for_good`: the store is down from then on."""
    answered = []

    def fault(request: Request) -> bool:
        if request.place != "store" or (answered and not for_good):
            return False
        if answered:
            request.answer(503, {})
        else:
            request.content(request._stored(request.path.strip("/")), "application/octet-stream", cut=after)
        answered.append(request)
        return True

    return fault


def test_what_an_engine_loads_is_fetched_and_nothing_else(tiny, opened, target):
    _, lines = fetched(opened(tiny), target)
    names = {"config.json", "generation_config.json", "model.safetensors"}
    names |= {"special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}
    assert content(target) == {name: tiny[name] for name in names}
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert "0.0 of 0.0 GB" in lines[0]


def test_all_shards_of_an_index_come_whole(opened, target):
    files = shards(9, 100_000)
    fetched(opened(files), target)
    assert content(target) == files


def test_a_cut_connection_goes_on_where_it_was_cut(hub, opened, target):
    files = shards(1, 5_000_000)
    checkpoint = opened(files)
    hub.faults.append(cut(3_000_000))
    pauses, _ = fetched(checkpoint, target)
    assert content(target) == files
    ranges = [headers["range"] for place, _, headers in hub.requests if place == "store"]
    assert len(ranges) == 2
    assert 0 < int(ranges[1].split("=")[1].split("-")[0]) <= 3_000_000
    assert pauses == [2.0]


def test_a_new_process_continues_what_another_left_and_verifies_it(hub, opened, target):
    files = shards(1, 5_000_000)
    checkpoint = opened(files)
    hub.faults.append(cut(1_200_000, for_good=True))
    error = refused(checkpoint, target)
    assert error.is_transient
    assert hub.bytes_asked() > 0
    hub.requests.clear()
    hub.faults.clear()
    fetched(checkpoint, target)
    assert content(target) == files
    store = [headers["range"] for place, _, headers in hub.requests if place == "store"]
    assert int(store[0].split("=")[1].split("-")[0]) > 1_000_000


def test_a_file_that_never_gets_further_is_given_up(hub, opened, target):
    checkpoint = opened(shards(1))
    hub.faults.append(lambda request: request.place == "store" and (request.answer(503, {}) or True))
    pauses = []
    with pytest.raises(SourceError, match="the hub answers 503"):
        fetch(checkpoint, target, print, pause=pauses.append)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0]


def test_a_limited_hub_is_waited_for_as_long_as_it_says(hub, opened, target):
    checkpoint = opened(shards(1))
    left = [1]

    def limited(request: Request) -> bool:
        if request.place != "store" or not left[0]:
            return False
        left[0] = 0
        request.answer(429, {}, Retry_After="17")
        return True

    hub.faults.append(limited)
    assert fetched(checkpoint, target)[0] == [17.0]


def test_bytes_that_are_not_those_of_the_listing_are_never_served(hub, opened, target):
    checkpoint = opened(shards(2, 4000))
    hub.faults.append(
        lambda request: (
            request.place == "store" and (request.content(b"!" * 4000, "application/octet-stream") or True)
        )
    )
    error = refused(checkpoint, target)
    assert error.reason == SourceReason.CHANGED
    assert "is not what the listing has" in error.message
    hub.faults.clear()
    fetched(checkpoint, target)  # the wrong bytes are gone
    assert content(target) == shards(2, 4000)


def test_bytes_on_disk_that_have_turned_wrong_are_found(hub, opened, target):
    checkpoint = opened(shards(1, 5_000_000))
    hub.faults.append(cut(2_000_000, for_good=True))
    refused(checkpoint, target)
    hub.faults.clear()
    (part,) = target.parent.glob(".checkpoint.*/*.part")
    part.write_bytes(b"?" + part.read_bytes()[1:])
    assert refused(checkpoint, target).reason == SourceReason.CHANGED
    fetched(checkpoint, target)
    assert content(target) == shards(1, 5_000_000)


def test_unfinished_files_of_another_revision_are_not_mixed_in(hub, opened, target):
    hub.faults.append(cut(2_000_000, for_good=True))
    refused(opened(shards(1, 5_000_000)), target)
    hub.faults.clear()
    newer = shards(1, 4_000_000)
    fetched(opened(newer), target)
    assert content(target) == newer
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_a_silent_hub_ends_the_fetch(hub, opened, target):
    checkpoint = opened(shards(1))
    silent = []

    def hangs(request: Request) -> bool:
        if request.place == "store":
            silent.append(request.rfile.read(1))
        return request.place == "store"

    hub.faults.append(hangs)
    error = refused(checkpoint, target, stall_s=0.2)
    assert error.is_transient
    assert "no data for 0 s at 0.0 of 0.0 GB" in error.message


def test_too_little_space_is_found_before_a_byte_is_fetched(hub, opened, target, monkeypatch):
    checkpoint = opened(shards(1))
    hub.requests.clear()
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 100})())
    error = refused(checkpoint, target)
    assert error.reason == SourceReason.NO_SPACE
    assert "GB are to come" in error.message
    assert not any(place == "store" for place, _, _ in hub.requests)


def test_a_disk_that_fills_meanwhile_is_a_sentence(opened, target, monkeypatch):
    def full(_handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    error = refused(opened(shards(1)), target)
    assert error.reason == SourceReason.NO_SPACE
    assert error.message.startswith(f"the volume of {target.parent} is full: give it more space")


def test_memory_does_not_grow_with_the_files(opened, target):
    import tracemalloc

    checkpoint = opened(shards(2, 24 << 20))
    tracemalloc.start()
    fetched(checkpoint, target)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 << 20  # of 48 MiB twice in the server


LORA = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}
MANY = {f"f{i}.json": b"" for i in range(5000)} | {"config.json": b"{}", "model.safetensors": b""}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"README.md": b""}, "has no config.json"),
        (LORA, "is a LoRA adapter, not a model: name its base model"),
        ({"m.Q4_K_M.gguf": b"", "README.md": b""}, "has GGUF files only: name the safetensors model"),
        ({"config.json": b"{}", "m.gguf": b""}, "has GGUF files only"),
        ({"model_index.json": b"{}"}, "is a diffusers pipeline"),
        ({"config.json": b"{}", "pytorch_model.bin": b""}, "pickled weights only (pytorch_model.bin)"),
        ({"config.json": b"{}", "consolidated.safetensors": b""}, "(it has consolidated.safetensors)"),
        (
            {k: v for k, v in shards(3).items() if "00002" not in k},
            "names 1 of 3 files that are not there, first 'model-00002-of-00003.safetensors'",
        ),
        (MANY, "has 5002 files of a checkpoint; at most 4096 are fetched"),
        ({"config.json": b"{}", "model.safetensors.index.json": b"<html>"}, "is not JSON"),
        ({"config.json": b"{}", "model.safetensors.index.json": b"[" * 100_000}, "is nested too deeply"),
        ({"config.json": b"{}", "model.safetensors.index.json": b"{}"}, "weight_map: is missing"),
        (
            {
                "config.json": b"{}",
                "model.safetensors.index.json": json.dumps(
                    {"weight_map": {"a": "../a.safetensors"}}
                ).encode(),
            },
            "is not a file name",
        ),
        (
            {
                "config.json": b"{}",
                "pytorch_model.bin": b"",
                "model.safetensors.index.json": json.dumps(
                    {"weight_map": {"a": "pytorch_model.bin"}}
                ).encode(),
            },
            "which is no safetensors file",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_is_no_checkpoint_is_refused_by_what_it_is(hub, opened, target, files, words):
    error = refused(opened(files), target)
    assert not error.is_transient
    assert words in error.message
    assert "\n" not in error.message
    assert not any(place == "store" for place, _, _ in hub.requests)


def test_an_index_beside_a_single_file_is_not_fetched(opened, target):
    """vLLM and SGLang would load the shards that it names, which are not fetched either, and nothing else."""
    fetched(opened(shards(2) | {"model.safetensors": b"x" * 100}), target)

    assert {path.name for path in target.iterdir()} == {"config.json", "model.safetensors"}


def test_names_of_unfinished_files_are_those_of_the_revision(opened, target, monkeypatch):
    """Two revisions never share a directory: the name is a hash of the pinned URI."""
    checkpoint = opened(shards(1))
    expected = hashlib.sha256(checkpoint.uri.encode()).hexdigest()[:16]
    monkeypatch.setattr("pathlib.Path.rename", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "")))
    refused(checkpoint, target)
    assert [path.name for path in target.parent.iterdir()] == [f".checkpoint.{expected}"]
