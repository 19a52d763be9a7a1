"""Which keys of labels and annotations may be added to engine pods."""

from pathlib import Path
from typing import Any

import pytest

from tangram.api import parse
from tangram.api.llm_deployment.pod_metadata import RESERVED_DOMAINS, RESERVED_HELP, RESERVED_NAMES
from tangram.fleet import Intent, InvalidIntent, SecretKey

META = {
    "uid": "u",
    "name": "chat",
    "namespace": "default",
    "generation": 1,
    "creationTimestamp": "2026-11-21T10:00:00Z",
}


def read(**spec: Any) -> Intent | InvalidIntent:
    return parse({"metadata": META, "spec": {"model": {"uri": "image:///m"}} | spec})


def message(kind: str, key: str) -> str:
    found = read(metadata={kind: {key: "x"}})
    return found.message if isinstance(found, InvalidIntent) else ""


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_no_reserved_key_is_taken_under_a_domain_its_subdomains_or_by_name(kind: str) -> None:
    keys = [f"{sub}{domain}/x" for domain in RESERVED_DOMAINS for sub in ("", "a.", "a.b-c.")]
    keys += [
        *RESERVED_NAMES,
        "io.kubernetes.cri-o.Devices",
        "io.katacontainers.config.hypervisor.path",
        "a.b",
    ]

    for key in keys:
        assert message(kind, key) == f"spec.metadata.{kind}: {RESERVED_HELP} (not {key})"


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_keys_that_only_look_like_reserved_ones_are_taken(kind: str) -> None:
    for domain in RESERVED_DOMAINS:
        for key in (f"not-{domain}/x", f"{domain}.example.com/x", f"example.com/{domain}"):
            assert message(kind, key) == ""
    for name in RESERVED_NAMES:
        assert message(kind, f"example.com/{name}") == ""
        assert message(kind, f"my-{name}") == ""


def test_what_is_asked_of_pods_reaches_the_intent_sorted() -> None:
    found = read(
        metadata={"labels": {"team": "b", "cost": "a"}, "annotations": {"example.com/note": "any text: ü\n"}},
        engine={"apiKeySecretRef": {"name": "keys"}},
    )

    assert isinstance(found, Intent)
    assert found.pod_labels == (("cost", "a"), ("team", "b"))
    assert found.pod_annotations == (("example.com/note", "any text: ü\n"),)
    assert found.api_keys == SecretKey("keys", "api-keys")


def test_the_documentation_names_every_key_that_is_refused() -> None:
    text = (Path(__file__).parents[2] / "docs" / "engine-pods.md").read_text()

    assert [key for key in (*RESERVED_DOMAINS, *RESERVED_NAMES) if f"`{key}`" not in text] == []
