"""The kopf of the webhook, as its supervisor starts it."""

import asyncio
from collections.abc import Callable

from tangram.kube.credentials import Credentials
from tangram.kube.kinds import Kind
from tangram.shell.admission.certificate import WebhookCertificate
from tangram.shell.admission.reviewed_cluster import ReviewedCluster
from tangram.shell.intake.supervision import KopfRun


def admission_of(
    credentials: Credentials,
    cluster: ReviewedCluster,
    certificate: WebhookCertificate,
    address: tuple[str, int],
    count: Callable[[str], None],
) -> KopfRun:
    """Return what runs the kopf of the webhook on (host, port). `count` counts reviews by their outcome."""

    async def run(kinds: frozenset[Kind], operator_loop: asyncio.AbstractEventLoop) -> None:
        # kopf loads slowly.
        from tangram.shell.admission.handlers import run_kopf  # noqa: PLC0415
        from tangram.shell.admission.review_server import ReviewServer  # noqa: PLC0415
        from tangram.shell.admission.reviewer import Reviewer  # noqa: PLC0415

        reviewer = Reviewer(cluster, operator_loop, count)
        await run_kopf(credentials, kinds, reviewer, ReviewServer(*address, certificate, count))

    return run
