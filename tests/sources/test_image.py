"""A checkpoint in a registry: pinned by its digest, in any layout, fetched verified and only when whole."""

import gzip
import io
import json
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from e2e.cluster import binaries
from tangram.sources import image_fetch
from tangram.sources.checkpoint.errors import SourceError, SourceReason
from tangram.sources.download import staging_of
from tangram.sources.image_fetch import fetch_image, write_headers
from tangram.sources.oci import layers
from tangram.sources.oci.docker_config import RegistryUser
from tangram.sources.oci.registry import ImageRepository, RegistryAccess, open_image
from tangram_engine.inspect import inspect
from tests.sources.conftest import TINY, shards
from tests.support.oci_registry import Layer, Request, oci_registry, push, raw, tar

LAYOUTS = {
    "modelcar": lambda files: [tar({"etc/passwd": b"root"}, "gzip", ""), tar(files, "gzip")],
    "plain tar": lambda files: [tar(files)],
    "zstd": lambda files: [tar(files, "zstd")],
    "flat tar": lambda files: [tar(files, "gzip", "./")],
    "ModelPack": raw,
    "oras": lambda files: raw(files, "org.opencontainers.image.title"),
}


@pytest.fixture
def served():
    with oci_registry() as registry:
        yield registry


@pytest.fixture
def opened(served):
    def open_(reference="latest", **access):
        return open_image(ImageRepository(served.host, "team/model", RegistryAccess(**access)), reference)

    return open_


def refusal(call) -> SourceError:
    with pytest.raises(SourceError) as caught:
        call()
    assert "\n" not in caught.value.message
    return caught.value


