"""vLLM's metric names and buckets, so that dashboards, KEDA recipes and llm-d's router work unchanged."""

from collections.abc import Sequence
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from tangram_engine.messages import EngineInfo, StepStats
from tangram_engine.serve.http.errors import APIError

from .local_metrics import LocalCounter, LocalHistogram

_REJECTIONS = ("max_connections", "max_body_bytes", "max_num_queued_reqs")
# Codes of error objects that refuse a request for tokens before any is computed.
# The replica is full or cannot serve now: another one would have served the request, so it is load.
REFUSED_BY_REPLICA = (
    *("queue_full", "too_many_connections", "too_many_body_bytes"),
    *("text_workers_busy", "text_process_unavailable"),
    *("not_ready", "draining", "engine_hung", "engine_died"),
)
# No number of replicas would serve the request, so it is no load. Every other 4xx counts as INVALID: a
# mistake of the client.
INVALID = "invalid_request"
REFUSED_FOR_ITSELF = ("context_length_exceeded", "body_too_large", "too_many_sequences", INVALID)
REFUSALS = (*REFUSED_BY_REPLICA, *REFUSED_FOR_ITSELF)
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
# vLLM's bounds begin at 10 ms; an 8B model on an H200 takes 3 to 6. The bounds below keep queries valid.
ITL_BUCKETS = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
LATENCY_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
N_BUCKETS = (1, 2, 5, 10, 20)
PREEMPTION_BUCKETS = (1, 2, 3, 4, 5, 10, 20)


