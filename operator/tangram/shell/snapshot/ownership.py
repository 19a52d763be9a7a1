"""Which objects belong to an LLMDeployment, and which pods to a Deployment or a Job. Pure."""

from collections.abc import Collection

from tangram.kube.kinds import (
    JOBS,
    LLM_DEPLOYMENTS,
    REPLICA_SETS,
    TEMPLATE_LABEL,
    Identity,
    Key,
    Object,
    controller_of,
    is_controlled_by,
    key_of,
    labels_of,
    owner_of,
    uid_of,
)
from tangram.shell.objects.owned_objects import has_rendered_name
from tangram.shell.snapshot.conversion import living
from tangram.shell.watch.mirror_view import MirrorView


def is_owned(obj: Object, owners: Collection[Identity]) -> bool:
    """Say whether an object belongs to an existing LLMDeployment, has the name that the operator gives it,
    and is not being deleted.

    Kubernetes assigns an object to whatever its controller reference names, so a user who may write
    Deployments in a namespace can assign one to an LLMDeployment there. Under another name than the
    operator's it is neither counted nor scaled nor deleted.
    """
    return owner_of(obj) in owners and bool(living([obj])) and has_rendered_name(obj)


def owner_uid(obj: Object) -> str:
    """Return the UID of the LLMDeployment that controls an object, the empty string where none does."""
    owner = owner_of(obj)
    return owner.uid if owner else ""


def llm_deployment_uid(obj: Object) -> str:
    """Return the UID of the LLMDeployment that an object is or belongs to, the empty string for any other
    object, however malformed.
    """
    try:
        return uid_of(obj) if obj.get("kind") == LLM_DEPLOYMENTS.kind else owner_uid(obj)
    except (AttributeError, TypeError):
        return ""


def owned_deployments(view: MirrorView) -> list[tuple[Object, list[Object]]]:
    """Return the Deployments of LLMDeployments with their pods, in the order of namespace and name.

    A pod belongs to a Deployment through the name of its ReplicaSet, `<deployment>-<template hash>`, within
    the namespace. Labels alone do not make it one.
    """
    pods: dict[Key, list[Object]] = {}
    for pod in view.pods:
        reference, template = controller_of(pod), labels_of(pod).get(TEMPLATE_LABEL, "")
        if reference is None or not is_controlled_by(pod, REPLICA_SETS) or not template:
            continue
        name = str(reference.get("name", "")).removesuffix(f"-{template}")
        pods.setdefault((key_of(pod)[0], name), []).append(pod)
    owners = view.owners()
    owned = sorted((obj for obj in view.deployments if is_owned(obj, owners)), key=key_of)
    return [(deployment, pods.get(key_of(deployment), [])) for deployment in owned]


def pods_by_job(view: MirrorView) -> dict[Identity, list[Object]]:
    """Return the pods of each Job."""
    pods: dict[Identity, list[Object]] = {}
    for pod in view.pods:
        reference = controller_of(pod)
        if reference is not None and is_controlled_by(pod, JOBS):
            job = Identity(key_of(pod)[0], str(reference.get("name")), str(reference.get("uid")))
            pods.setdefault(job, []).append(pod)
    return pods
