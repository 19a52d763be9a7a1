"""The metrics of a node agent, and the port that shows them.

A scrape shows what the last round found and never calls the driver: it cannot hang with it, and calls nothing
beside an operation. Series are made anew for each scrape, so that those of a slice go with the slice. Their
number is bounded by what the GPUs of a node can hold.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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

PORT = 9408
MOST_SCRAPES, SCRAPE_S = 8, 10.0  # at once; seconds of silence after which a client is given up
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
    """Counts and shows what an agent does. The thread of the rounds writes, those of scrapes read."""

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


class MetricsServer(ThreadingHTTPServer):
    """Serves /metrics. A bounded number of clients at once, each in a thread; others are turned away."""

    daemon_threads = True
    request_queue_size = 2 * MOST_SCRAPES

    def __init__(self, port: int, registry: CollectorRegistry, host: str = "") -> None:
        self.registry = registry
        self._free = threading.BoundedSemaphore(MOST_SCRAPES)
        super().__init__((host, port), _Scrape)

    def start(self) -> None:
        """Serve until the process ends."""
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if one is free."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and free the thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""


class _Scrape(BaseHTTPRequestHandler):
    timeout = SCRAPE_S
    server: MetricsServer

    def do_GET(self) -> None:
        """Answer a scrape."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = generate_latest(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_LATEST)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        """Log no scrapes."""
