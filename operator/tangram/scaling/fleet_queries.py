"""PromQL about many LLMDeployments at once: what `queries.for_deployment` asks, in a few queries for a fleet.

A query is a union of terms. A term is one field, or a part of one. Each row of its result has the labels
`field`, `namespace`, `model_name` and `replica_set`, which is the name of the pods without the last part, and
belongs to the LLMDeployment with this combination (`FleetAnswers`). So a pod that carries the names of
another LLMDeployment counts for none, two LLMDeployments of one namespace may have the same served name, and
the number of rows does not grow with the replicas.

Percentiles need the buckets of all pods of an LLMDeployment at once, so Prometheus computes them by namespace
and model. They are shown and decide nothing.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tangram.fleet import Objective, Objectives
from tangram.scaling.queries import (
    ANSWER_LENGTH,
    ITL,
    KV_USAGE,
    PROMPT_LENGTH,
    RECEIVED,
    RUNNING,
    TPOT,
    TPOT_BUCKETS,
    TTFT,
    TTFT_BUCKETS,
    VLLM_NAMES,
    WAITING,
    Dialects,
    any_of,
    by_any_name,
    duration,
    le_pattern,
    snap,
    wider_windows,
)
from tangram.scaling.sample import AT_WINDOW

# Of the text of a query: its body, percent-encoded, is to stay below 64 KiB, which proxies often allow.
MOST_CHARS = 48 << 10
_TERM_CHARS = 800  # at most, beside the names of pods
_POD = "namespace, model_name, pod"
_GROUP = "namespace, model_name, replica_set"

_Value = TypeVar("_Value")
RowKey = tuple[str, str, str]
"""Namespace, model name and ReplicaSet of a row; the ReplicaSet is empty for a percentile."""


@dataclass(frozen=True, slots=True)
class MetricsSubject:
    """An LLMDeployment whose metrics are asked for."""

    uid: str
    namespace: str
    served_name: str
    pods: tuple[str, ...]  # names of its replicas' pods
    objectives: Objectives
    ttft_edge_s: float | None  # the bucket edges at which the objectives are checked
    tpot_edge_s: float | None
    dialects: Dialects = VLLM_NAMES  # of its pods


def metrics_subject(
    uid: str,
    namespace: str,
    served_name: str,
    pods: tuple[str, ...],
    objectives: Objectives,
    dialects: Dialects = VLLM_NAMES,
) -> MetricsSubject:
    """Return what is asked about an LLMDeployment. Raises ValueError for an objective below all edges."""
    ttft, tpot = objectives.ttft, objectives.tpot
    ttft_edge_s = snap(ttft.milliseconds, TTFT_BUCKETS) if ttft else None
    tpot_edge_s = snap(tpot.milliseconds, TPOT_BUCKETS) if tpot else None
    return MetricsSubject(uid, namespace, served_name, pods, objectives, ttft_edge_s, tpot_edge_s, dialects)


@dataclass(frozen=True, slots=True)
class FleetQuery:
    """A query whose rows are parts of the fields of several LLMDeployments."""

    promql: str
    owners: Mapping[RowKey, str]  # the UID of the LLMDeployment that a row belongs to


@dataclass(frozen=True, slots=True)
class _Term:
    """One part of a field, for the pods of some LLMDeployments."""

    field: str
    rows: Callable[[str], str]  # the expression, from a regular expression for names of pods
    pods: tuple[str, ...]  # regular expressions, each of which matches some of the pods


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter, or one of those that a histogram consists of."""

    metric: str
    suffix: str = ""
    edge: str = ""  # of a bucket, as a regular expression


@dataclass(frozen=True, slots=True)
class _Selection:
    """Regular expressions for the pods of a fleet, and of the LLMDeployments with each objective."""

    all: tuple[str, ...]
    with_tpot: tuple[str, ...]
    by_ttft_edge: tuple[tuple[str, tuple[str, ...]], ...]
    by_tpot_edge: tuple[tuple[str, tuple[str, ...]], ...]
    dialects: Dialects = VLLM_NAMES


