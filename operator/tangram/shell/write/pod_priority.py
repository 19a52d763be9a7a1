"""The PriorityClass of pod templates: a change of only the class replaces no pod. Pure.

A running pod keeps the priority with which it was admitted. So where a template differs from that of the live
Deployment in its class only, the live class stays, and the new one comes with the next rollout.
"""

import copy
from collections.abc import Callable

from tangram.kube.kinds import RENDERED_ANNOTATION, TEMPLATE_ANNOTATION, Object, annotations_of
from tangram.shell.objects.manifest_match import contains
from tangram.shell.objects.manifests import content_hash, with_hash_annotation
from tangram.shell.objects.owned_objects import priority_class_of
from tangram.shell.objects.waiting_pods import pod_creation_failure

FIELD = "priorityClassName"


def keep_live_class(live: Object, rendered: Object, is_usable: Callable[[str], bool]) -> Object:
    """Return the manifest to write: `rendered`, with the class of `live` where nothing else in the template
    changes.

    The class of `rendered` is written

    - where the live class is unusable (`is_usable` is False for its name: it no longer exists and new pods
      are rejected, or its pods would preempt others). Where `rendered` has no class, only after a pod was
      rejected: deleting and recreating a default class must not roll the whole fleet;
    - where the live class is not the one that the operator wrote last.
    """
    live_class = priority_class_of(live)
    if live_class == priority_class_of(rendered):
        return rendered
    if (
        live_class
        and not is_usable(live_class)
        and (priority_class_of(rendered) or pod_creation_failure(live))
    ):
        return rendered
    manifest = copy.deepcopy(rendered)
    template = manifest["spec"]["template"]
    template["spec"].pop(FIELD, None)
    if live_class:
        template["spec"][FIELD] = live_class
    written = annotations_of(live).get(TEMPLATE_ANNOTATION)
    if written != content_hash(template) or not contains(live["spec"].get("template") or {}, template):
        return rendered
    del manifest["metadata"]["annotations"][RENDERED_ANNOTATION]
    manifest["metadata"]["annotations"][TEMPLATE_ANNOTATION] = written
    return with_hash_annotation(manifest)
