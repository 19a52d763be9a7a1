"""What the operator knows about a review: mirrored objects, their newest state, and placements.

Its methods run in the operator's event loop, which the mirrors belong to.
"""

from dataclasses import dataclass

from tangram.admission import ObjectKey, Review, ReviewedObjects
from tangram.kube.client import ApiClient
from tangram.kube.kinds import (
    ENGINE_RUNTIMES,
    GPU_POOLS,
    LLM_DEPLOYMENTS,
    NODES,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    Kind,
    Object,
)
from tangram.kube.mirror import Mirror
from tangram.shell.admission.placements import Placements
from tangram.shell.settings import Settings
from tangram.shell.watch.mirrors import Mirrors

KINDS = {
    kind.plural: kind
    for kind in (LLM_DEPLOYMENTS, PRIORITY_CLASSES, RESOURCE_QUOTAS, GPU_POOLS, ENGINE_RUNTIMES)
}


@dataclass(frozen=True, slots=True)
class ReviewedCluster:
    """Answers questions about reviews."""

    mirrors: Mirrors
    settings: Settings
    client: ApiClient
    placements: Placements | None  # None: nothing is said about placements

    async def objects(self, review: Review) -> ReviewedObjects:
        """Return the objects that decide about a review; of namespaces, those of its own alone."""
        settings, namespace = self.settings, review.namespace
        return ReviewedObjects(
            llm_deployments=self._of(LLM_DEPLOYMENTS, namespace),
            priority_classes=self._of(PRIORITY_CLASSES),
            resource_quotas=self._of(RESOURCE_QUOTAS, namespace),
            gpu_pools=self._of(GPU_POOLS),
            engine_runtimes=self._of(ENGINE_RUNTIMES),
            nodes=self._of(NODES),
            default_priority_class=settings.default_priority_class_name,
            pod_metadata_keys=settings.engine.pod_metadata_keys,
            pod_needs=settings.pod_needs,
        )

    async def current(self, objects: ReviewedObjects, keys: tuple[ObjectKey, ...]) -> ReviewedObjects:
        """Return the objects with these as the API server has them now. Raises ApiError."""
        for key in keys:
            mirror = self._mirror(KINDS[key.plural], key.namespace)
            if mirror is None:
                continue
            listing = await self.client.list(
                KINDS[key.plural],
                key.namespace,
                reduce=mirror.source.keep,
                field_selector=f"metadata.name={key.name}",
            )
            objects = objects.with_object(key, next(iter(listing.items), None))
        return objects

    async def placement_warnings(self, review: Review) -> tuple[str, ...]:
        """Return what one placement says about a review. Raises WorkerFailed."""
        if self.placements is None or review.plural != LLM_DEPLOYMENTS.plural:
            return ()
        return await self.placements.warnings(review)

    def _of(self, kind: Kind, namespace: str = "") -> tuple[Object, ...] | None:
        mirror = self._mirror(kind, namespace)
        if mirror is None or not mirror.synced or mirror.unavailable:
            return None
        objects = tuple(mirror.store)
        return (
            tuple(obj for obj in objects if obj["metadata"].get("namespace") == namespace)
            if namespace
            else objects
        )

    def _mirror(self, kind: Kind, namespace: str) -> Mirror | None:
        return next(
            (
                mirror
                for mirror in self.mirrors.all
                if mirror.source.kind == kind and mirror.source.namespace in ("", namespace)
            ),
            None,
        )
