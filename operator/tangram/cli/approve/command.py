"""`tangram approve`: consent to a FleetPlan of changes, or reject it."""

import re

import click

from tangram.api.common.labels import DNS_SUBDOMAIN
from tangram.catalog import InputError
from tangram.cli.cluster.access import ClusterAccess, cluster_options

# With the kind before it, as kubectl prints names.
_NAME = re.compile(rf"((fplan|fleetplans?)([.]tangram[.]dev)?/)?(?P<name>{DNS_SUBDOMAIN})")


@click.command(name="approve")
@click.argument("name")
@click.option("--reject", is_flag=True, help="Reject the plan: its changes are not proposed again.")
@cluster_options
def approve(name: str, reject: bool, **access: str | None) -> None:
    """Consent to the changes of one FleetPlan, where its GPUPool's migPolicy is Recommend.

    The consent covers the GPUs, layouts and LLMDeployments that are shown, and no others: where one of them
    changes before it is carried out, the plan ends and another one is proposed. Writes spec.approved with the
    rights of your kubeconfig.

    \b
    kubectl get fleetplans
    tangram approve 60336f49ed9c
    tangram approve 60336f49ed9c --reject
    """
    named = _NAME.fullmatch(name)
    if not named:
        raise InputError("approve", f"{name!r} is not the name of a FleetPlan")
    from tangram.cli.approve.consent import give_consent  # noqa: PLC0415 - `--help` needs no client

    click.echo(give_consent(ClusterAccess(**access), named["name"], approved=not reject))