def for_fleet(
    subjects: Collection[MetricsSubject], window_s: float, most_chars: int = MOST_CHARS
) -> tuple[FleetQuery, ...]:
    """Return the queries for all `subjects`; none is longer than `most_chars` unless a single term is."""
    with_pods = [subject for subject in subjects if subject.pods]
    queries: list[FleetQuery] = []
    for group in (part for same in _by_dialects(with_pods) for part in _unambiguous(same, _row_keys)):
        owners = {key: subject.uid for subject in group for key in _row_keys(subject)}
        texts = [
            _named(term.field, term.rows(pods), part)
            for term in _terms(_select(group, most_chars), window_s)
            for part, pods in enumerate(term.pods)
        ]
        queries += (FleetQuery(text, owners) for text in _unions(texts, most_chars))
    return (*queries, *_percentiles(with_pods, window_s, most_chars))


def _by_dialects(subjects: Iterable[MetricsSubject]) -> list[list[MetricsSubject]]:
    """Part LLMDeployments by the names of their metrics: those of one engine alone keep queries short."""
    parts: dict[Dialects, list[MetricsSubject]] = {}
    for subject in subjects:
        parts.setdefault(subject.dialects, []).append(subject)
    return list(parts.values())


def _row_keys(subject: MetricsSubject) -> set[RowKey]:
    replica_sets = {pod.rpartition("-")[0] for pod in subject.pods}
    return {(subject.namespace, subject.served_name, replica_set) for replica_set in replica_sets}


