"""The command line of the picker; the picker serves its ports until SIGTERM."""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator
from functools import partial

import grpc
from aiohttp import web
from envoy.service.accesslog.v3.als_pb2_grpc import add_AccessLogServiceServicer_to_server
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import add_ExternalProcessorServicer_to_server
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tangram.gateway.body_limits import BodyLimits
from tangram.gateway.cluster_view import ClusterView
from tangram.gateway.envoy_drain import EnvoyAdmin, drain, end_earlier_drain
from tangram.gateway.ext_proc import AccessLog, Picker
from tangram.gateway.grpc_health import health_service
from tangram.gateway.metrics import GatewayMetrics
from tangram.gateway.router import RequestRouter
from tangram.kube.client import ApiClient
from tangram.kube.credentials import SERVICE_ACCOUNT, AuthError, Credentials
from tangram.kube.kubeconfig import find_credentials
from tangram_http.log_limit import LimitedLogHandler
from tangram_http.pages import CachedPage, serve_pages
from tangram_http.sockets import listening_socket

EXIT_USAGE = 2
MAX_MESSAGE_BYTES = 1 << 20  # Envoy sends bodies in pieces of its read buffer
MAX_STREAMS = 8192  # requests whose bodies arrive (with --ends-by=stream: that run), at some 15 KiB each
STOP_S = 5.0  # for decisions that are under way
OVERDUE_PERIOD_S = 10.0


def main(argv: list[str] | None = None) -> int:
    """Run the picker until SIGTERM; return the exit code."""
    arguments = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(
        level=logging.INFO,
        handlers=[LimitedLogHandler()],
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        force=True,
    )
    try:
        credentials = find_credentials(arguments.kubeconfig)
        asyncio.run(_run(credentials, arguments))
    except ModuleNotFoundError as error:
        text = f"no pod by {SERVICE_ACCOUNT}, and no {error.name} to read a kubeconfig"
        print(f"tangram-gateway: {text}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    except (AuthError, OSError, ValueError) as error:
        print(f"tangram-gateway: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    return 0


async def _run(credentials: Credentials, arguments: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    router, metrics = RequestRouter(time.monotonic), GatewayMetrics()
    limits = BodyLimits(arguments.max_body_bytes, arguments.max_body_bytes_in_flight)
    picker = Picker(router, metrics, limits, stays_until_end=arguments.ends_by == "stream")
    _show_state(metrics, router, picker)
    client = ApiClient(credentials, user_agent="tangram-gateway")
    view = ClusterView(client, tuple(arguments.namespace), router)
    envoy = EnvoyAdmin(arguments.envoy_admin) if arguments.envoy_admin else None
    if envoy is not None:
        await end_earlier_drain(envoy)
    try:
        async with (
            _pages(arguments.pages_port, router, metrics),
            _grpc(arguments.listen, picker, router, arguments.max_streams),
            _following(view, router) as following,
        ):
            stopping = asyncio.create_task(stopped.wait())
            await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if following.done():
                following.result()  # raises what ended it
            if envoy is not None:
                await drain(envoy, arguments.drain_s)
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def _following(
    view: ClusterView, router: RequestRouter
) -> AsyncIterator[asyncio.Future[tuple[None, None]]]:
    """Keep the router current within a block."""
    following = asyncio.gather(view.run(), _end_overdue(router))
    try:
        yield following
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _show_state(metrics: GatewayMetrics, router: RequestRouter, picker: Picker) -> None:
    metrics.show("tangram_gateway_running_requests", "Requests that run.", lambda: router.running)
    metrics.show("tangram_gateway_ready_replicas", "Replicas that take requests.", lambda: router.replicas)
    metrics.show(
        "tangram_gateway_body_bytes", "Bytes of bodies that are read.", lambda: picker.bodies.in_flight
    )


@contextlib.asynccontextmanager
async def _grpc(address: str, picker: Picker, router: RequestRouter, max_streams: int) -> AsyncIterator[None]:
    """Serve external processing, the access log and gRPC's health service. Raises OSError."""
    options = (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),
    )
    # Beyond that, Envoy is refused and answers 503.
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=max_streams)
    add_ExternalProcessorServicer_to_server(picker, server)
    add_AccessLogServiceServicer_to_server(AccessLog(router), server)
    server.add_generic_rpc_handlers((health_service(lambda: router.is_synced),))
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"{address} cannot be listened on: {error}") from error
    await server.start()
    try:
        yield
    finally:
        await server.stop(STOP_S)


@contextlib.asynccontextmanager
async def _pages(port: int, router: RequestRouter, metrics: GatewayMetrics) -> AsyncIterator[None]:
    """Serve probes and metrics."""
    page = CachedPage(lambda: partial(generate_latest, metrics.registry))

    async def show(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=await page.read(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def is_alive(_request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def is_ready(_request: web.Request) -> web.StreamResponse:
        return (
            web.Response(text="ok\n") if router.is_synced else web.Response(status=503, text="not synced\n")
        )

    app = web.Application()
    app.router.add_get("/metrics", show)
    app.router.add_get("/livez", is_alive)
    app.router.add_get("/readyz", is_ready)
    serving = await serve_pages(app, listening_socket("", port))
    try:
        yield
    finally:
        await serving.close()


async def _end_overdue(router: RequestRouter) -> None:
    while True:
        await asyncio.sleep(OVERDUE_PERIOD_S)
        router.end_overdue()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tangram-gateway", description="Choose the replica of each request.")
    add, limits = parser.add_argument, BodyLimits()
    add("--listen", default="unix:/run/tangram/picker.sock", help="gRPC address (default: %(default)s)")
    add("--pages-port", type=int, default=9003, help="of probes and metrics (default: %(default)s)")
    add("--namespace", action="append", default=[], help="serve this namespace (default: all); repeatable")
    add("--kubeconfig", help="kubeconfig (default: the pod's service account)")
    add("--max-body-bytes", type=int, default=limits.body_bytes, help="of one request (default: %(default)s)")
    add(
        "--max-body-bytes-in-flight",
        type=int,
        default=limits.bytes_in_flight,
        help="of all requests that are read (default: %(default)s)",
    )
    add("--max-streams", type=int, default=MAX_STREAMS, help="requests at a time (default: %(default)s)")
    add(
        "--ends-by",
        choices=("access-log", "stream"),
        default="access-log",
        help="what reports the end of a request: the access log of the chart's Envoy (default), or the end "
        "of its stream, where a gateway has all of a response processed",
    )
    add("--envoy-admin", default="", help="socket of the Envoy that is drained before the end")
    add("--drain-s", type=float, default=600.0, help="longest drain, in seconds (default: %(default)s)")
    return parser
