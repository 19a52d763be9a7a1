"""Which keys of labels and annotations may be added to engine pods."""

from pathlib import Path
from typing import Any

import pytest

from tangram.api import parse
from tangram.api.llm_deployment.pod_metadata import KEYS_HELP, OWN_DOMAINS, OWN_HELP, OWN_NAMES
from tangram.fleet import Intent, InvalidIntent, SecretKey

META = {
    "uid": "u",
    "name": "chat",
    "namespace": "default",
    "generation": 1,
    "creationTimestamp": "2026-11-21T10:00:00Z",
}
KINDS = pytest.mark.parametrize("kind", ["labels", "annotations"])
LISTED = ("team", "example.com/*", "corp.example.org/owner")


def read(listed: tuple[str, ...] | None = None, **spec: Any) -> Intent | InvalidIntent:
    return parse(
        {"metadata": META, "spec": {"model": {"uri": "image:///m"}} | spec}, pod_metadata_keys=listed
    )


def message(kind: str, key: str) -> str:
    """Return why a key is refused whatever the setting lists."""
    found = read(metadata={kind: {key: "x"}})
    return found.message if isinstance(found, InvalidIntent) else ""


def refusal(kind: str, *keys: str, listed: tuple[str, ...] | None = LISTED) -> str:
    """Return why a key is refused by the setting."""
    found = read(listed, metadata={kind: dict.fromkeys(keys, "x")})
    assert isinstance(found, Intent)
    return f"{found.refusal.reason}: {found.refusal.message}" if found.refusal else ""


@KINDS
@pytest.mark.parametrize("key", ["team", "example.com/a", "example.com/app", "corp.example.org/owner"])
def test_a_key_that_the_setting_lists_is_taken(kind: str, key: str) -> None:
    assert refusal(kind, key) == ""


@KINDS
@pytest.mark.parametrize(
    "key",
    [
        # of webhooks that inject credentials, containers or libraries
        *("akeyless/enabled", "akeyless/inject_file", "akeyless.io/a", "conjur.org/authn-identity"),
        *("sidecar.jaegertracing.io/inject", "instana-autotrace", "vault.hashicorp.com/agent-inject"),
        # of programs that run commands in pods, replace, end or move them
        *("k8up.syn.tools/backupcommand", "appuio.ch/backupcommand", "multicluster.admiralty.io/elect"),
        *("kube-monkey/enabled", "katalyst.kubewharf.io/qos_level", "kueue.x-k8s.io/queue-name"),
        *("policy.kruise.io/delete-protection", "stork.libopenstorage.org/disableHyperconvergence"),
        # of policies, logs and metrics
        *("kubearmor-policy", "co.elastic.metrics/hosts", "co.elastic.logs/enabled", "fluentbit.io/exclude"),
        "k8s.grafana.com/scrape",
        # of container runtimes, which have no prefix
        *("io.kubernetes.cri-o.Devices", "io.katacontainers.config.hypervisor.path"),
        # by which Services and policies select
        *("app", "k8s-app", "name", "Team", "team.a", "team-a"),
        # beside listed domains and keys: subdomains, domains that begin or end alike, other keys
        *("a.example.com/a", "example.com.evil.org/a", "notexample.com/a", "example.org/a", "example.com"),
        *("corp.example.org/other", "example.com.a", "team/a"),
    ],
)
def test_every_other_key_is_refused_with_the_name_of_the_setting(kind: str, key: str) -> None:
    found = refusal(kind, "team", key)

    assert found.startswith(f"MetadataKeyNotAllowed: spec.metadata.{kind}: the key {key} is not allowed: the")
    assert "setting engine.podMetadataKeys allows corp.example.org/owner, example.com/*, team alone" in found
    assert "running replicas stay unchanged" in found


@KINDS
def test_without_a_list_no_key_is_taken_and_the_message_says_so(kind: str) -> None:
    assert "engine.podMetadataKeys allows none" in refusal(kind, "team", listed=())
    assert refusal(kind, listed=()) == ""


@KINDS
@pytest.mark.parametrize(
    "key",
    ["Example.com/a", "example.com./a", ".example.com/a", "example.com//a", "example.com/*", "*", "/a", ""],
)
def test_what_is_no_key_of_kubernetes_is_refused_whatever_is_listed(kind: str, key: str) -> None:
    assert message(kind, key) == f"spec.metadata.{kind}: {KEYS_HELP}"


@KINDS
def test_no_key_that_tangram_writes_is_taken_under_its_domains_their_subdomains_or_by_name(kind: str) -> None:
    keys = [f"{sub}{domain}/x" for domain in OWN_DOMAINS for sub in ("", "a.", "a.b-c.")]

    for key in (*keys, *OWN_NAMES):
        assert message(kind, key) == f"spec.metadata.{kind}: {OWN_HELP} (not {key})"
    for domain in OWN_DOMAINS:
        for key in (f"not-{domain}/x", f"{domain}.example.com/x", f"example.com/{domain}"):
            assert message(kind, key) == ""


@KINDS
def test_more_keys_than_allowed_are_refused_before_any_is_read(kind: str) -> None:
    found = read(LISTED, metadata={kind: {f"Bad/{number}": "x" for number in range(100_000)}})

    assert isinstance(found, InvalidIntent)
    assert len(found.message) <= 1000


def test_a_refused_class_is_named_before_a_refused_key() -> None:
    found = read((), priorityClassName="absent", metadata={"labels": {"team": "a"}})

    assert isinstance(found, Intent)
    assert found.refusal is not None
    assert found.refusal.reason == "PriorityClassNotFound"


def test_what_is_asked_of_pods_reaches_the_intent_sorted() -> None:
    found = read(
        metadata={"labels": {"team": "b", "cost": "a"}, "annotations": {"example.com/note": "any text: ü\n"}},
        engine={"apiKeySecretRef": {"name": "keys"}},
    )

    assert isinstance(found, Intent)
    assert found.pod_labels == (("cost", "a"), ("team", "b"))
    assert found.pod_annotations == (("example.com/note", "any text: ü\n"),)
    assert found.api_keys == SecretKey("keys", "api-keys")


def test_the_documentation_names_every_key_that_tangram_writes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "engine-pods.md").read_text()

    assert [key for key in (*OWN_DOMAINS, *OWN_NAMES) if f"`{key}`" not in text] == []
