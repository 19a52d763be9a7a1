"""A checkpoint in a bucket: pinned by its ETags, read with keys, fetched as from a hub."""

import pytest

from tangram.sources.checkpoint.errors import SourceError, SourceReason
from tangram.sources.download import fetch
from tangram.sources.ranged_reads import read_range
from tangram.sources.sparse_copy import write_sparse_copy
from tangram.sources.store import StoreAccess, open_store
from tests.sources.conftest import shards
from tests.support.object_store import object_store


@pytest.fixture
def bucket():
    with object_store() as served:
        yield served


@pytest.fixture
def opened(bucket):
    def open_(files=None, revision=None, repository="models/team/llama", **keys):
        if files is not None:
            bucket.objects = {f"team/llama/{name}": content for name, content in files.items()}
        return open_store(repository, revision, StoreAccess(bucket.endpoint, **keys))

    return open_


def refusal(call) -> SourceError:
    with pytest.raises(SourceError) as caught:
        call()
    assert "\n" not in caught.value.message
    return caught.value


def test_what_a_prefix_holds_is_fetched(bucket, opened, tmp_path):
    files = shards(3, 40_000_000 // 3)
    checkpoint = opened(files | {"original/model.safetensors": b"x"})
    fetch(checkpoint, tmp_path / "checkpoint", print)
    assert {path.name: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()} == files


def test_a_prefix_is_a_folder(bucket, opened):
    checkpoint = opened({"config.json": b"{}"})
    bucket.objects["team/llama-70b/config.json"] = b"{}"
    assert opened().uri == checkpoint.uri


def test_a_listing_of_many_pages_is_whole(bucket, opened):
    bucket.page = 7
    assert set(opened(shards(30)).files) == set(shards(30))


def test_headers_are_read_alone(bucket, opened, tmp_path):
    header = (2).to_bytes(8, "little") + b"{}"
    write_sparse_copy(
        opened({"config.json": b"{}", "model.safetensors": header + bytes(50_000_000)}), tmp_path
    )
    assert (tmp_path / "model.safetensors").stat().st_size == 50_000_010
    assert [h["range"] for path, h in bucket.requests if path.endswith("model.safetensors")] == [
        "bytes=0-131071"
    ]


def test_the_pin_changes_with_each_object_and_with_nothing_else(opened):
    pin = opened(shards(2)).revision
    assert opened(dict(reversed(shards(2).items()))).revision == pin
    assert opened(shards(2) | {"config.json": b"{ }"}).revision != pin
    assert opened(shards(2) | {"more.json": b"{}"}).revision != pin


def test_other_objects_than_the_pinned_ones_are_refused_with_their_pin(opened):
    pin = opened(shards(2)).revision
    assert opened(revision=pin).revision == pin
    newer = opened(shards(3)).revision
    error = refusal(lambda: opened(revision=pin))
    assert error.reason == SourceReason.CHANGED
    assert f"set model.revision to {newer}" in error.message


def test_an_object_that_is_replaced_meanwhile_is_not_mixed_in(bucket, opened):
    checkpoint = opened(shards(1))
    (name,) = (name for name in checkpoint.files if name.endswith(".safetensors"))
    bucket.objects[f"team/llama/{name}"] = b"!" * 3000
    error = refusal(lambda: read_range(checkpoint, checkpoint.files[name], 0, 10))
    assert error.reason == SourceReason.CHANGED


def test_keys_sign_requests_and_are_shown_nowhere(bucket, opened):
    bucket.key_id = "AKIA1"
    checkpoint = opened({"config.json": b"{}"}, access_key_id="AKIA1", secret_access_key="top-secret")
    assert "AKIA1" not in repr(checkpoint)
    assert not any("top-secret" in str(headers) for _, headers in bucket.requests)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "it may not be read without keys: set model.secretRef"),
        ({"access_key_id": "AKIA2", "secret_access_key": "s"}, "the keys of model.secretRef may not read it"),
    ],
)
def test_without_the_right_keys_nothing_is_read(bucket, opened, keys, words):
    bucket.key_id = "AKIA1"
    error = refusal(lambda: opened({"config.json": b"{}"}, **keys))
    assert error.reason == SourceReason.ACCESS_DENIED
    assert words in error.message
    assert not error.is_transient


def test_a_store_that_cannot_be_reached_is_named(opened):
    error = refusal(lambda: open_store("models/a", None, StoreAccess("http://127.0.0.1:9")))
    assert error.is_transient
    assert "s3://models/a: the store did not answer (HTTP error: error sending request)" in error.message


def test_what_is_not_there_is_named(opened):
    assert refusal(lambda: opened({}, repository="other/llama")).reason == SourceReason.NOT_FOUND
    error = refusal(lambda: opened({}))
    assert "s3://models/team/llama has no objects" in error.message


def test_too_many_objects_are_refused(opened):
    assert (
        "5000 objects; at most 4096"
        in refusal(lambda: opened({f"{i}.json": b"" for i in range(5000)})).message
    )


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_store_that_fails_is_asked_again(bucket, opened, tmp_path, status):
    checkpoint = opened(shards(1))
    left = [2]

    def fails(request) -> bool:
        left[0] -= 1
        if left[0] >= 0:
            request.refuse(status, "SlowDown")
        return left[0] >= 0

    bucket.faults.append(fails)
    pauses = []
    with pytest.raises(SourceError) as caught:  # of the listing's index, which no fetch repeats
        opened()
    assert caught.value.is_transient
    left[0] = 0
    fetch(checkpoint, tmp_path / "checkpoint", print, pause=pauses.append)