def _select(subjects: list[MetricsSubject], most_chars: int) -> _Selection:
    dialects = _all_dialects(subjects)
    # A term names the pods by each name of a metric: by two of one engine at most.
    most_names = 2 * len(dialects | VLLM_NAMES)

    def pods_of(selected: list[MetricsSubject]) -> tuple[str, ...]:
        pods = [pod for subject in selected for pod in subject.pods]
        longest = (most_chars - _TERM_CHARS) // most_names
        return tuple(any_of(part) for part in _parts(pods, _regex_chars, longest))

    def by_edge(
        edge_of: Callable[[MetricsSubject], float | None],
    ) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the edges at which objectives are checked, as regular expressions, with the pods."""
        selected: dict[float, list[MetricsSubject]] = {}
        for subject in subjects:
            edge_s = edge_of(subject)
            if edge_s is not None:
                selected.setdefault(edge_s, []).append(subject)
        return tuple((le_pattern(edge_s), pods_of(having)) for edge_s, having in sorted(selected.items()))

    return _Selection(
        pods_of(subjects),
        pods_of([subject for subject in subjects if subject.objectives.tpot]),
        by_edge(lambda subject: subject.ttft_edge_s),
        by_edge(lambda subject: subject.tpot_edge_s),
        dialects,
    )


def _terms(select: _Selection, window_s: float) -> Iterator[_Term]:
    def gauge(metric: str, pods: str, function: str = "") -> str:
        def named(name: str) -> str:
            selector = f'{name}{{pod=~"{pods}"}}'
            return f"{function}({selector})" if function else selector

        return by_any_name(metric, named, select.dialects)

    yield _Term("targets", lambda pods: _count(f"max by ({_POD}) ({gauge(RUNNING, pods)})"), select.all)
    yield _Term("scraped_at", lambda pods: _by_group("max", gauge(RUNNING, pods, "timestamp")), select.all)
    yield _Term("running", lambda pods: _by_group("sum", _page(gauge(RUNNING, pods))), select.all)
    yield _Term("waiting", lambda pods: _by_group("sum", _page(gauge(WAITING, pods))), select.all)
    yield _mean("kv_usage", KV_USAGE, select, window_s)
    yield from _terms_over_window("", select, window_s)
    for wider_s in wider_windows(window_s):
        yield from _terms_over_window(f"{AT_WINDOW}{wider_s}", select, wider_s)


def _terms_over_window(suffix: str, select: _Selection, window_s: float) -> Iterator[_Term]:
    """Yield the terms of the fields of one window; the names of fields end with `suffix`."""

    def increase(field: str, counter: _Counter, pods: tuple[str, ...]) -> _Term:
        return _increase(field, counter, pods, window_s, select.dialects)

    yield _mean(f"running_mean{suffix}", RUNNING, select, window_s)
    first_tokens, arrived = _Counter(TTFT, "_count"), _Counter(RECEIVED)
    yield _without(f"pods_without_arrived{suffix}", first_tokens, arrived, select, window_s)
    for field, metric in (
        ("requests", first_tokens),
        ("arrived", arrived),
        ("prompt_tokens_sum", _Counter(PROMPT_LENGTH, "_sum")),
        ("prompt_tokens_count", _Counter(PROMPT_LENGTH, "_count")),
        ("answer_tokens_sum", _Counter(ANSWER_LENGTH, "_sum")),
        ("answer_tokens_count", _Counter(ANSWER_LENGTH, "_count")),
    ):
        yield increase(f"{field}{suffix}", metric, select.all)
    yield increase(f"tpot_count{suffix}", _Counter(TPOT, "_count"), select.with_tpot)
    yield increase(f"itl_count{suffix}", _Counter(ITL, "_count"), select.with_tpot)
    for edge, pods in select.by_ttft_edge:
        yield increase(f"ttft_good{suffix}", _Counter(TTFT, "_bucket", edge), pods)
    for edge, pods in select.by_tpot_edge:
        yield increase(f"tpot_good{suffix}", _Counter(TPOT, "_bucket", edge), pods)
        yield increase(f"itl_good{suffix}", _Counter(ITL, "_bucket", edge), pods)


def _mean(field: str, metric: str, select: _Selection, window_s: float) -> _Term:
    window = duration(window_s)

    def rows(pods: str) -> str:
        return by_any_name(
            metric, lambda name: f'avg_over_time({name}{{pod=~"{pods}"}}[{window}])', select.dialects
        )

    return _Term(field, lambda pods: _by_group("sum", _page(rows(pods))), select.all)


def _increase(
    field: str, counter: _Counter, pods: tuple[str, ...], window_s: float, dialects: Dialects
) -> _Term:
    return _Term(
        field, lambda pods: _by_group("sum", _page(_increases(counter, pods, window_s, dialects))), pods
    )


def _without(field: str, counter: _Counter, other: _Counter, select: _Selection, window_s: float) -> _Term:
    """Return the number of pods that export `counter` but not `other`; usually no rows."""
    dialects = select.dialects

    def rows(pods: str) -> str:
        having, others = (_increases(each, pods, window_s, dialects) for each in (counter, other))
        return _count(f"max by ({_POD}) ({having}) unless on ({_POD}) max by ({_POD}) ({others})")

    return _Term(field, rows, select.all)


def _increases(counter: _Counter, pods: str, window_s: float, dialects: Dialects) -> str:
    selected = f'pod=~"{pods}"' + (f',le=~"{counter.edge}"' if counter.edge else "")
    return by_any_name(
        counter.metric,
        lambda name: f"increase({name}{counter.suffix}{{{selected}}}[{duration(window_s)}])",
        dialects,
    )


def _page(expression: str) -> str:
    """Return the value of each engine: once, however often it is scraped."""
    return f"max by ({_POD}, engine) ({expression})"


def _by_group(aggregation: str, expression: str) -> str:
    """Return one value for all pods of a ReplicaSet, which are of one LLMDeployment."""
    named = f'label_replace({expression}, "replica_set", "$1", "pod", "(.+)-[^-]*")'
    return f"{aggregation} by ({_GROUP}) ({named})"


def _named(field: str, rows: str, part: int = 0) -> str:
    """Label rows with their field. Parts that name other pods of one ReplicaSet differ in a further label."""
    named = f'label_replace({rows}, "field", "{field}", "", "")'
    return f'label_replace({named}, "part", "{part}", "", "")' if part else named


def _count(pods: str) -> str:
    return _by_group("count", pods)


def _percentiles(subjects: list[MetricsSubject], window_s: float, most_chars: int) -> Iterator[FleetQuery]:
    """Yield the queries of percentiles: in each, every namespace and model belongs to one LLMDeployment."""
    for group in _unambiguous(subjects, _percentile_key):
        owners = {key: subject.uid for subject in group for key in _percentile_key(subject)}
        texts = []
        for field, metric, by_percentile in (
            ("ttft_s", TTFT, _by_percentile(group, lambda objectives: objectives.ttft)),
            ("tpot_s", TPOT, _by_percentile(group, lambda objectives: objectives.tpot)),
        ):
            for percentile, having in by_percentile:
                for part in _parts(having, _pod_chars, most_chars - _TERM_CHARS):
                    pods = any_of([pod for subject in part for pod in subject.pods])
                    quantile = _quantile(metric, percentile, pods, window_s, _all_dialects(part))
                    texts.append(_named(field, quantile))
        yield from (FleetQuery(text, owners) for text in _unions(texts, most_chars))


def _by_percentile(
    subjects: Iterable[MetricsSubject], objective_of: Callable[[Objectives], Objective | None]
) -> list[tuple[int, list[MetricsSubject]]]:
    selected: dict[int, list[MetricsSubject]] = {}
    for subject in subjects:
        objective = objective_of(subject.objectives)
        if objective is not None:
            selected.setdefault(objective.percentile, []).append(subject)
    return sorted(selected.items())


def _percentile_key(subject: MetricsSubject) -> set[RowKey]:
    return {(subject.namespace, subject.served_name, "")}


def _unambiguous(
    subjects: Iterable[MetricsSubject], keys_of: Callable[[MetricsSubject], set[RowKey]]
) -> list[list[MetricsSubject]]:
    """Part LLMDeployments so that no two of a part have a row in common."""
    groups: list[tuple[set[RowKey], list[MetricsSubject]]] = []
    for subject in subjects:
        keys = keys_of(subject)
        for taken, group in groups:
            if taken.isdisjoint(keys):
                taken.update(keys)
                group.append(subject)
                break
        else:
            groups.append((keys, [subject]))
    return [group for _, group in groups]


def _all_dialects(subjects: Iterable[MetricsSubject]) -> Dialects:
    return frozenset(dialect for subject in subjects for dialect in subject.dialects) or VLLM_NAMES


def _quantile(metric: str, percentile: int, pods: str, window_s: float, dialects: Dialects) -> str:
    rates = by_any_name(
        metric, lambda name: f'rate({name}_bucket{{pod=~"{pods}"}}[{duration(window_s)}])', dialects
    )
    pages = f"max by ({_POD}, engine, le) ({rates})"
    return f"histogram_quantile({percentile / 100:g}, sum by (namespace, model_name, le) ({pages}))"


def _unions(texts: Iterable[str], most_chars: int) -> Iterator[str]:
    """Join texts by `or`, which keeps all rows: those of two terms differ in a label."""
    for part in _parts(list(texts), len, most_chars):
        yield " or ".join(part)


def _regex_chars(pod: str) -> int:
    return len(pod) + 2 * pod.count(".")


def _pod_chars(subject: MetricsSubject) -> int:
    return sum(_regex_chars(pod) + 1 for pod in subject.pods)


def _parts(values: list[_Value], size: Callable[[_Value], int], most: int) -> Iterator[list[_Value]]:
    """Cut a list where the sizes, each with a separator, would add up to more than `most`."""
    part: list[_Value] = []
    used = 0
    for value in values:
        if part and used + size(value) > most:
            yield part
            part, used = [], 0
        part.append(value)
        used += size(value) + len(" or ")
    if part:
        yield part
