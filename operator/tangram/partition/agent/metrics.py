"""The metrics of a node agent, and the port that shows them.

A scrape shows what the last round found and never calls the driver: it cannot hang with it, and calls nothing
beside an operation. Series are made anew for each page, so that those of a slice go with the slice. Their
number is bounded by what the GPUs of a node can hold.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tangram.fleet import WHOLE_GPU
from tangram.partition.agent.driver_thread import DriverHangs
from tangram.partition.device_usage import DeviceUsage
from tangram.partition.gpu_node import Holders
from tangram.partition.layouts import ObservedInstance, ObservedLayout
from tangram.partition.nvml import NVMLFailure
from tangram_http.connections import ConnectionLimits
from tangram_http.pages import PAGE_LIMITS, CachedPage, serve_pages
from tangram_http.sockets import listening_socket

PORT = 9408
OPERATION_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_LABELS = ("node", "gpu", "uuid", "profile", "start", "namespace", "pod")
_NO_USAGE: Mapping[str, DeviceUsage] = {}
_USAGES: tuple[tuple[str, str, Callable[[DeviceUsage], float | None]], ...] = (
    ("tangram_device_memory_bytes", "Memory of the GPU or slice.", lambda u: u.memory_bytes),
    ("tangram_device_memory_used_bytes", "Memory in use.", lambda u: u.memory_used_bytes),
    ("tangram_device_sm_activity_ratio", "Share of the SMs that were busy, by GPM.", lambda u: u.sm_activity),
    (
        "tangram_device_memory_bandwidth_ratio",
        "Share of the peak memory bandwidth in use, by GPM.",
        lambda u: u.memory_bandwidth,
    ),
    (
        "tangram_device_kernel_time_ratio",
        "Share of the time with a kernel on a GPU without MIG.",
        lambda u: u.kernel_time,
    ),
)


@dataclass(frozen=True, slots=True)
class ShownDevice:
    """One GPU without MIG, or one slice, as its series show it."""

    labels: tuple[str, ...]
    is_held: bool
    usage: DeviceUsage


@dataclass(slots=True)
class OperationTiming:
    """One operation while it is under way: what came of it, for its series."""

    result: str = "done"


class AgentMetrics(Collector):
    """Counts and shows what an agent does. The thread of the rounds writes, that of pages reads."""

    def __init__(self, node: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = registry = CollectorRegistry()
        self._node, self._clock = node, clock
        self._last_round = clock()
        self._devices: tuple[ShownDevice, ...] = ()
        self._mig_enabled: Mapping[str, bool] = {}
        self._quarantined: Mapping[str, bool] = {}
        registry.register(self)
        self._operations = Histogram(
            "tangram_agent_operation_seconds",
            "Operations on GPUs by kind and result: done, failed, hangs, or obsolete before they began.",
            ("kind", "result"),
            buckets=OPERATION_BUCKETS_S,
            registry=registry,
        )
        self._rounds = Counter(
            "tangram_agent_rounds_total",
            "Rounds, done or failed by the API server.",
            ("result",),
            registry=registry,
        )

    @contextmanager
    def operation(self, kind: str) -> Iterator[OperationTiming]:
        """Time one operation within a block."""
        began, timing = self._clock(), OperationTiming()
        try:
            yield timing
        except DriverHangs:
            timing.result = "hangs"
            raise
        except NVMLFailure:
            timing.result = "failed"
            raise
        except Exception:
            timing.result = "obsolete"
            raise
        finally:
            self._operations.labels(kind, timing.result).observe(self._clock() - began)

    def count_round(self, *, has_failed: bool) -> None:
        """Count a round. After one that failed nothing is shown of devices: what was found may be over."""
        self._rounds.labels("failed" if has_failed else "done").inc()
        if has_failed:
            self.show((), {}, {})
        else:
            self._last_round = self._clock()

    def show(
        self,
        layouts: Iterable[ObservedLayout],
        holders: Holders,
        quarantined: Mapping[str, bool],
        usages: Mapping[str, DeviceUsage] = _NO_USAGE,
    ) -> None:
        """Show these GPUs and slices from now on. `quarantined`: by UUID, also of GPUs without a layout."""
        layouts = tuple(layouts)
        self._devices = tuple(device for layout in layouts for device in self._shown(layout, holders, usages))
        self._mig_enabled = {layout.gpu: layout.mig_enabled for layout in layouts}
        self._quarantined = dict(quarantined)

    def collect(self) -> Iterator[Metric]:
        """Return the series of this moment."""
        age = self._clock() - self._last_round
        yield GaugeMetricFamily("tangram_agent_last_round_age_seconds", "Age of the last round.", age)
        gpus = (
            ("tangram_gpu_mig_enabled", "Whether MIG is on.", self._mig_enabled),
            ("tangram_gpu_quarantined", "Whether the GPU is in quarantine.", self._quarantined),
        )
        for name, text, values in gpus:
            family = GaugeMetricFamily(name, text, labels=("node", "gpu"))
            for gpu, holds in sorted(values.items()):
                family.add_metric((self._node, gpu), float(holds))
            yield family
        devices = self._devices
        held = GaugeMetricFamily(
            "tangram_device_held", "Whether a pod or a process holds it.", labels=_LABELS
        )
        for device in devices:
            held.add_metric(device.labels, float(device.is_held))
        yield held
        for name, text, read in _USAGES:
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            for device in devices:
                value = read(device.usage)
                if value is not None:
                    family.add_metric(device.labels, value)
            yield family

    def _shown(
        self, layout: ObservedLayout, holders: Holders, usages: Mapping[str, DeviceUsage]
    ) -> Iterator[ShownDevice]:
        if not layout.mig_enabled:
            yield self._device(layout, layout.gpu, None, holders, usages)
        for instance in layout.instances:
            for device in instance.devices:
                yield self._device(layout, device, instance, holders, usages)

    def _device(
        self,
        layout: ObservedLayout,
        uuid: str,
        instance: ObservedInstance | None,
        holders: Holders,
        usages: Mapping[str, DeviceUsage],
    ) -> ShownDevice:
        profile, start = WHOLE_GPU, ""
        if instance is not None:
            profile, start = instance.placement.profile, str(instance.placement.start)
        pod = holders.get(uuid)
        labels = (self._node, layout.gpu, uuid, profile, start)
        names = ("", "") if pod is None else (pod.namespace, pod.name)
        held = (layout if instance is None else instance).is_held(holders.keys())
        return ShownDevice(labels + names, held, usages.get(uuid, DeviceUsage()))


class MetricsServer:
    """Serves /metrics in a thread with an event loop of its own."""

    def __init__(
        self,
        port: int,
        registry: CollectorRegistry,
        host: str = "",  # every address of the pod
        limits: ConnectionLimits = PAGE_LIMITS,
    ) -> None:
        """Listen; port 0 is any free one. Raises OSError."""
        self._socket = listening_socket(host, port)
        self._limits = limits
        self._page = CachedPage(lambda: partial(generate_latest, registry))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self.server_port: int = self._socket.getsockname()[1]

    def start(self) -> None:
        """Serve until the process ends, or `close`."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._show)
        serving = self._loop.run_until_complete(serve_pages(app, self._socket, self._limits))
        self._loop.run_forever()
        self._loop.run_until_complete(serving.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _show(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(body=await self._page.read(), headers={"Content-Type": CONTENT_TYPE_LATEST})
