"""Fetches through a proxy, and from servers with a certificate of an authority that is not a public one."""

import json
import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.certificates import Authority
from tangram.sources.checkpoint.errors import SourceError
from tangram.sources.network import trust
from tests.support.hub_server import Hub, hub_server
from tests.support.object_store import object_store


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    issuer = Authority(tmp_path_factory.mktemp("authority"))
    issuer.ensure()
    issuer.ensure_pair("server", user="server", addresses=["127.0.0.1"], dns=["localhost"])
    return issuer


@pytest.fixture
def tls(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.cert("server"), authority.key("server"))
    return context


def headers(target: Path, uri: str, *options: str) -> dict:
    """Run the program: what it sets is the whole process's."""
    command = [
        sys.executable,
        "-m",
        "tangram.sources",
        "headers",
        "--uri",
        uri,
        "--to",
        str(target),
        *options,
    ]
    env = {**os.environ, "TMPDIR": str(target.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    return json.loads(done.stdout.splitlines()[-1])


def test_servers_of_a_private_authority_are_trusted_where_the_chart_names_it(tls, tiny, authority, tmp_path):
    bundle = ("--ca-bundle", str(authority.certificate))
    with hub_server(tls=tls) as hub, object_store(tls) as bucket:
        hub.repository().push(tiny)
        bucket.objects = {f"team/{name}": content for name, content in tiny.items()}
        refused = headers(tmp_path / "a", "hf://org/model", "--hub", hub.endpoint)
        assert "CERTIFICATE_VERIFY_FAILED" in refused["error"]["message"]
        assert "source" in headers(tmp_path / "b", "hf://org/model", "--hub", hub.endpoint, *bundle)
        assert "source" in headers(tmp_path / "c", "s3://models/team", "--s3", bucket.endpoint, *bundle)


def test_a_proxy_is_asked_for_what_is_not_excluded(hub: Hub, tiny, tmp_path):
    hub.repository().push({name: text for name, text in tiny.items() if name.endswith(".json")})
    proxy = ("--hub", "http://hub.example.invalid", "--proxy", hub.endpoint)
    report = headers(tmp_path / "a", "hf://org/model", *proxy)
    assert "has neither model.safetensors nor" in report["error"]["message"]
    report = headers(tmp_path / "b", "hf://org/model", *proxy, "--no-proxy", ".example.invalid")
    assert "hub.example.invalid cannot be reached" in report["error"]["message"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not there, or has no key ca.crt: create it"),
        (b"", "has no certificates in PEM"),
        (b"\xff\xfe", "has no certificates in PEM"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "has no certificates in PEM"),
        (b" " * (2 << 20), "has no certificates in PEM"),
    ],
)
def test_a_bundle_that_is_none_is_named(tmp_path, content, words):
    bundle = tmp_path / "ca.crt"
    if content is not None:
        bundle.write_bytes(content)
    with pytest.raises(SourceError, match="the ConfigMap that") as caught:
        trust(bundle, tmp_path / "combined")
    assert words in caught.value.message
    assert not (tmp_path / "combined").exists()