def length_buckets(largest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, … up to and including the first bound that covers `largest`."""
    bounds: list[int] = []
    scale = 1
    while True:
        for digit in (1, 2, 5):
            bounds.append(digit * scale)
            if digit * scale >= largest:
                return bounds
        scale *= 10


class EngineMetrics:
    """Everything /metrics shows. Counters of one replica; the process starts them at zero."""

    def __init__(self, model_name: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they only add series
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        self._running = 0
        gauge, counter, histogram = self._gauge, self._counter, self._histogram
        self.running = gauge("vllm:num_requests_running", "Sequences in the running batch")
        self.waiting = gauge("vllm:num_requests_waiting", "Sequences waiting to be run")
        # Capacity is all that anything waits for here; vLLM's other reason, "deferred", cannot occur.
        self._by_reason = gauge(
            "vllm:num_requests_waiting_by_reason",
            "Sequences waiting, by what they wait for",
            reason="capacity",
        )
        self.kv_usage = gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1")
        self.prefix_queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up")
        self.prefix_hits = counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self.preemptions = counter("vllm:num_preemptions", "Sequences preempted for lack of KV blocks")
        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens prefilled")
        self.prompt_cached = counter("vllm:prompt_tokens_cached", "Prompt tokens from the prefix cache")
        self._by_source = self._family("vllm:prompt_tokens_by_source", "Prompt tokens by source", "source")
        self.generation_tokens = LocalCounter(
            "vllm:generation_tokens", "Tokens generated", self._labels, self.registry
        )
        self._success = self._family("vllm:request_success", "Sequences ended", "finished_reason")
        for reason in ("stop", "length", "abort", "error"):
            self._success.labels(**self._labels, finished_reason=reason)
        self._rejections = self._family("vllm:admission_rejections", "Refused by a queue limit", "reason")
        for reason in _REJECTIONS:
            self._rejections.labels(**self._labels, reason=reason)
        self._received = LocalCounter(
            "tangram:requests_received",
            "Requests for tokens that were accepted, or that the replica had no capacity for",
            self._labels,
            self.registry,
        )
        self._rejected = self._family(
            "tangram:requests_rejected", "Requests for tokens refused before any token", "reason"
        )
        for reason in REFUSALS:
            self._rejected.labels(**self._labels, reason=reason)
        self.ttft = histogram("vllm:time_to_first_token_seconds", "Arrival to first token", TTFT_BUCKETS)
        self.itl = histogram("vllm:inter_token_latency_seconds", "Between two tokens", ITL_BUCKETS)
        self.tpot = histogram(
            "vllm:request_time_per_output_token_seconds", "Mean after the first", ITL_BUCKETS
        )
        self.e2e = histogram("vllm:e2e_request_latency_seconds", "Arrival to end")
        self.queue = histogram("vllm:request_queue_time_seconds", "Arrival to first step")
        self.prefill = histogram("vllm:request_prefill_time_seconds", "First step to first token")
        self.decode = histogram("vllm:request_decode_time_seconds", "First to last token")
        self.inference = histogram("vllm:request_inference_time_seconds", "First step to last token")
        self.request_preemptions = histogram(
            "vllm:request_num_preemptions", "How often a sequence was preempted", PREEMPTION_BUCKETS
        )
        self.iteration_tokens = histogram(
            "vllm:iteration_tokens_total", "Tokens computed in one step", ITERATION_BUCKETS
        )
        self.params_n = histogram("vllm:request_params_n", "The request's n", N_BUCKETS)
        self.connections = gauge("tangram_engine_connections", "Open connections of clients")
        self.body_bytes = gauge(
            "tangram_engine_body_bytes", "Bytes in flight of request bodies, beside 64 KiB of each"
        )
        self._closed = self._family(
            "tangram_engine_connections_closed", "Connections closed by the server, by reason", "reason"
        )
        self.load_seconds = gauge("tangram_engine_load_seconds", "Time to load the weights")
        self.warmup_seconds = gauge("tangram_engine_warmup_seconds", "Time to warm up")
        self.late_kernels = counter(
            "tangram_engine_late_kernels",
            "Kernels compiled or loaded after the engine was ready; expected: 0",
        )
        self.silence = gauge(
            "tangram_engine_heartbeat_silence_seconds",
            "Time for which the engine process has not answered; it answers between two steps",
        )
        self.api_keys = gauge("tangram_engine_api_keys", "API keys in force; 0: no request needs one")
        self.api_key_file_refused = gauge(
            "tangram_engine_api_key_file_refused",
            "1 while the file of API keys cannot be used and the keys read before stay in force",
        )
        self.http = Counter(
            "http_requests", "HTTP requests", ("handler", "method", "status"), registry=self.registry
        )

    def engine_ready(self, info: EngineInfo) -> None:
        """Fill what is known once the engine is up; length buckets reach to its context."""
        gauge, histogram, bounds = self._gauge, self._histogram, length_buckets(info.max_model_len)
        self.prompt_length = histogram("vllm:request_prompt_tokens", "Prompt length", bounds)
        self.generation_length = histogram("vllm:request_generation_tokens", "Length of the answer", bounds)
        self.max_generation_length = histogram(
            "vllm:request_max_num_generation_tokens", "Longest of a request's n answers", bounds
        )
        self.params_max_tokens = histogram(
            "vllm:request_params_max_tokens", "The request's max_tokens", bounds
        )
        self.prefill_computed = histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens not found in the cache", bounds
        )
        self.load_seconds.set(info.load_seconds)
        self.warmup_seconds.set(info.warmup_seconds)
        if info.read_bandwidth is not None and info.gemm_flops is not None:
            bandwidth = gauge(
                "tangram_engine_read_bandwidth_bytes_per_second", "Of the device, measured at start"
            )
            bandwidth.set(info.read_bandwidth)
            flops = gauge("tangram_engine_gemm_flops_per_second", "Of the device, measured at start")
            flops.set(info.gemm_flops)
        gauge(
            "vllm:cache_config_info",
            "KV cache settings",
            block_size=str(info.block_size),
            num_gpu_blocks=str(info.num_blocks),
            max_num_seqs=str(info.max_num_seqs),
            max_num_batched_tokens=str(info.max_num_batched_tokens),
            cache_dtype=info.dtype,
            enable_prefix_caching="True",
        ).set(1)
        gauge(
            "tangram_engine_weights_info",
            "1, with what the layers compute in and the format that their weights are kept in",
            dtype=info.dtype,
            format=info.quantize or info.dtype,
        ).set(1)

    def step(self, stats: StepStats) -> None:
        """Book one engine step."""
        self._running = stats.running
        self.running.set(stats.running)
        self.kv_usage.set(stats.kv_used_blocks / max(stats.kv_total_blocks, 1))
        self.prefix_queries.inc(stats.prefix_queries)
        self.prefix_hits.inc(stats.prefix_hits)
        self.preemptions.inc(stats.preemptions)
        self.late_kernels.inc(stats.late_kernels)
        if stats.batch_tokens:
            self.iteration_tokens.observe(stats.batch_tokens)

    def set_waiting(self, in_flight: int) -> None:
        """What was sent to the engine and does not run: in its queue, or on the way there."""
        waiting = max(in_flight - self._running, 0)
        self.waiting.set(waiting)
        self._by_reason.set(waiting)

    def prefilled(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Book a sequence's prompt, when its first token arrives."""
        computed = prompt_tokens - cached_tokens
        self.prompt_tokens.inc(prompt_tokens)
        self.prompt_cached.inc(cached_tokens)
        self._by_source.labels(**self._labels, source="local_compute").inc(computed)
        self._by_source.labels(**self._labels, source="local_cache_hit").inc(cached_tokens)
        self.prefill_computed.observe(computed)

    def refused(self, reason: str) -> None:
        """Count what was refused by a limit, the queue's included, or a connection that was closed."""
        family = self._rejections if reason in _REJECTIONS else self._closed
        family.labels(**self._labels, reason=reason).inc()

    def accepted(self) -> None:
        """Count a request for tokens once it is valid and has its places in the queue."""
        self._received.value += 1

    def rejected(self, status: int, code: str | None) -> None:
        """Count a request for tokens that was not accepted, if this error, with which it ends, refuses it."""
        if code in REFUSED_BY_REPLICA:
            self._received.value += 1
        if code in REFUSALS or 400 <= status < 500 or status == HTTPStatus.NOT_IMPLEMENTED:
            self._rejected.labels(**self._labels, reason=code if code in REFUSALS else INVALID).inc()

    def ended(self, reason: str) -> None:
        """Count one sequence by how it ended: stop, length, abort or error."""
        self._success.labels(**self._labels, finished_reason=reason).inc()

    def _gauge(self, name: str, text: str, **more: str) -> Gauge:
        labels = {**self._labels, **more}
        return Gauge(name, text, tuple(labels), registry=self.registry).labels(**labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, tuple(self._labels), registry=self.registry).labels(**self._labels)

    def _family(self, name: str, text: str, label: str) -> Counter:
        return Counter(name, text, (*self._labels, label), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float] = LATENCY_BUCKETS) -> LocalHistogram:
        return LocalHistogram(name, text, self._labels, buckets, self.registry)


class CountedRequest:
    """A request for tokens, counted once: as accepted, or by the error that refuses it.

    It counts as load when a replica has accepted it or has refused it for want of capacity, never at its
    headers: a client could otherwise make the operator add replicas by requests that none would serve, or by
    bodies that it never ends.
    """

    __slots__ = ("_is_accepted", "_metrics")

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics, self._is_accepted = metrics, False

    def accepted(self) -> None:
        """Count the request as load: it is valid and has its places in the queue."""
        self._is_accepted = True
        self._metrics.accepted()

    def refused(self, error: APIError) -> None:
        """Count the error as a refusal; one that ends an accepted request is none."""
        if not self._is_accepted:
            self._metrics.rejected(error.status, error.code)
