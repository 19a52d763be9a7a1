"""Reads load and latency of all LLMDeployments from their pods, where no Prometheus is configured.

Each running pod is scraped once per interval, always at the same phase of it. The scrapes are kept as long as
the widest window needs them, and evaluated as Prometheus would. A pod that does not answer, or whose page
cannot be used, ends its series as a failed scrape does in Prometheus, and concerns no other pod.
"""

import asyncio
import contextlib
import json
import logging
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field

from tangram.fleet import EngineKind, Intent, Objectives, describe
from tangram.scaling import Sample, sample_from
from tangram.scaling.outlook.load_history import LoadHistory
from tangram.scaling.queries import wider_windows
from tangram.scaling.sample import AT_WINDOW, RejectedSample
from tangram.scaling.scrapes import MetricsView, ScrapeStore, query_results
from tangram.scaling.scrapes.page_layout import READ_BY_OPERATOR
from tangram.scaling.scrapes.scrape_store import ENGINE_MARK
from tangram.shell.measure.metrics_readings import Reading, Readings
from tangram.shell.measure.page_fetcher import PageFetcher
from tangram.shell.measure.scraped_page import QUERY, EngineValues, PageParser, PageProblem, PodPages
from tangram.shell.settings import ScrapeSettings
from tangram.shell.snapshot.workloads import EnginePod

log = logging.getLogger(__name__)

CONCURRENCY = 64
MOST_PODS = 1024  # of one LLMDeployment, and engines: 110 KiB each for the widest window
_NAMED_PODS = 3  # in a problem
_PHASES = 16  # of an interval: pods of one phase are scraped side by side, which costs less than one by one
_SLACK = 1.1
# Where engines say their version. SGLang says it among all its settings alone, to administrators.
_VERSION_PATHS = {EngineKind.VLLM: "/version", EngineKind.NIM: "/v1/version"}
_MOST_VERSIONS, _LONGEST_VERSION = 256, 64
_AT_ONCE = 8  # LLMDeployments that are evaluated at once: two milliseconds
# Counted over one window: not known while scrapes have not lasted as long.
_OVER_WINDOW = frozenset(
    {"running_mean", "requests", "arrived", "prompt_tokens_mean", "answer_tokens_mean"}
    | {"ttft_attainment", "tpot_attainment", "itl_attainment", "ttft_s", "tpot_s"}
)