def fetched(image, target: Path, **options) -> list[float]:
    pauses: list[float] = []
    fetch_image(image, target, lambda _: None, pause=pauses.append, **options)
    return pauses


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def loaded(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: text for name, text in files.items() if name.endswith((".json", "model.safetensors"))}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """`crane registry serve`, of go-containerregistry."""
    crane = binaries.find("crane")
    if crane is None:
        pytest.skip("crane is not built (a minute): python3 -m e2e.cluster binaries crane")
    log = tmp_path_factory.mktemp("registry") / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [crane, "registry", "serve", "--address", "127.0.0.1:0"], stdout=stream, stderr=stream
        )
    try:
        while "serving on port " not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{log.read_text().split('serving on port ')[1].split()[0]}"
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("layout", ["modelcar", "plain tar", "ModelPack"])
def test_a_real_registry_serves_facts_and_checkpoint(real, tiny, tmp_path, capsys, layout):
    name = f"team/{layout.replace(' ', '-').lower()}"
    pushed = push(real, name, LAYOUTS[layout](tiny))
    image = open_image(ImageRepository(real, name, RegistryAccess()), "latest")
    assert image.revision == pushed
    fetched(image, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == loaded(tiny)
    headers = write_headers(image, tmp_path / "headers", lambda _: None)
    inspect(tmp_path / "headers", None)
    facts = capsys.readouterr().out
    inspect(TINY, None)
    assert json.loads(facts) == json.loads(capsys.readouterr().out)
    assert headers.size == sum(len(text) for text in loaded(tiny).values())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_written_is_what_an_engine_loads(served, opened, tmp_path, layout):
    served.push(LAYOUTS[layout](shards(3) | {"run.py": b"exit", "a.bin": b"a pickle", "more/a.json": b"{}"}))
    fetched(opened(), tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == shards(3)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("layout", ["plain tar", "ModelPack"])
def test_tensors_of_layers_that_are_not_compressed_are_not_read(served, opened, tmp_path, layout):
    weights = (2).to_bytes(8, "little") + b"{}" + bytes(50_000_000)
    served.push(LAYOUTS[layout]({"config.json": b"{}", "model.safetensors": weights}))
    write_headers(opened(), tmp_path / "headers", lambda _: None)
    assert (tmp_path / "headers" / "model.safetensors").stat().st_size == len(weights)
    assert served.bytes_asked() < 1_000_000


def test_a_tag_that_moves_keeps_its_pin(served, opened, tmp_path):
    pinned = served.push([tar(shards(1))], "v1")
    served.push([tar(shards(2))], "v1")
    assert opened("v1").revision != pinned
    fetched(opened(pinned), tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == shards(1)


def test_a_manifest_that_is_not_its_digest_is_refused(served, opened):
    pinned = served.push([tar(shards(1))])
    served.manifests[pinned] += b" "
    assert refusal(lambda: opened(pinned)).reason == SourceReason.CHANGED


def test_an_index_gives_the_image_of_a_platform(served, opened, tmp_path):
    images = {name: served.push([tar(shards(count))], name) for name, count in (("arm64", 1), ("amd64", 2))}
    entries = [
        {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": image,
            "platform": {"os": "linux", "architecture": name},
        }
        for name, image in images.items()
    ]
    index = served.put(json.dumps({"manifests": entries}).encode(), "latest")
    assert opened().revision == index
    fetched(opened(index), tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == shards(2)


def test_a_higher_layer_replaces_and_hides_files_of_lower_ones(served, opened, tmp_path):
    lower = shards(1) | {"tokenizer.json": b"old", "vocab.json": b"gone"}
    served.push([tar(lower), tar({"tokenizer.json": b"new", ".wh.vocab.json": b""}, "gzip")])
    fetched(opened(), tmp_path / "one")
    assert content(tmp_path / "one") == shards(1) | {"tokenizer.json": b"new"}
    served.push([tar({"vocab.json": b"gone"}), tar({".wh..wh..opq": b""} | shards(1))])
    fetched(opened(), tmp_path / "two")
    assert content(tmp_path / "two") == shards(1)


def test_a_cut_layer_goes_on_where_it_was_cut(served, opened, tmp_path):
    files = shards(1, 3_000_000)
    served.push([tar(files)])
    cut = []

    def fault(request: Request) -> bool:
        if "/blobs/" not in request.path or cut:
            return False
        cut.append(request)
        request.content(served.blobs[request.path.rsplit("/", 1)[1]], cut=2_000_000)
        return True

    served.faults.append(fault)
    assert fetched(opened(), tmp_path / "checkpoint") == [2.0]
    assert content(tmp_path / "checkpoint") == files
    ranges = [headers["range"] for path, headers in served.requests if "/blobs/" in path]
    assert 0 < int(ranges[-1].split("=")[1].split("-")[0]) <= 2_000_000


def test_layers_that_came_whole_are_not_read_again(served, opened, tmp_path):
    whole, failing = tar(shards(1)), tar({"tokenizer.json": b"{}"})
    served.push([whole, failing])

    def fails(request: Request) -> bool:
        if failing.digest in request.path:
            while not [*tmp_path.glob(".checkpoint.*/0000")]:
                time.sleep(0.01)
            request.answer(503, b"")
        return failing.digest in request.path

    served.faults.append(fails)
    assert refusal(lambda: fetched(opened(), tmp_path / "checkpoint")).is_transient
    assert not (tmp_path / "checkpoint").exists()
    served.faults.clear()
    served.requests.clear()
    fetched(opened(), tmp_path / "checkpoint")
    assert not any(whole.digest in path for path, _ in served.requests)
    assert content(tmp_path / "checkpoint") == shards(1) | {"tokenizer.json": b"{}"}


def test_a_fetch_that_ended_while_its_files_were_moved_begins_anew(served, opened, tmp_path):
    served.push([tar(shards(1)), tar({"tokenizer.json": b"new"})])
    image = opened()
    staging = staging_of(tmp_path / "checkpoint", image.uri)
    for name in ("0000", "0001", "visible"):
        (staging / name).mkdir()
    (staging / "visible" / "tokenizer.json").write_bytes(b"half")
    fetched(image, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == shards(1) | {"tokenizer.json": b"new"}


@pytest.mark.parametrize("layer", [tar(shards(1)), *raw({"config.json": b"{}"})])
def test_bytes_that_are_not_those_of_the_digest_are_never_served(served, opened, tmp_path, layer):
    served.push([layer])
    served.blobs[layer.digest] = b"\0" * len(layer.content)
    error = refusal(lambda: fetched(opened(), tmp_path / "checkpoint"))
    assert error.reason in (SourceReason.CHANGED, SourceReason.INVALID)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("layout", ["modelcar", "ModelPack"])
def test_a_registry_without_ranges_is_read_whole(served, opened, tiny, tmp_path, layout):
    served.has_ranges = False
    served.push(LAYOUTS[layout](tiny))
    write_headers(opened(), tmp_path / "headers", lambda _: None)
    assert (tmp_path / "headers" / "config.json").read_bytes() == tiny["config.json"]
    fetched(opened(), tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == loaded(tiny)


def test_more_bytes_than_the_inspected_ones_are_not_written(served, opened, tmp_path):
    served.push([tar(shards(2))])
    error = refusal(lambda: fetched(opened(), tmp_path / "checkpoint", size=4000))
    assert "more than the 4000 bytes that were inspected" in error.message


@pytest.mark.parametrize("challenge", ["Bearer", "Basic"])
def test_credentials_are_given_to_who_asks_for_them(served, opened, tmp_path, challenge):
    served.push([tar(shards(1))])
    served.user, served.challenge = "me:secret", challenge
    error = refusal(opened)
    assert error.reason == SourceReason.ACCESS_DENIED
    assert "may not be read without credentials: set model.secretRef" in error.message
    error = refusal(lambda: opened(credentials=RegistryUser("me", "wrong")))
    assert "the credentials of model.secretRef may not read it" in error.message
    image = opened(credentials=RegistryUser("me", "secret"))
    served.token = "token-2"  # the first one has expired
    fetched(image, tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == shards(1)
    assert "secret" not in repr(image)


def test_an_answer_that_no_registry_gives_is_tried_again(served, opened):
    served.faults.append(lambda request: request.answer(200, b"<html>log in</html>") or True)
    assert "a web page came in place of a manifest" in refusal(opened).message
    served.faults[:] = [
        lambda request: (
            request.answer(401, b"", WWW_Authenticate='Bearer realm="ftp://elsewhere/token"') or True
        )
    ]
    assert "which no registry does" in refusal(opened).message
    served.faults[:] = [lambda request: request.answer(429, b"", Retry_After="17") or True]
    assert refusal(opened).retry_after_s == 17.0


def test_a_registry_that_cannot_be_reached_is_named():
    error = refusal(lambda: open_image(ImageRepository("127.0.0.1:9", "a/b", RegistryAccess()), "latest"))
    assert error.is_transient
    assert "oci://127.0.0.1:9/a/b: 127.0.0.1:9 cannot be reached" in error.message


def test_what_is_not_there_is_named(served, opened, tmp_path):
    assert refusal(opened).reason == SourceReason.NOT_FOUND
    served.push([tar({"readme.txt": b"x"}, "gzip")])
    assert "has no config.json" in refusal(lambda: write_headers(opened(), tmp_path / "x", print)).message


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (b"[]", "is not a JSON object"),
        (b'{"layers": 3}', "has no list of layers"),
        (b'{"layers": []}', "has no layer that is a tar or a named file"),
        (b'{"manifests": [{"platform": {"os": "unknown", "architecture": "unknown"}}]}', "without an image"),
        (json.dumps({"layers": [{}] * 5000}).encode(), "5000 layers; at most 4096"),
        (b'{"layers": [{"mediaType": "a.tar", "size": -1}]}', "no mediaType or size"),
        (b'{"layers": [{"mediaType": "a.tar", "size": 1, "digest": "sha512:00"}]}', "no SHA-256"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b" " * (5 << 20), "answers with more than 4194304 bytes"),
    ],
)
def test_a_manifest_that_is_none_is_refused(served, opened, manifest, words):
    served.put(manifest, "latest")
    error = refusal(opened)
    assert (error.reason, words in error.message) == (SourceReason.INVALID, True), error.message


def described(size: int) -> bytes:
    """Return a tar whose first member describes the next one in so many bytes."""
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.XHDTYPE, size
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(10240)


def sized(size: int, name: str = "models/config.json") -> bytes:
    """Return a tar of one file that has no byte of so many."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(10240)


def pax(count: int = 1, **fields: str) -> bytes:
    """Return a tar whose first file is described by so many headers with these fields."""
    named = {name.replace("_", "."): value for name, value in fields.items()}
    header = tarfile.TarInfo._create_pax_generic_header(named, tarfile.XHDTYPE, "utf-8")
    return header * count + sized(0)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Layer(b"no tar at all" * 100), "is no tar that can be read"),
        (Layer(sized(1 << 60)), "bytes, and a file of its kind"),
        (Layer(sized(-256)), "a file of -256 bytes"),
        (Layer(sized(1 << 60, "other")), "is no tar that can be read (it was cut)"),
        (Layer(gzip.compress(sized(1 << 60, "other")), "a.tar+gzip"), "more than 64 times its size"),
        (Layer(pax(size="9" * 30)), "bytes, and a file of its kind"),
        (Layer(pax(size="-1")), "a file of -1 bytes"),
        (Layer(pax(3000, comment="x")), "is no tar that can be read"),
        (Layer(pax(GNU_sparse_map="a,b", GNU_sparse_size="3")), "is no tar that can be read"),
        (Layer(tar(shards(1), "gzip").content[:200], "a.tar+gzip"), "is no tar that can be read"),
        (Layer(b"no zstd", "a.tar+zstd"), "is no tar that can be read"),
        (Layer(tar(shards(1)).content[:2048]), "is no tar that can be read"),
        (Layer(described(1 << 33)), "a description of 8589934592 bytes"),
        (tar({"config.json": bytes(200_000_000)}, "gzip"), "has 200000000 bytes, and a file of its kind"),
        (tar({"other": bytes(100_000_000)}, "gzip"), "more than 64 times its size"),
        (tar({str(number): b"" for number in range(201)}), "has more than 200 files"),
    ],
)
def test_a_layer_that_is_not_what_it_seems_is_refused(served, opened, tmp_path, monkeypatch, layer, words):
    monkeypatch.setattr(layers, "MOST_MEMBERS", 200)
    monkeypatch.setattr(layers, "EXPANSION_BASE", 1 << 20)
    served.push([layer])
    error = refusal(lambda: fetched(opened(), tmp_path / "checkpoint"))
    assert words in error.message
    error = refusal(lambda: write_headers(opened(), tmp_path / "headers", lambda _: None))
    assert words in error.message


def test_only_so_many_compressed_bytes_are_read_to_inspect(served, opened, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(image_fetch, "COMPRESSED_LIMIT", 1000)
    served.push(LAYOUTS["modelcar"](tiny))
    error = refusal(lambda: write_headers(opened(), tmp_path / "headers", lambda _: None))
    assert "push them uncompressed" in error.message
    assert not any("/blobs/" in path for path, _ in served.requests)


def test_links_and_paths_out_of_the_folder_are_no_files(served, opened, tmp_path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind, target in (
            ("models/tokenizer.json", tarfile.SYMTYPE, "/etc/passwd"),
            ("models/vocab.json", tarfile.LNKTYPE, "models/config.json"),
            ("models/../../evil.json", tarfile.REGTYPE, ""),
            ("/models/fifo.json", tarfile.FIFOTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    served.push([tar(shards(1)), Layer(packed.getvalue())])
    fetched(opened(), tmp_path / "checkpoint")
    assert content(tmp_path / "checkpoint") == shards(1)
