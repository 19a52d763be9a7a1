"""Facts before bytes: the engine's own inspection of a copy in which tensors are holes."""

import json
from pathlib import Path

import pytest

from tangram.sources.checkpoint.errors import SourceError
from tangram.sources.sparse_copy import write_sparse_copy
from tangram_engine.inspect import inspect
from tests.sources.conftest import TINY, shards


def facts(directory: Path, capsys) -> dict:
    inspect(directory, None)
    return json.loads(capsys.readouterr().out)


def test_inspect_says_of_the_copy_what_it_says_of_the_checkpoint(hub, opened, tiny, tmp_path, capsys):
    files = write_sparse_copy(opened(tiny), tmp_path / "copy")
    assert facts(tmp_path / "copy", capsys) == facts(TINY, capsys)
    assert sum(file.size for file in files) == sum(f.stat().st_size for f in (tmp_path / "copy").iterdir())


def test_tensors_are_not_read(hub, opened, tiny, tmp_path):
    checkpoint = opened(tiny | {"model.safetensors": tiny["model.safetensors"] + bytes(50_000_000)})
    write_sparse_copy(checkpoint, tmp_path / "copy")
    weights = tmp_path / "copy" / "model.safetensors"
    assert weights.stat().st_size > 50_000_000
    assert weights.stat().st_blocks * 512 < 2_000_000
    assert (
        sum(
            int(headers["range"].split("-")[1]) - int(headers["range"].split("=")[1].split("-")[0])
            for place, _, headers in hub.requests
            if place == "store"
        )
        < 2_000_000
    )


def test_a_head_that_differs_from_its_embedding_differs_in_the_copy(opened, tiny, tmp_path, capsys):
    """Training may leave a head in a file that is tied by its config: the engine compares the two."""
    import struct

    raw = tiny["model.safetensors"]
    length = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    begin, end = header["model.embed_tokens.weight"]["data_offsets"]
    head = bytes(reversed(data[begin:end]))
    header["lm_head.weight"] = {
        **header["model.embed_tokens.weight"],
        "data_offsets": [len(data), len(data) + len(head)],
    }
    text = json.dumps(header).encode()
    files = tiny | {"model.safetensors": struct.pack("<Q", len(text)) + text + data + head}
    config = json.loads(files["config.json"]) | {"tie_word_embeddings": True}
    files["config.json"] = json.dumps(config).encode()
    write_sparse_copy(opened(files), tmp_path / "copy")
    assert facts(tmp_path / "copy", capsys)["facts"]["tiedEmbeddings"] is False


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1", "no safetensors file (or a Git LFS pointer to one)"),
        (b"abc", "has 3 bytes, too few for a safetensors file"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "no safetensors file"),
        ((0).to_bytes(8, "little"), "no safetensors file"),
    ],
)
def test_a_file_without_a_header_is_refused(opened, tmp_path, begin, words):
    with pytest.raises(SourceError, match=r"upload it again") as caught:
        write_sparse_copy(opened({"config.json": b"{}", "model.safetensors": begin}), tmp_path / "copy")
    assert words in caught.value.message


def test_a_header_that_is_not_json_is_left_to_the_engine(opened, tmp_path):
    header = (9).to_bytes(8, "little") + b"not JSON!"
    write_sparse_copy(opened({"config.json": b"{}", "model.safetensors": header}), tmp_path / "copy")
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == header


def test_a_long_header_takes_a_second_read(hub, opened, tmp_path):
    header = (300_000).to_bytes(8, "little") + b" " * 300_000
    write_sparse_copy(
        opened({"config.json": b"{}", "model.safetensors": header + b"data"}), tmp_path / "copy"
    )
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == header + bytes(4)
    assert len([1 for place, _, _ in hub.requests if place == "store"]) == 2


def test_each_of_many_shards_is_asked_for_its_header_alone(hub, opened, tmp_path):
    body = (2).to_bytes(8, "little") + b"{}" + bytes(1_000_000)
    files = {name: body if name.endswith(".safetensors") else text for name, text in shards(20).items()}
    write_sparse_copy(opened(files), tmp_path / "copy")
    assert len([1 for place, _, _ in hub.requests if place == "store"]) == 20
