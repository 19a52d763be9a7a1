"""The models and ready replicas of the cluster, kept current in the router by watches."""

import asyncio
import time
from collections.abc import Iterator

from tangram.gateway import published_models, ready_replicas
from tangram.gateway.router import RequestRouter
from tangram.kube.client import ApiClient
from tangram.kube.kinds import ENDPOINT_SLICES, LLM_DEPLOYMENTS, OURS_SELECTOR, Kind, Object
from tangram.kube.mirror import Mirror, MirrorSource

SETTLE_S = 0.05  # events that come together are one update
RELIST_S = 300.0


class ClusterView:
    """Mirrors of LLMDeployments and of the EndpointSlices of their Services."""

    def __init__(self, client: ApiClient, namespaces: tuple[str, ...], router: RequestRouter) -> None:
        self._router, self._changed = router, asyncio.Event()
        self._mirrors = [
            Mirror(client, source, changed=self._changed.set, clock=time.monotonic, relist_s=RELIST_S)
            for namespace in namespaces or ("",)
            for source in (
                MirrorSource(LLM_DEPLOYMENTS, published_models.kept_fields, namespace),
                # Kubernetes gives an EndpointSlice the labels of its Service.
                MirrorSource(ENDPOINT_SLICES, ready_replicas.kept_fields, namespace, OURS_SELECTOR),
            )
        ]

    async def run(self) -> None:
        """Keep the router current until cancelled. It knows nothing until every LIST is complete."""
        async with asyncio.TaskGroup() as group:
            for mirror in self._mirrors:
                group.create_task(mirror.run(), name=f"mirror of {mirror.source}")
            for mirror in self._mirrors:
                await mirror.wait_synced()
            while True:
                self._changed.clear()
                self._router.update(
                    published_models.published_models(self._objects(LLM_DEPLOYMENTS)),
                    ready_replicas.ready_replicas(self._objects(ENDPOINT_SLICES)),
                )
                await self._changed.wait()
                await asyncio.sleep(SETTLE_S)

    def _objects(self, kind: Kind) -> Iterator[Object]:
        for mirror in self._mirrors:
            if mirror.source.kind == kind:
                yield from mirror.store
