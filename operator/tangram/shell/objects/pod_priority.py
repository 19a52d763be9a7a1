"""The PriorityClass of pod templates: a change of it alone replaces no pod. Pure.

Pods that run keep the priority that they were admitted with. So where a template differs from that of the
live Deployment in its class alone, the live one stays, and the class comes with the next rollout.
"""

import copy
from collections.abc import Callable

from tangram.shell.objects.kinds import RENDERED_ANNOTATION, TEMPLATE_ANNOTATION, Object
from tangram.shell.objects.manifest_diff import covers
from tangram.shell.objects.manifests import content_hash, sealed
from tangram.shell.objects.owned_objects import class_of
from tangram.shell.objects.waiting_pods import refusal

FIELD = "priorityClassName"


def keep_class(live: Object, rendered: Object, makes_pods: Callable[[str], bool]) -> Object:
    """Return what to write of a Deployment: `rendered`, with the class of `live` where nothing else of the
    template changes.

    The live class goes where no pods are made of it as they should be (`makes_pods` is False for its name):
    it does not exist any more and new pods are refused, or its pods would preempt others. Where there is none
    to take its place, it goes once a pod is refused: a default class that is deleted to be made anew must not
    roll the whole fleet. It goes, too, where it is not the one that was written last.
    """
    template = live["spec"].get("template") or {}
    kept = class_of(live)
    if kept == class_of(rendered):
        return rendered
    if kept and not makes_pods(kept) and (class_of(rendered) or refusal(live)):
        return rendered
    found = copy.deepcopy(rendered)
    pod = found["spec"]["template"]["spec"]
    pod.pop(FIELD, None)
    if kept:
        pod[FIELD] = kept
    written = (live["metadata"].get("annotations") or {}).get(TEMPLATE_ANNOTATION)
    if written != content_hash(found["spec"]["template"]) or not covers(template, found["spec"]["template"]):
        return rendered
    del found["metadata"]["annotations"][RENDERED_ANNOTATION]
    found["metadata"]["annotations"][TEMPLATE_ANNOTATION] = written
    return sealed(found)
