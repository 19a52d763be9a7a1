"""Options that say which cluster is read, and by whose rights. The reading itself: `reading`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Access:
    """Which cluster, by whose rights, and where its operator's settings are. None: the usual place."""

    kubeconfig: str | None = None
    context: str | None = None
    operator_namespace: str | None = None
    config: str | None = None  # a settings file, instead of the ConfigMap


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which cluster; they arrive as `kubeconfig`, `context` and so on."""
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
        help="Default: $KUBECONFIG, then ~/.kube/config; in a pod its own account.",
    ),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig.  [default: the current one]"),
)
_OPTIONS = (
    *_CLUSTER,
    click.option(
        "--operator-namespace",
        metavar="NAME",
        help="Where the operator's ConfigMap is, if there are more, or you may not look everywhere.",
    ),
    click.option(
        "--config", metavar="FILE", help="The operator's settings from a file, not from its ConfigMap."
    ),
)
