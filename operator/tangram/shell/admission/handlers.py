"""What kopf does for admission: it takes a review apart, calls the handler, and makes the response.

This kopf watches nothing. Beside the discovery of our kinds at its start it calls no API, so it stays up
through outages and through faults of the intake's watches.
"""

from collections.abc import Collection, Iterator
from typing import Any, Literal, cast

import kopf

from tangram.admission import Review
from tangram.admission.review import Plural
from tangram.kube.credentials import Credentials
from tangram.kube.kinds import Kind
from tangram.shell.admission.review_server import ReviewServer
from tangram.shell.admission.reviewer import Reviewer
from tangram.shell.intake.handlers import LogIn, kopf_settings, logins
from tangram.shell.intake.session import WatchBacklog

UNPROCESSABLE = 422


class NoMemories:
    """Remembers no reviewed object: kopf would keep an entry for each, and forgets none without a watch."""

    async def recall_memo(self, *_: Any, **__: Any) -> kopf.Memo:
        """Return an empty memo."""
        return kopf.Memo()

    def iter_all_daemon_memories(self) -> Iterator[Any]:
        """Return no daemon: there is none."""
        return iter(())


def registry(log_in: LogIn, kinds: Collection[Kind], reviewer: Reviewer) -> kopf.OperatorRegistry:
    """Return the handler of reviews of these kinds."""
    handlers = kopf.OperatorRegistry()

    async def reviewed(
        *, body: kopf.Body, resource: kopf.Resource, dryrun: bool, warnings: list[str], **more: Any
    ) -> None:
        meta, old = body.metadata, more["old"]
        answer = await reviewer.answer(
            Review(
                operation=cast("Literal['CREATE', 'UPDATE']", more["operation"]),
                plural=cast("Plural", resource.plural),
                namespace=meta.get("namespace") or "",
                name=meta.get("name") or "",
                body=dict(body),
                old=None if old is None else dict(old),
                username=str(more["userinfo"].get("username", "")),
                dry_run=dryrun,
            )
        )
        warnings.extend(answer.warnings)
        if answer.refused is not None:
            message = f"{answer.refused.field_path}: {answer.refused.message}"
            raise kopf.AdmissionError(message, code=UNPROCESSABLE)

    kopf.on.login(registry=handlers)(log_in)
    for kind in kinds:
        kopf.on.validate(kind.group, kind.version, kind.plural, registry=handlers)(reviewed)
    return handlers


async def run_kopf(
    credentials: Credentials, kinds: Collection[Kind], reviewer: Reviewer, server: ReviewServer
) -> None:
    """Run kopf until it fails or is cancelled. The chart writes the webhook's configuration."""
    settings = kopf_settings()
    settings.admission.server = server
    settings.admission.managed = None
    async with logins(credentials, WatchBacklog()) as log_in:
        await kopf.operator(
            registry=registry(log_in, kinds, reviewer),
            settings=settings,
            memories=cast("Any", NoMemories()),
            standalone=True,
            clusterwide=True,
        )
