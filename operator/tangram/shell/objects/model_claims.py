"""Manifests of claims that hold a checkpoint and of the Jobs that fill them; both read back. Pure.

A claim has no owner: it serves every LLMDeployment of its namespace. The operator knows its own by label,
name and annotation, which agree in no other claim by accident.
"""

import hashlib
import json
from dataclasses import replace

from tangram.api import model_source
from tangram.fleet import ModelClaimKey, PinnedRevision
from tangram.fleet.labels import COMPONENT_LABEL, MANAGED_BY, MANAGED_BY_LABEL
from tangram.fleet.quantity import memory_quantity
from tangram.kube import kinds
from tangram.kube.kinds import Object, annotations_of, key_of
from tangram.shell.objects.fetch_container import disk_bytes

COMPONENT = "model"
PREFIX = "tangram-model-"
FILLED = "true"
_LONGEST = 1024  # characters of the annotation with the key


def claim_name(key: ModelClaimKey | None) -> str:
    """Return the name of a claim, and of the Job that fills it; None: the empty string."""
    if key is None:
        return ""
    digest = hashlib.sha256(f"{key.namespace}\n{key_annotation(key)}".encode()).hexdigest()
    return f"{PREFIX}{digest[:16]}"


def key_annotation(key: ModelClaimKey) -> str:
    """Return a key as the annotation of its claim and its Job."""
    fields = {"uri": key.model_uri, "revision": key.pin.revision, "size": key.pin.size}
    return json.dumps(fields | {"storageClass": key.storage_class}, sort_keys=True)


def claim_key(obj: Object) -> ModelClaimKey | None:
    """Return the key in the annotation of a claim, or of the pods of a Job; None: it has none."""
    text = annotations_of(obj).get(kinds.MODEL_CLAIM_ANNOTATION, "")
    try:
        fields = json.loads(text) if len(text) <= _LONGEST else {}
        pin = PinnedRevision(str(fields["revision"]), int(fields["size"]))
        key = ModelClaimKey("", str(fields["uri"]), pin, str(fields["storageClass"]))
        model_source(key.model_uri)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return key


def key_of_claim(claim: Object) -> ModelClaimKey | None:
    """Return the key of a claim; None: its name is not the one of its key."""
    namespace, name = key_of(claim)
    key = claim_key(claim)
    key = None if key is None else replace(key, namespace=namespace)
    return key if claim_name(key) == name else None


def model_claim(key: ModelClaimKey, *, is_filled: bool, unused_since: float | None) -> Object:
    """Return the claim of a checkpoint, with what is recorded about it."""
    records = {
        kinds.FILLED_ANNOTATION: FILLED if is_filled else None,
        kinds.UNUSED_ANNOTATION: None if unused_since is None else str(int(unused_since)),
    }
    return {
        "apiVersion": kinds.MODEL_CLAIMS.api_version,
        "kind": kinds.MODEL_CLAIMS.kind,
        "metadata": {
            "name": claim_name(key),
            "namespace": key.namespace,
            "labels": {MANAGED_BY_LABEL: MANAGED_BY, COMPONENT_LABEL: COMPONENT},
            "annotations": {kinds.MODEL_CLAIM_ANNOTATION: key_annotation(key), **records},
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": key.storage_class,
            "resources": {"requests": {"storage": memory_quantity(disk_bytes(key.pin))}},
        },
    }


def mounted_claim(deployment: Object) -> str:
    """Return the name of the operator's claim that the pods of a Deployment mount; empty: none."""
    pod = (deployment["spec"].get("template") or {}).get("spec") or {}
    claims = (volume.get("persistentVolumeClaim") or {} for volume in pod.get("volumes") or ())
    names = (str(claim.get("claimName", "")) for claim in claims)
    return next((name for name in names if name.startswith(PREFIX)), "")
