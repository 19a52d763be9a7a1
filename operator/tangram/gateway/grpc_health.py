"""The health service of gRPC (grpc.health.v1), by which gateways ask whether a picker may be used.

Its messages have one field each, so they are written as bytes: the package with their classes needs another
release of protobuf than the solver of the operator's image.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse.status
WATCH_PERIOD_S = 1.0


def health_service(is_ready: Callable[[], bool]) -> grpc.GenericRpcHandler:
    """Return the service; every name of a service has the same health, `liveness` is always good."""

    def status(request: bytes) -> bytes:
        return SERVING if request.endswith(b"liveness") or is_ready() else NOT_SERVING

    async def check(request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        return status(request)

    async def watch(request: bytes, _context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        sent = b""
        while True:
            if (health := status(request)) != sent:
                sent = health
                yield health
            await asyncio.sleep(WATCH_PERIOD_S)

    handlers = {
        "Check": grpc.unary_unary_rpc_method_handler(check),
        "Watch": grpc.unary_stream_rpc_method_handler(watch),
    }
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers)
