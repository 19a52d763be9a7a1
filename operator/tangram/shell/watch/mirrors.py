"""All mirrors of the operator, and the view they give together."""

import asyncio
from collections.abc import Callable, Iterator

from tangram.shell.api_server.client import ApiClient
from tangram.shell.objects import kinds
from tangram.shell.objects.kinds import Kind, Object
from tangram.shell.watch import kept_fields
from tangram.shell.watch.mirror import Mirror, MirrorSource
from tangram.shell.watch.mirror_view import MirrorView
from tangram.shell.watch.store import Store


def sources(namespaces: tuple[str, ...]) -> tuple[MirrorSource, ...]:
    """Return what is copied. Nodes and pods are always those of the whole cluster: anyone's pod may hold a
    GPU. GPUPools may be missing: LLMDeployments are served without one. Without the right to see
    PriorityClasses, LLMDeployments that name one are refused.
    """
    where = namespaces or ("",)
    own = [
        MirrorSource(kind, kept, namespace, selector)
        for kind, kept, selector in (
            (kinds.LLM_DEPLOYMENTS, kept_fields.custom_resource, ""),
            (kinds.DEPLOYMENTS, kept_fields.owned_object, kinds.OURS_SELECTOR),
            (kinds.SERVICES, kept_fields.owned_object, kinds.OURS_SELECTOR),
            (kinds.JOBS, kept_fields.owned_object, kinds.OURS_SELECTOR),
        )
        for namespace in where
    ]
    # An older chart gives no right to see quotas: without it, pods that are refused tell as much, later.
    quotas = [
        MirrorSource(kinds.RESOURCE_QUOTAS, kept_fields.resource_quota, namespace, optional=True)
        for namespace in where
    ]
    return (
        *own,
        *quotas,
        MirrorSource(kinds.NODES, kept_fields.node),
        MirrorSource(kinds.PODS, kept_fields.pod),
        MirrorSource(kinds.GPU_POOLS, kept_fields.custom_resource, optional=True),
        MirrorSource(kinds.PRIORITY_CLASSES, kept_fields.priority_class, optional=True),
    )


class Mirrors:
    """The copies of every kind that decisions need."""

    def __init__(
        self,
        client: ApiClient,
        namespaces: tuple[str, ...],
        *,
        changed: Callable[[], None],
        clock: Callable[[], float],
        relist_s: float,
        drift: Callable[[str, int], None],
    ) -> None:
        self.all = tuple(
            Mirror(client, source, changed=changed, clock=clock, relist_s=relist_s, drift=drift)
            for source in sources(namespaces)
        )

    @property
    def synced(self) -> bool:
        """Whether every mirror has taken a whole LIST."""
        return all(mirror.synced for mirror in self.all)

    @property
    def age_s(self) -> float:
        """Age in seconds of the oldest mirror."""
        return max(mirror.age_s for mirror in self.all)

    def of(self, kind: Kind, namespace: str) -> Mirror:
        """Return the mirror that holds objects of `kind` in `namespace`."""
        return next(m for m in self.all if m.source.kind == kind and m.source.namespace in ("", namespace))

    def store(self, kind: Kind, namespace: str) -> Store:
        """Return what is known about `kind` in `namespace`."""
        return self.of(kind, namespace).store

    def view(self) -> MirrorView:
        """Return everything at this instant. The objects are shared: read them, never change them."""
        return MirrorView(
            llm_deployments=tuple(self._objects(kinds.LLM_DEPLOYMENTS)),
            nodes=tuple(self._objects(kinds.NODES)),
            pods=tuple(self._objects(kinds.PODS)),
            services=tuple(self._objects(kinds.SERVICES)),
            deployments=tuple(self._objects(kinds.DEPLOYMENTS)),
            jobs=tuple(self._objects(kinds.JOBS)),
            gpu_pools=tuple(self._objects(kinds.GPU_POOLS)),
            resource_quotas=tuple(self._objects(kinds.RESOURCE_QUOTAS)),
            priority_classes=tuple(self._objects(kinds.PRIORITY_CLASSES))
            if self.store(kinds.PRIORITY_CLASSES, "").listed
            else None,
        )

    @property
    def stalled_s(self) -> float:
        """Seconds since the mirror that has waited longest heard anything."""
        return max(mirror.stalled_s for mirror in self.all)

    async def refresh(self, since: float) -> None:
        """Make every copy one of a LIST that was begun after `since` (raises ApiError)."""
        tried = (mirror.refresh_if_there(since) for mirror in self.all)
        for failure in await asyncio.gather(*tried, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure

    async def run(self) -> None:
        """Keep all copies true until cancelled."""
        async with asyncio.TaskGroup() as group:
            for mirror in self.all:
                group.create_task(mirror.run(), name=f"mirror of {mirror.source}")

    def _objects(self, kind: Kind) -> Iterator[Object]:
        for mirror in self.all:
            if mirror.source.kind == kind:
                yield from mirror.store
