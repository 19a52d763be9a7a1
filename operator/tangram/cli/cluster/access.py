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


_KUBECONFIG = click.option(
    "--kubeconfig",
    metavar="FILE",
    help="File with credentials.  [default: $KUBECONFIG, then ~/.kube/config; in a pod, its service account]",
)
_CONTEXT = click.option(
    "--context", metavar="NAME", help="Context of the kubeconfig.  [default: the current one]"
)
_OPERATOR_NAMESPACE = click.option(
    "--operator-namespace",
    metavar="NAME",
    help="Namespace of the operator's ConfigMap; needed if there are several or you may not list all"
    " namespaces.",
)
_CONFIG = click.option(
    "--config", metavar="FILE", help="Read the operator's settings from this file instead of its ConfigMap."
)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `kubeconfig` and `context`, for a command that needs none of the operator's settings."""
    return _KUBECONFIG(_CONTEXT(command))


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that fill a `ClusterAccess`; each arrives under the name of its field."""
    return cluster_options(_OPERATOR_NAMESPACE(_CONFIG(command)))
