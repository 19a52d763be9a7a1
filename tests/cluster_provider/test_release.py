"""Images that are pushed have a base image with a digest and are signed, or a variable waives it."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from e2e.cluster import release
from e2e.cluster.base import ClusterError

DIGEST = "sha256:" + "5" * 64
PINNED = "docker.io/library/python@sha256:" + "a" * 64
TAGGED = "docker.io/library/python:3.12-slim-bookworm"
TARGETS = ("operator", "agent")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run; labels and digests are answered, and cosign is installed."""
    done: list[list[str]] = []
    bases = {"operator": PINNED, "agent": PINNED}
    monkeypatch.setattr(release, "docker_answers", lambda: False)
    monkeypatch.setattr(release, "which", lambda program: Path("/usr/bin") / program)

    def run(words: list[str | Path], timeout_s: float) -> CompletedProcess[str]:
        done.append([*map(str, words)])
        if words[:2] == ["docker", "image"]:
            return CompletedProcess(words, 0, PINNED + "\n", "")
        return CompletedProcess(words, 0, f"dev: digest: {DIGEST} size: 1234\n", "")

    def buildah(verb: str, *words: str, timeout_s: float) -> CompletedProcess[str]:
        done.append([verb, *words])
        for word in words:
            if word.startswith("--digestfile="):
                Path(word.removeprefix("--digestfile=")).write_text(DIGEST)
        base = next((base for target, base in bases.items() if f"-{target}:" in words[-1]), "")
        return CompletedProcess([verb, *words], 0, base + "\n", "")

    monkeypatch.setattr(release, "run", run)
    monkeypatch.setattr(release, "buildah", buildah)
    return done


def test_each_image_is_signed_by_the_digest_that_the_registry_has(commands: list[list[str]]) -> None:
    pushed = release.push_all(TARGETS, "registry.example.com/team", environ={"COSIGN_KEY": "k.pem"})
    names = [f"registry.example.com/team/tangram-{target}@{DIGEST}" for target in TARGETS]
    assert pushed == names
    signed = [words for words in commands if words[0].endswith("cosign")]
    assert signed == [["/usr/bin/cosign", "sign", "--yes", "--key=k.pem", name] for name in names]


def test_without_a_key_cosign_signs_keyless(commands: list[list[str]]) -> None:
    release.push_all(["agent"], "r.example.com", environ={})
    assert commands[-1] == ["/usr/bin/cosign", "sign", "--yes", f"r.example.com/tangram-agent@{DIGEST}"]


def test_docker_pushes_and_names_the_digest(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "docker_answers", lambda: True)
    pushed = release.push_all(["agent"], "r.example.com:5000", environ={})
    assert pushed == [f"r.example.com:5000/tangram-agent@{DIGEST}"]
    assert ["docker", "push", "r.example.com:5000/tangram-agent:dev"] in commands


@pytest.mark.parametrize("base", [TAGGED, "", f"{TAGGED}@sha256:", "tangram.local/base:bookworm-1"])
def test_nothing_is_pushed_where_one_base_image_has_no_digest(
    base: str, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "_label", lambda name, docker: base if "agent" in name else PINNED)
    with pytest.raises(ClusterError, match="may mean another image tomorrow"):
        release.push_all(TARGETS, "r.example.com", environ={})
    assert [words[0] for words in commands] == []
    said: list[str] = []
    release.push_all(TARGETS, "r.example.com", environ={release.UNPINNED: "1"}, progress=said.append)
    assert any("which no digest names" in line for line in said)


def test_nothing_is_pushed_where_cosign_is_missing(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "which", lambda program: None)
    with pytest.raises(ClusterError, match="cosign is not installed"):
        release.push_all(TARGETS, "r.example.com", environ={})
    assert not [words for words in commands if words[0] == "push"]
    said: list[str] = []
    release.push_all(TARGETS, "r.example.com", environ={release.UNSIGNED: "1"}, progress=said.append)
    assert said[0] == "images are not signed: ALLOW_UNSIGNED=1"
    assert len([words for words in commands if words[0] == "push"]) == len(TARGETS)
