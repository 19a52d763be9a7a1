"""Options that choose a cluster, its credentials and the operator's settings; `reading` uses them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """The kubeconfig and context of a cluster, and the source of the operator's settings. None: default."""

    kubeconfig: str | None = None
    context: str | None = None
    operator_namespace: str | None = None
    config: str | None = None  # a settings file, instead of the ConfigMap


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that fill a `ClusterAccess`; each arrives under the name of its field."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `kubeconfig` and `context`, for a command that needs none of the operator's settings."""
    for option in reversed(_CLUSTER):
        command = option(command)
    return command


_CLUSTER = (
    click.option(
        "--kubeconfig",
        metavar="FILE",
        help="File with credentials.  [default: $KUBECONFIG, then ~/.kube/config; in a pod, its"
        " service account]",
    ),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig.  [default: the current one]"),
)
_OPTIONS = (
    *_CLUSTER,
    click.option(
        "--operator-namespace",
        metavar="NAME",
        help="Namespace of the operator's ConfigMap; needed if there are several or you may not list"
        " all namespaces.",
    ),
    click.option(
        "--config",
        metavar="FILE",
        help="Read the operator's settings from this file instead of its ConfigMap.",
    ),
)
