"""All mirrors of the operator, and one view over their objects."""

import asyncio
from collections.abc import Callable, Iterator

from tangram.kube import kinds
from tangram.kube.kinds import Kind, Object
from tangram.kube.mirror import Mirror, MirrorSource
from tangram.kube.store import Store
from tangram.shell.watch import kept_fields
from tangram.shell.watch.mirror_view import MirrorView

_OF_PARTITION = (
    MirrorSource(kinds.GPU_NODES, kept_fields.custom_resource, optional=True),
    MirrorSource(kinds.CLUSTER_QUEUES, kept_fields.cluster_queue, optional=True),
    MirrorSource(kinds.RESOURCE_FLAVORS, kept_fields.resource_flavor, optional=True),
)


def sources(
    namespaces: tuple[str, ...], *, partition: bool = False, model_claims: bool = False
) -> tuple[MirrorSource, ...]:
    """Return the sources of all mirrors. Nodes and pods are those of the whole cluster: a pod of any
    namespace may hold a GPU, and a node's allocatable does not say which are taken. GPUPools and
    EngineRuntimes are optional: LLMDeployments need none. Without the right to list PriorityClasses,
    LLMDeployments that name one are invalid. `partition`: with GPUNodes, which the operator may list only
    where it changes MIG layouts. `model_claims`: with claims of checkpoints, likewise.
    """
    watched = namespaces or ("",)
    namespaced = [
        MirrorSource(kind, keep, namespace, selector)
        for kind, keep, selector in (
            (kinds.LLM_DEPLOYMENTS, kept_fields.custom_resource, ""),
            (kinds.DEPLOYMENTS, kept_fields.owned_object, kinds.OURS_SELECTOR),
            (kinds.SERVICES, kept_fields.owned_object, kinds.OURS_SELECTOR),
            (kinds.JOBS, kept_fields.owned_object, kinds.OURS_SELECTOR),
        )
        for namespace in watched
    ]
    # An older chart grants no right to list quotas: then only rejected pods show their limits.
    quotas = [
        MirrorSource(kinds.RESOURCE_QUOTAS, kept_fields.resource_quota, namespace, optional=True)
        for namespace in watched
    ]
    claims = [
        MirrorSource(
            kinds.MODEL_CLAIMS, kept_fields.custom_resource, namespace, kinds.OURS_SELECTOR, optional=True
        )
        for namespace in watched
        if model_claims
    ]
    return (
        *namespaced,
        *quotas,
        *claims,
        MirrorSource(kinds.NODES, kept_fields.node),
        MirrorSource(kinds.PODS, kept_fields.pod),
        MirrorSource(kinds.GPU_POOLS, kept_fields.custom_resource, optional=True),
        MirrorSource(kinds.ENGINE_RUNTIMES, kept_fields.custom_resource, optional=True),
        *(_OF_PARTITION if partition else ()),
        MirrorSource(kinds.PRIORITY_CLASSES, kept_fields.priority_class, optional=True),
    )


class Mirrors:
    """The copies of every kind that decisions need."""

    def __init__(
        self,
        namespaces: tuple[str, ...],
        new_mirror: Callable[[MirrorSource], Mirror],
        *,
        partition: bool = False,
        model_claims: bool = False,
    ) -> None:
        watched = sources(namespaces, partition=partition, model_claims=model_claims)
        self.all = tuple(map(new_mirror, watched))

    @property
    def synced(self) -> bool:
        """Whether every mirror has completed a LIST."""
        return all(mirror.synced for mirror in self.all)

    @property
    def age_s(self) -> float:
        """Age in seconds of the oldest mirror."""
        return max(mirror.age_s for mirror in self.all)

    def of(self, kind: Kind, namespace: str) -> Mirror:
        """Return the mirror that holds objects of `kind` in `namespace`."""
        return next(m for m in self.all if m.source.kind == kind and m.source.namespace in ("", namespace))

    def store(self, kind: Kind, namespace: str) -> Store:
        """Return the copy of `kind` in `namespace`."""
        return self.of(kind, namespace).store

    def view(self) -> MirrorView:
        """Return all objects at this instant. They are shared: never change them."""
        return MirrorView(
            llm_deployments=tuple(self._objects(kinds.LLM_DEPLOYMENTS)),
            nodes=tuple(self._objects(kinds.NODES)),
            pods=tuple(self._objects(kinds.PODS)),
            services=tuple(self._objects(kinds.SERVICES)),
            deployments=tuple(self._objects(kinds.DEPLOYMENTS)),
            jobs=tuple(self._objects(kinds.JOBS)),
            model_claims=tuple(self._objects(kinds.MODEL_CLAIMS)),
            gpu_pools=tuple(self._objects(kinds.GPU_POOLS)),
            engine_runtimes=tuple(self._objects(kinds.ENGINE_RUNTIMES)),
            gpu_nodes=tuple(self._objects(kinds.GPU_NODES)),
            cluster_queues=tuple(self._objects(kinds.CLUSTER_QUEUES)),
            resource_flavors=tuple(self._objects(kinds.RESOURCE_FLAVORS)),
            resource_quotas=tuple(self._objects(kinds.RESOURCE_QUOTAS)),
            priority_classes=tuple(self._objects(kinds.PRIORITY_CLASSES))
            if self.store(kinds.PRIORITY_CLASSES, "").listed
            else None,
        )

    @property
    def stalled_s(self) -> float:
        """Seconds since the last response to the mirror that has waited longest."""
        return max(mirror.stalled_s for mirror in self.all)

    async def refresh(self, since: float) -> None:
        """Replace every copy whose last LIST began before `since` by a new LIST (raises ApiError)."""
        refreshes = (mirror.refresh_if_available(since) for mirror in self.all)
        for failure in await asyncio.gather(*refreshes, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure

    async def run(self) -> None:
        """Keep all copies current until cancelled."""
        async with asyncio.TaskGroup() as group:
            for mirror in self.all:
                group.create_task(mirror.run(), name=f"mirror of {mirror.source}")

    def _objects(self, kind: Kind) -> Iterator[Object]:
        for mirror in self.all:
            if mirror.source.kind == kind:
                yield from mirror.store