@dataclass(frozen=True, slots=True)
class FleetPods:
    """LLMDeployments, and their running pods by UID."""

    intents: tuple[Intent, ...] = ()
    pods: Mapping[str, tuple[EnginePod, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Target:
    """A pod that is scraped."""

    pod: EnginePod
    intent: Intent
    pages: PodPages = field(default_factory=PodPages)
    engines: dict[str, EngineValues] = field(default_factory=dict)  # of the last page, by key in the store
    processes: int = 0  # that its counters were written by
    problem: str = "has not been scraped yet"
    is_in_flight: bool = False


class NoHistories:
    """Pods know nothing of the past."""

    def of(self, _uid: str) -> LoadHistory | None:
        """Return None: the law knows the load since this operator leads."""
        return None


class EngineScraper:
    """The latest reading of each LLMDeployment, from its pods."""

    def __init__(
        self,
        settings: ScrapeSettings,
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
        url_of: Callable[[EnginePod], str] | None = None,
        fetcher: PageFetcher | None = None,
    ) -> None:
        """`now` is the time of day, which may jump; `clock`, which does not, dates the scrapes."""
        self._settings, self._now, self._clock = settings, now, clock
        self._url_of = url_of or metrics_url
        self.histories = NoHistories()
        self._readings, self._parser = Readings(pods_read="no pod"), PageParser()
        self._fetcher = fetcher or PageFetcher(settings.timeout_seconds)
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._targets: dict[str, _Target] = {}  # by UID of the pod
        self._scrapes: set[asyncio.Task[None]] = set()
        window_s = settings.window_seconds
        self._widest_s = max(window_s, *wider_windows(window_s))
        self._versions: dict[str, str] = {}  # by image; empty: its replica did not say
        self._began_s: float | None = None  # since when pods are scraped without a break
        self._store = self._new_store()

    # -- readings ------------------------------------------------------------------------------------------

    def reading(self, intent: Intent) -> Reading:
        """Return the latest reading for the present objectives of `intent`."""
        return self._readings.of(intent)

    def clear(self) -> None:
        """Forget all scrapes and readings: an operator that begins to lead starts empty."""
        self._readings.clear()
        self._targets.clear()
        self._store, self._began_s = self._new_store(), None

    async def evaluate(self, fleet: FleetPods) -> None:
        """Make new readings from the scrapes so far, and forget those of other LLMDeployments."""
        self._readings.retain(intent.uid for intent in fleet.intents)
        for number, intent in enumerate(fleet.intents):
            with self._readings.isolated(intent):
                self._evaluate_one(intent, fleet.pods.get(intent.uid, ()))
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # renewals of the Lease come between

    def _evaluate_one(self, intent: Intent, pods: Iterable[EnginePod]) -> None:
        targets = [self._targets[pod.uid] for pod in pods if pod.uid in self._targets]
        keys = [key for target in targets for key in target.engines]
        sample = self._sample(keys, intent.objectives)
        failing = [target for target in targets if target.problem]
        pods_read = f"{len(targets) - len(failing)} of {len(targets)} pods{_lacking(targets)}"
        # A pod that is not ready usually does not answer yet; of the others each one matters.
        problem = _problem([target for target in failing if target.pod.is_ready])
        self._readings.take(intent, sample, problem, pods_read)

    def _sample(self, keys: list[str], objectives: Objectives) -> Sample | RejectedSample:
        at = self._clock()
        window_s = self._settings.window_seconds
        results = query_results(MetricsView(self._store, keys, at), objectives, window_s)
        lasted_s = 0.0 if self._began_s is None else at - self._began_s
        if lasted_s < self._widest_s:
            for name in results:
                counted, _, seconds = name.partition(AT_WINDOW)
                if counted in _OVER_WINDOW and float(seconds or window_s) > lasted_s:
                    results[name] = None
        return sample_from(results, self._now())

    # -- scrapes -------------------------------------------------------------------------------------------

    async def run(
        self,
        observe: Callable[[], FleetPods | None],
        leads: Callable[[], bool],
        evaluated: Callable[[], None],
    ) -> None:
        """Scrape and evaluate while this operator leads, interval by interval, until cancelled.

        `observe` returns what is to be scraped, None while that is not known; `evaluated` is called after new
        readings.
        """
        try:
            while True:
                begin_s, fleet = self._clock(), observe() if leads() else None
                if fleet is None:
                    self.clear()
                    await asyncio.sleep(self._settings.interval_seconds)
                    continue
                self.follow(fleet)
                await self._scrape_all(begin_s, leads)
                present = observe() if leads() else None
                if present is not None:
                    await self.evaluate(present)
                    evaluated()
        finally:
            for scrape in self._scrapes:
                scrape.cancel()

    def follow(self, fleet: FleetPods) -> None:
        """Scrape the pods of `fleet` from now on; forget others with their scrapes."""
        if self._began_s is None:
            self._began_s = self._clock()
        intents = {intent.uid: intent for intent in fleet.intents}
        followed = {
            pod.uid: (pod, intents[uid])
            for uid, pods in fleet.pods.items()
            if uid in intents
            for pod in pods[:MOST_PODS]
        }
        for uid in self._targets.keys() - followed.keys():
            del self._targets[uid]
        for uid, (pod, intent) in followed.items():
            target = self._targets.setdefault(uid, _Target(pod, intent))
            target.pod, target.intent = pod, intent
        self._store.retain({key for target in self._targets.values() for key in target.engines})

    async def _scrape_all(self, begin_s: float, leads: Callable[[], bool]) -> None:
        """Begin the scrapes of all targets over one interval."""
        interval_s = self._settings.interval_seconds
        phases: defaultdict[int, list[str]] = defaultdict(list)
        for uid in self._targets:
            phases[_phase(uid)].append(uid)
        for phase, uids in sorted(phases.items()):
            await asyncio.sleep(max(0.0, begin_s + interval_s * phase / _PHASES - self._clock()))
            if not leads():
                return
            for uid in uids:
                self._begin_scrape(uid)
        await asyncio.sleep(max(0.0, begin_s + interval_s - self._clock()))

    def _begin_scrape(self, uid: str) -> None:
        target = self._targets.get(uid)
        if target is not None and not target.is_in_flight:
            scrape = asyncio.create_task(self._scrape(target))
            self._scrapes.add(scrape)
            scrape.add_done_callback(self._scrapes.discard)

    async def scrape(self, pod: EnginePod) -> None:
        """Scrape one pod of those that are followed, and store what it shows."""
        target = self._targets.get(pod.uid)
        if target is not None:
            await self._scrape(target)

    async def _scrape(self, target: _Target) -> None:
        pod = target.pod
        target.is_in_flight = True
        at = self._clock()
        try:
            async with self._slots:
                at = self._clock()
                lines = await self._fetcher.fetch(_with_query(self._url_of(pod), pod))
            page = await _parsed(self._parser.slices(lines, target.intent.served_name, target.pages))
            if self._targets.get(pod.uid) is target:  # else it went meanwhile, or another term began
                self._keep(target, page, at)
            target.problem = ""
            await self._ask_version(pod)
        except PageProblem as error:
            self._failed(target, str(error), at)
        except Exception as error:  # a defect concerns one pod
            problem = f"could not be read ({describe(error)}); please report this"
            if problem != target.problem:
                log.exception("scrape of pod %s/%s", target.intent.namespace, pod.name)
            self._failed(target, problem, at)
        finally:
            target.is_in_flight = False

    async def _ask_version(self, pod: EnginePod) -> None:
        """Ask the first replica of each image of a runtime for its version. No answer is no problem."""
        runtime = pod.runtime
        path = None if runtime is None else _VERSION_PATHS.get(runtime.kind)
        if runtime is None or path is None or runtime.image in self._versions:
            return
        if len(self._versions) >= _MOST_VERSIONS:
            self._versions.clear()
        self._versions[runtime.image] = ""
        with contextlib.suppress(PageProblem, ValueError, RecursionError):
            url = self._url_of(pod).removesuffix(runtime.metrics.path) + path
            answer = json.loads(b"\n".join(await self._fetcher.fetch(url, whole=True)))
            self._versions[runtime.image] = _version_of(answer)

    def served_versions(self) -> Mapping[str, str]:
        """Return the versions that replicas of EngineRuntimes say they have, by image."""
        return {image: version for image, version in self._versions.items() if version}

    async def close(self) -> None:
        """Close all connections."""
        await self._fetcher.close()

    def _keep(self, target: _Target, page: Mapping[str, EngineValues], at: float) -> None:
        engines = {f"{target.pod.uid}{ENGINE_MARK}{engine}": values for engine, values in page.items()}
        if len(engines) > 1 and self._engines_beside(target) + len(engines) > MOST_PODS:
            raise PageProblem(f"shows {len(engines)} engines, more than {MOST_PODS} of one LLMDeployment")
        before = target.engines
        if any(key in before and values.fell_below(before[key]) for key, values in engines.items()):
            target.processes += 1
        for key, values in engines.items():
            self._store.append(key, target.processes, values.row, at, values.absent)
        target.engines = engines

    def _engines_beside(self, target: _Target) -> int:
        """Return how many engines other pods of its LLMDeployment show."""
        others = (t for t in self._targets.values() if t is not target and t.intent.uid == target.intent.uid)
        return sum(len(other.engines) for other in others)

    def _failed(self, target: _Target, problem: str, at: float) -> None:
        if problem != target.problem and target.pod.is_ready:
            log.warning("pod %s/%s %s", target.intent.namespace, target.pod.name, problem)
        target.problem = problem
        if self._targets.get(target.pod.uid) is target:
            for key in target.engines:
                self._store.mark_stale(key, at)

    def _new_store(self) -> ScrapeStore:
        interval_s = self._settings.interval_seconds
        return ScrapeStore(
            READ_BY_OPERATOR, interval_s, retention_s=self._widest_s + interval_s, slack=_SLACK
        )


def metrics_url(pod: EnginePod) -> str:
    """Return where a pod shows its metrics: by its runtime, and no annotation counts."""
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return f"http://{host}:{pod.metrics_port}{pod.metrics.path}"


def _version_of(answer: object) -> str:
    """Return the version in an answer to a version route, the empty string where there is none."""
    found = answer.get("version") or answer.get("release") if isinstance(answer, dict) else None
    return found[:_LONGEST_VERSION] if isinstance(found, str) else ""


def _with_query(url: str, pod: EnginePod) -> str:
    """Return the URL of a page without what is not read. Only the bundled engine is asked so: an engine of
    several processes finds no series by name (prometheus_client, MultiProcessCollector).
    """
    return f"{url}?{QUERY}" if pod.runtime is None else url


async def _parsed(slices: Generator[None, None, dict[str, EngineValues]]) -> dict[str, EngineValues]:
    """Return the values of a page; between two slices of it the event loop does other work."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            page: dict[str, EngineValues] = end.value
            return page
        await asyncio.sleep(0)


def _phase(uid: str) -> int:
    """Return when a pod is scraped, as one of the phases of an interval."""
    return zlib.crc32(uid.encode()) % _PHASES


def _lacking(targets: list[_Target]) -> str:
    """Return which metrics some pages lack, the empty string where none does."""
    lacking = {name for target in targets for values in target.engines.values() for name in values.lacking()}
    return f", without {', '.join(sorted(lacking))}" if lacking else ""


def _problem(targets: list[_Target]) -> str:
    """Return why pods were not read."""
    named = [f"pod {target.pod.name} {target.problem}" for target in targets[:_NAMED_PODS]]
    if len(targets) > _NAMED_PODS:
        named.append(f"and {len(targets) - _NAMED_PODS} more")
    return "; ".join(named)
