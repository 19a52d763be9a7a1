"""`tangram scale`: set spec.replicas of one LLMDeployment, or remove it so that Tangram scales."""

import re

import click

from tangram.api.common.labels import DNS_SUBDOMAIN
from tangram.api.common.values import MAX_REPLICAS
from tangram.catalog import InputError
from tangram.cli.cluster.access import ClusterAccess, cluster_options

# With the kind before it, as kubectl prints names.
_NAME = re.compile(rf"((llmdep|llmdeployments?)([.]tangram[.]dev)?/)?(?P<name>{DNS_SUBDOMAIN})")
_NAMESPACE = re.compile(DNS_SUBDOMAIN)


@click.command(name="scale")
@click.argument("name")
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Namespace of the LLMDeployment.  [default: that of the kubeconfig's context]",
)
@click.option("--auto", is_flag=True, help="Remove spec.replicas: Tangram scales by the load.")
@click.option(
    "--replicas",
    type=click.IntRange(0, MAX_REPLICAS),
    metavar="N",
    help=f"Set spec.replicas, 0 to {MAX_REPLICAS}, as `kubectl scale` does; 0 stops all replicas.",
)
@cluster_options
def scale(name: str, namespace: str | None, auto: bool, replicas: int | None, **access: str | None) -> None:
    """Set how many replicas one LLMDeployment has, or let Tangram scale it.

    While spec.replicas is set, by this command, `kubectl scale`, an autoscaler or a manifest, Tangram runs
    exactly that many replicas. Writes with the rights of your kubeconfig.

    \b
    tangram scale chat --replicas 3
    tangram scale chat --auto
    """
    if auto == (replicas is not None):
        raise InputError("scale", "give either --auto or --replicas N")
    named = _NAME.fullmatch(name)
    if not named:
        raise InputError("scale", f"{name!r} is not the name of an LLMDeployment")
    if namespace is not None and not _NAMESPACE.fullmatch(namespace):
        raise InputError("scale", f"{namespace!r} is not the name of a namespace")
    from tangram.cli.scale.replicas import scale_deployment  # noqa: PLC0415 - `--help` needs no client

    click.echo(scale_deployment(ClusterAccess(**access), named["name"], namespace, replicas))
