"""`spec.metadata`: labels and annotations that users add to engine pods, and which keys they may have.

The right to write an LLMDeployment must give no other right. Programs with more rights than users have read
keys of pods: container runtimes and device injectors, networks, webhooks that inject containers and
credentials, backup programs that run commands, schedulers and autoscalers. Which of them a cluster has, its
administrator knows: a key is used only if the operator's setting `engine.podMetadataKeys` lists it. The CRD
cannot know that setting. It refuses the keys that Tangram writes itself.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue, StrictStr

from tangram.api.common.base import APIModel
from tangram.api.common.labels import (
    LABEL_KEY,
    LABEL_VALUE,
    LONGEST_KEY,
    LONGEST_LABEL,
    LONGEST_NAME,
    is_label_key,
    is_label_value,
)
from tangram.api.common.values import rule, validations
from tangram.fleet import Refusal
from tangram.fleet.priority import REPLICAS_STAY

MAX_ENTRIES = 16
MAX_CHARACTERS = 8192  # of all annotations together, keys included; Kubernetes takes 256 KiB

# Keys that the operator and the controllers of Deployments write, with all subdomains of each domain.
OWN_DOMAINS = ("tangram.dev", "prometheus.io", "llm-d.ai", "app.kubernetes.io", "controller.kubernetes.io")
OWN_NAMES = ("pod-template-hash", "controller-revision-hash")
_DOMAINS, _NAMES = (
    "|".join(text.replace(".", "[.]") for text in texts) for texts in (OWN_DOMAINS, OWN_NAMES)
)
OWN_KEY = rf"^(([^/]*[.])?({_DOMAINS})/.*|{_NAMES})$"
_OWN = re.compile(OWN_KEY.removesuffix("$") + r"\Z")
_EVERY_KEY = "*"  # `example.com/*` in the setting: every key of this domain, and none of its subdomains
SETTING = "engine.podMetadataKeys"
NOT_LISTED = "MetadataKeyNotAllowed"
_MOST_LISTED = 8

OWN_HELP = "must have no key that Tangram itself writes to pods (docs/engine-pods.md lists them)"
KEYS_HELP = (
    "must have keys as Kubernetes has them: an optional DNS prefix and '/', then up to 63 letters, digits "
    "and - _ . between them"
)
VALUES_HELP = "must have values of up to 63 letters, digits and - _ . between them"
LENGTH_HELP = f"must have at most {MAX_CHARACTERS} characters together, keys included"


def is_own_key(key: str) -> bool:
    """Whether Tangram itself, or a controller of its Deployments, writes this key to pods."""
    return _OWN.match(key) is not None


def _unlisted_key(pairs: Mapping[str, str], listed: Collection[str]) -> str:
    """Return the first key that the setting does not list, by itself or with its domain; empty: all are."""
    return next((key for key in sorted(pairs) if not _is_listed(key, listed)), "")


def _is_listed(key: str, listed: Collection[str]) -> bool:
    domain, slash, _ = key.partition("/")
    return key in listed or (slash != "" and f"{domain}/{_EVERY_KEY}" in listed)


def metadata_refusal(metadata: "PodMetadataSpec", listed: Collection[str]) -> Refusal | None:
    """Return why keys of `spec.metadata` are refused, None where the setting lists all of them."""
    shown = ", ".join(sorted(listed)[:_MOST_LISTED]) + (", ..." if len(listed) > _MOST_LISTED else "")
    allowed = f"allows {shown} alone" if listed else "allows none"
    for field, pairs in (("labels", metadata.labels), ("annotations", metadata.annotations)):
        key = _unlisted_key(pairs, listed)
        if key:
            return Refusal(
                NOT_LISTED,
                f"spec.metadata.{field}: the key {key} is not allowed: the operator's setting {SETTING} "
                f"{allowed}; remove it, or let an administrator list it; {REPLICAS_STAY}",
                (("spec", "metadata", field, key),),
            )
    return None


def _pairs(pairs: dict[str, str]) -> dict[str, str]:
    if not all(map(is_label_key, pairs)):
        raise ValueError(KEYS_HELP)
    own = sorted(filter(is_own_key, pairs))
    if own:
        raise ValueError(f"{OWN_HELP} (not {own[0]})")
    return pairs


def _labels(labels: dict[str, str]) -> dict[str, str]:
    if not all(map(is_label_value, labels.values())):
        raise ValueError(VALUES_HELP)
    return labels


def _annotations(annotations: dict[str, str]) -> dict[str, str]:
    if sum(len(key) + len(value) for key, value in annotations.items()) > MAX_CHARACTERS:
        raise ValueError(LENGTH_HELP)
    return annotations


def _map(longest_value: int, *rules: dict[str, JsonValue]) -> dict[str, JsonValue]:
    keys = (
        f"self.all(key, key.size() <= {LONGEST_KEY} && key.indexOf('/') <= {LONGEST_NAME} && "
        f"key.matches(r'{LABEL_KEY}'))"
    )
    own = f"!self.exists(key, key.matches(r'{OWN_KEY}'))"
    return {
        **validations(rule(keys, KEYS_HELP), rule(own, OWN_HELP), *rules),
        "additionalProperties": {"type": "string", "maxLength": longest_value},
    }


class PodMetadataSpec(APIModel):
    """Labels and annotations of engine pods."""

    labels: Annotated[dict[StrictStr, StrictStr], AfterValidator(_pairs), AfterValidator(_labels)] = Field(
        default_factory=dict,
        max_length=MAX_ENTRIES,
        description="Labels that engine pods carry beside Tangram's own, for cost reports or dashboards, "
        "at most 16. Each key must be one that the operator's setting engine.podMetadataKeys lists. A "
        "change replaces the pods.",
        json_schema_extra=_map(
            LONGEST_LABEL, rule(f"self.all(key, self[key].matches(r'{LABEL_VALUE}'))", VALUES_HELP)
        ),
    )
    annotations: Annotated[
        dict[StrictStr, StrictStr], AfterValidator(_pairs), AfterValidator(_annotations)
    ] = Field(
        default_factory=dict,
        max_length=MAX_ENTRIES,
        description="Annotations that engine pods carry beside Tangram's own, at most 16, of 8192 "
        "characters together. Each key must be one that the operator's setting engine.podMetadataKeys "
        "lists. A change replaces the pods.",
        json_schema_extra=_map(
            MAX_CHARACTERS,
            rule(f"self.map(key, key.size() + self[key].size()).sum() <= {MAX_CHARACTERS}", LENGTH_HELP),
        ),
    )
