"""`external.metrics.k8s.io` with one metric, for the real HorizontalPodAutoscaler controller."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from tangram.kube.client import UNGUARDED, ApiClient, ApiError
from tangram.kube.kinds import SERVICES, Kind

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
METRIC = "requests_running"
API_SERVICES = Kind("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)


@dataclass
class ExternalMetrics:
    """What `METRIC` is, all pods together."""

    value: int = 0

    async def _resources(self, _request: web.Request) -> web.Response:
        listed = {"name": METRIC, "singularName": "", "namespaced": True}
        listed |= {"kind": "ExternalMetricValueList", "verbs": ["get"]}
        document = {"kind": "APIResourceList", "apiVersion": "v1", "resources": [listed]}
        return web.json_response(document | {"groupVersion": f"{GROUP}/{VERSION}"})

    async def _values(self, _request: web.Request) -> web.Response:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        item = {"metricName": METRIC, "metricLabels": {}, "timestamp": now, "value": str(self.value)}
        document = {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}"}
        return web.json_response(document | {"metadata": {}, "items": [item]})

    @contextlib.asynccontextmanager
    async def serving(self, client: ApiClient, namespace: str, cert: Path, key: Path) -> AsyncIterator[None]:
        """Serve on loopback, behind the API server's aggregation layer, while the block runs."""
        app = web.Application()
        app.router.add_get(f"/apis/{GROUP}/{VERSION}", self._resources)
        app.router.add_get(f"/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{METRIC}", self._values)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(cert, key)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        try:
            for kind, obj in _aggregated(namespace, port):
                await client.apply(kind, obj, manager="tests", force=True, guard=UNGUARDED)
            yield
        finally:
            with contextlib.suppress(ApiError):
                name = f"{VERSION}.{GROUP}"
                found = await client.get(API_SERVICES, "", name)
                if found is not None:
                    await client.delete(API_SERVICES, "", name, uid=found["metadata"]["uid"], guard=UNGUARDED)
            await runner.cleanup()


def _aggregated(namespace: str, port: int) -> list[tuple[Kind, dict[str, Any]]]:
    """The Service names localhost; the API server asks it there."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "metrics", "namespace": namespace},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }
    api_service = {
        "apiVersion": API_SERVICES.api_version,
        "kind": API_SERVICES.kind,
        "metadata": {"name": f"{VERSION}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": "metrics", "namespace": namespace, "port": port},
        },
    }
    return [(SERVICES, service), (API_SERVICES, api_service)]
