"""The operator's webhook with a certificate of an authority of the test, and the API server's side of it."""

import asyncio
import io
import json
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from e2e.cluster.apiserver import free_port
from e2e.cluster.certificates import Authority
from tangram.admission import ObjectKey, Review, ReviewedObjects
from tangram.kube.client import ApiClient
from tangram.kube.kinds import GPU_POOLS, LLM_DEPLOYMENTS, Kind
from tangram.kube.mirror import MirrorSource
from tangram.shell.admission.certificate import WebhookCertificate
from tangram.shell.admission.webhook import admission_of
from tangram.shell.intake.mirror import IntakeMirror
from tangram.shell.intake.supervision import KopfSupervisor
from tangram.shell.watch import kept_fields
from tests.support.kopf_api import KopfApi, supervised
from tests.support.plain_credentials import PlainCredentials

URL_PATH = "0123456789abcdef"


def issue(folder: Path, authority: Path, name: str = "webhook") -> Path:
    """Write the certificate `name` of this authority into a folder like a mounted Secret; return it."""
    issuer = Authority(authority)
    issuer.ensure()
    issuer.ensure_pair(name, user=name, addresses=["127.0.0.1"], dns=["localhost"])
    folder.mkdir(exist_ok=True)
    for source, target in ((issuer.key(name), "tls.key"), (issuer.cert(name), "tls.crt")):
        (folder / f".{target}").write_bytes(source.read_bytes())
        (folder / f".{target}").rename(folder / target)
    (folder / "path").write_text(URL_PATH)
    return folder


def review(body: dict[str, Any], kind: Kind = LLM_DEPLOYMENTS, **request: Any) -> dict[str, Any]:
    """Return an AdmissionReview, as the API server sends it."""
    meta = body.get("metadata", {})
    names = {"group": kind.group, "version": kind.version}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": secrets.token_hex(8),
            "kind": names | {"kind": kind.kind},
            "resource": names | {"resource": kind.plural},
            "operation": "CREATE",
            "userInfo": {"username": "ada", "groups": []},
            "namespace": meta.get("namespace"),
            "name": meta.get("name"),
            "object": body,
            "oldObject": None,
            "dryRun": False,
        }
        | request,
    }


@dataclass
class AnsweringCluster:
    """What the operator knows, for tests: placements take as long, and say what, a test wants."""

    placement: Callable[[Review], Awaitable[tuple[str, ...]]]

    async def objects(self, _review: Review) -> ReviewedObjects:
        """Return no objects."""
        return ReviewedObjects()

    async def current(self, objects: ReviewedObjects, _keys: tuple[ObjectKey, ...]) -> ReviewedObjects:
        """Return the same."""
        return objects

    async def placement_warnings(self, review: Review) -> tuple[str, ...]:
        """Return what the test says."""
        return await self.placement(review)


async def no_placement(_review: Review) -> tuple[str, ...]:
    """Say nothing."""
    return ()


@dataclass
class Webhook:
    """A webhook that runs, and a session that trusts its authority."""

    port: int
    session: aiohttp.ClientSession
    certificate: WebhookCertificate
    supervisor: KopfSupervisor
    outcomes: list[str] = field(default_factory=list)
    expiries: list[float] = field(default_factory=list)
    restarts: int = 0

    @property
    def url(self) -> str:
        """Where the API server sends reviews."""
        return f"https://127.0.0.1:{self.port}/{URL_PATH}"

    async def up(self) -> "Webhook":
        """Wait until the port is open."""
        async with asyncio.timeout(30.0):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    return self

    async def post(self, body: Any, url: str = "") -> tuple[int, dict[str, Any]]:
        """Send a review, or bytes; return the status and the response in it."""
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self.session.post(url or self.url, data=data) as response:
            if response.status != 200:
                return response.status, {}
            return 200, (await response.json())["response"]


@asynccontextmanager
async def webhook(
    api: KopfApi,
    folder: Path,
    authority: Path,
    placement: Callable[[Review], Awaitable[tuple[str, ...]]] = no_placement,
    *,
    now: Callable[[], float] = lambda: 0.0,
) -> AsyncIterator[Webhook]:
    """Run a webhook with the certificate in `folder` beside mirrors of this API server."""
    port, clock = free_port(), asyncio.get_running_loop().time
    outcomes: list[str] = []
    expiries: list[float] = []
    certificate = WebhookCertificate(folder, now, expiries.append)
    Authority(authority).ensure()
    trusting = ssl.create_default_context(cafile=str(Authority(authority).certificate))
    async with (
        api.serving(),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting, limit=20)) as session,
    ):
        credentials = PlainCredentials(api.url)
        client = ApiClient(credentials, timeout_s=2.0)
        mirrors = [
            IntakeMirror(
                client,
                MirrorSource(kind, kept_fields.custom_resource, optional=kind is GPU_POOLS),
                changed=lambda: None,
                clock=clock,
                relist_s=0.1,
            )
            for kind in (LLM_DEPLOYMENTS, GPU_POOLS)
        ]
        cluster: Any = AnsweringCluster(placement)
        run = admission_of(credentials, cluster, certificate, ("127.0.0.1", port), outcomes.append)
        supervisor = KopfSupervisor(
            run, mirrors, check_s=0.05, clock=clock, restarted=lambda: None, name="kopf of admission"
        )
        async with supervised(api, supervisor, mirrors, client):
            yield Webhook(port, session, certificate, supervisor, outcomes, expiries)
        assert not any(request.startswith("watch ") for request in api.requests), "no watch can fail"
