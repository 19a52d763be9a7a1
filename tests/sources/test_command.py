"""`tangram-fetch` as a container runs it: arguments, report, exit status; without a name of the outside."""

import base64
import errno
import fcntl
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tangram.sources import command
from tangram.sources.checkpoint.errors import SourceError, SourceReason
from tangram.sources.download import only_fetch_into
from tests.sources.conftest import shards
from tests.support.hub_server import Hub, Request
from tests.support.object_store import object_store
from tests.support.oci_registry import oci_registry, tar


@pytest.fixture
def air_gap(monkeypatch):
    """Make every name but those of this machine unknown, and note what is asked for."""
    asked, resolve = [], socket.getaddrinfo

    def only_local(host, *args, **kwargs):
        asked.append(host)
        if host not in ("127.0.0.1", "localhost"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", only_local)
    return asked


@pytest.fixture
def run(tmp_path: Path):
    """Run the command; return exit status and report."""

    def run_(name: str, uri: str, *options: str):
        log = tmp_path / "termination-log"
        arguments = [name, "--uri", uri, "--to", str(tmp_path / "checkpoint"), *options]
        status = command.main([*arguments, "--termination-log", str(log)])
        return status, json.loads(log.read_text())

    return run_


@pytest.mark.parametrize("name", ["headers", "fetch"])
def test_a_mirror_is_all_that_a_fetch_needs(hub: Hub, tiny, run, tmp_path, air_gap, name):
    commit = hub.repository().push(tiny)
    status, report = run(name, "hf://org/model", "--hub", hub.endpoint)
    size = sum(path.stat().st_size for path in (tmp_path / "checkpoint").iterdir())
    assert (status, report["schema"]) == (0, 1)
    assert (report["source"]["revision"], report["source"]["size"]) == (commit, size)
    assert set(air_gap) <= {"127.0.0.1", "localhost"}


def test_a_read_that_hangs_does_not_keep_the_process(hub: Hub, tmp_path):
    """The exit of an interpreter waits for its threads."""
    hub.repository().push(shards(2))
    hub.faults.append(lambda request: request.place == "store" and _hang_or_refuse(request))
    arguments = ["fetch", "--uri", "hf://org/model", "--to", str(tmp_path / "c"), "--hub", hub.endpoint]
    done = subprocess.run(
        [sys.executable, "-m", "tangram.sources", *arguments],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == command.EXIT_REFUSED, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["error"]["reason"] == "SourceChanged"


def _hang_or_refuse(request: Request) -> bool:
    """Keep the first reader waiting, and give the other one wrong bytes."""
    if len([1 for place, _, _ in request.hub.requests if place == "store"]) == 1:
        request.rfile.read(1)
    else:
        request.content(b"!" * 3000, "application/octet-stream")
    return True


def test_what_was_fetched_is_served_while_the_hub_is_down(hub: Hub, tiny, run):
    pinned = f"hf://org/model@{hub.repository().push(tiny)}"
    _, report = run("fetch", pinned, "--hub", hub.endpoint)
    status, again = run("fetch", pinned, "--hub", "http://127.0.0.1:9")
    assert status == 0
    assert again["source"] == report["source"] | {"seconds": 0.0}


def test_a_name_that_does_not_resolve_is_tried_again(run, air_gap):
    status, report = run("headers", "hf://org/model", "--hub", "https://hub.example.com")
    assert status == command.EXIT_RETRY
    assert report["error"]["reason"] == "SourceUnreachable"
    assert "hub.example.com cannot be reached" in report["error"]["message"]
    assert air_gap == ["hub.example.com"]


def test_a_token_is_read_from_its_secret_and_reported_nowhere(hub: Hub, tiny, run, tmp_path, capsys):
    hub.repository().push(tiny)
    hub.repository().is_private = True
    hub.tokens.add("hf_good")
    secret = tmp_path / "secret"
    secret.mkdir()
    options = ("--hub", hub.endpoint, "--secret", str(secret), "--secret-name", "mine")

    status, report = run("headers", "hf://org/model", *options)
    assert status == command.EXIT_REFUSED
    text = "Secret mine of model.secretRef is not there, or has no key token or HF_TOKEN"
    assert report["error"] == {"reason": "AccessDenied", "message": f"{text}: create it in this namespace"}

    (secret / "HF_TOKEN").write_text("hf_wrong\n")
    status, report = run("headers", "hf://org/model", *options)
    assert "the token of Secret mine may not read it" in report["error"]["message"]

    (secret / "token").write_text("hf_good\n")
    status, report = run("fetch", "hf://org/model", *options)
    assert status == 0
    shown = capsys.readouterr()
    assert "hf_good" not in shown.out + shown.err + json.dumps(report)


@pytest.mark.parametrize("value", [b"", b"two words", b"x" * 5000, b"\xff\xfe", b"a\nb"])
def test_a_secret_that_holds_no_token_is_not_sent(hub: Hub, run, tmp_path, value):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "token").write_bytes(value)
    options = ("--hub", hub.endpoint, "--secret", str(tmp_path / "secret"), "--secret-name", "mine")
    status, report = run("headers", "hf://org/model", *options)
    assert (status, hub.requests) == (command.EXIT_REFUSED, [])
    assert "key token of Secret mine holds no token" in report["error"]["message"]


def test_the_keys_of_a_store_sign_its_requests(tiny, run, tmp_path):
    (tmp_path / "secret").mkdir()
    for name, value in (("AWS_ACCESS_KEY_ID", "AKIA1"), ("AWS_SECRET_ACCESS_KEY", "s")):
        (tmp_path / "secret" / name).write_text(value)
    with object_store() as bucket:
        bucket.key_id = "AKIA1"
        bucket.objects = {f"team/{name}": content for name, content in tiny.items()}
        options = ("--s3", bucket.endpoint, "--secret", str(tmp_path / "secret"), "--secret-name", "mine")
        status, report = run("fetch", "s3://models/team", *options)
        assert (status, report["source"]["revision"][:6]) == (0, "etags-")
        bucket.objects["team/config.json"] = b"{ }"
        pinned = f"s3://models/team@{report['source']['revision']}"
        status, report = run("headers", pinned, *options)
    assert (status, report["error"]["reason"]) == (command.EXIT_REFUSED, "SourceChanged")


def test_two_pods_never_write_to_a_claim_at_once(hub: Hub, tiny, run, tmp_path):
    hub.repository().push(tiny)
    with only_fetch_into(tmp_path / "checkpoint"):
        status, report = run("fetch", "hf://org/model", "--hub", hub.endpoint)
    assert (status, hub.requests) == (command.EXIT_RETRY, [])
    assert "another pod still fetches into" in report["error"]["message"]
    assert run("fetch", "hf://org/model", "--hub", hub.endpoint)[0] == 0


@pytest.mark.parametrize(("call", "words"), [("open", "cannot be written"), ("flock", "cannot be locked")])
def test_a_volume_of_no_use_is_named(tmp_path, monkeypatch, call, words):
    def refuse(*_, **__):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(*{"open": (Path, "open"), "flock": (fcntl, "flock")}[call], refuse)
    with pytest.raises(SourceError, match=words) as caught, only_fetch_into(tmp_path / "checkpoint"):
        pass
    assert caught.value.reason == SourceReason.NO_SPACE


def test_another_size_than_the_inspected_one_is_refused(hub: Hub, tiny, run):
    hub.repository().push(tiny)
    status, report = run("fetch", "hf://org/model", "--hub", hub.endpoint, "--size", "7")
    assert (status, report["error"]["reason"]) == (command.EXIT_REFUSED, "SourceChanged")
    assert "7 when it was inspected" in report["error"]["message"]


def test_a_defect_is_reported_as_one(hub: Hub, run, monkeypatch):
    monkeypatch.setattr(command, "open_source", lambda *_: 1 / 0)
    status, report = run("headers", "hf://org/model", "--hub", hub.endpoint)
    assert (status, report["error"]["reason"]) == (command.EXIT_DEFECT, "InspectionFailed")


def test_a_report_has_the_length_that_the_kubelet_keeps(run, monkeypatch):
    def refuse(*_):
        raise command.SourceError(command.SourceReason.INVALID, '\U0001f600"\\' * 5000)

    monkeypatch.setattr(command, "open_source", refuse)
    _, report = run("headers", "hf://org/model")
    assert len(json.dumps(report)) < 4096


@pytest.mark.parametrize("uri", ["pvc://claim/dir", "image:///dir", "hf://org", "file:///etc/passwd"])
def test_what_is_not_fetched_is_a_wrong_argument(run, uri):
    with pytest.raises(SystemExit) as caught:
        run("headers", uri)
    assert caught.value.code == command.EXIT_USAGE


def test_credentials_of_a_registry_are_read_from_its_secret(tiny, run, tmp_path, capsys):
    (tmp_path / "secret").mkdir()
    key = tmp_path / "secret" / ".dockerconfigjson"
    with oci_registry() as registry:
        registry.user = "me:hidden"
        digest = registry.push([tar(tiny)])
        uri = f"oci://{registry.host}/team/model"
        options = ("--secret", str(tmp_path / "secret"), "--secret-name", "mine")
        for content, words in (
            (b"{", "is not JSON"),
            (b'{"auths": {}}', "has no entry for 127.0.0.1"),
            (b" " * (2 << 20), "is not JSON"),
        ):
            key.write_bytes(content)
            status, report = run("headers", uri, *options)
            assert (status, report["error"]["reason"]) == (command.EXIT_REFUSED, "AccessDenied")
            assert words in report["error"]["message"]
        auth = base64.b64encode(b"me:hidden").decode()
        key.write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
        status, headers = run("headers", uri, *options)
        assert (status, headers["source"]["revision"]) == (0, digest)
        shutil.rmtree(tmp_path / "checkpoint")
        size = str(headers["source"]["size"])
        status, report = run("fetch", f"{uri}@{digest}", *options, "--size", size)
    assert (status, report["source"]["size"]) == (0, int(size))
    shown = capsys.readouterr()
    assert not any(secret in shown.out + shown.err for secret in ("hidden", auth))
