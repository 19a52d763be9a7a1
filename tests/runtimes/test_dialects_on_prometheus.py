"""The same load in the names of another engine has the same answers, on Prometheus' own engine."""

import random

import pytest

from tangram.fleet import MetricsDialect
from tangram.scaling import FleetAnswers, for_fleet, metrics_subject, queries
from tests.scaling.test_fleet_queries_on_prometheus import BOTH, WINDOW_S, page, promtool  # noqa: F401
from tests.support import promtool_answers

pytestmark = pytest.mark.slow

INSTANTS = (400, 905, 1500)
SPLIT = (queries.TTFT, queries.TPOT)  # SGLang parts these into streamed and other requests


def in_dialect(made, dialect):
    """Return a page in the names of a dialect, with what SGLang parts in two series."""
    other = {}
    for series, values in made.items():
        metric, _, labels = series.partition("{")
        base = next(name for name in queries.OTHER_DIALECTS[dialect] if metric.startswith(name))
        renamed = metric.replace(base, queries.OTHER_DIALECTS[dialect][base][0]) + "{" + labels
        if dialect is not MetricsDialect.SGLANG or base not in SPLIT:
            other[renamed] = values
            continue
        for streamed, share in (("true", 0.75), ("false", 0.25)):
            label = f'is_streaming="{streamed}",'
            other[renamed.replace("{", "{" + label)] = {at: share * v for at, v in values.items()}
    return other


def far_from_zero(made):
    """Return a page of engines that run for long: near zero, extrapolation of parts and of a sum differ."""
    counters = {
        name for name in made if not name.startswith((queries.RUNNING, queries.WAITING, queries.KV_USAGE))
    }
    return {
        name: {at: value + (1e6 if name in counters else 0) for at, value in values.items()}
        for name, values in made.items()
    }


@pytest.mark.parametrize("dialect", [MetricsDialect.SGLANG, MetricsDialect.NIM])
@pytest.mark.parametrize("most_chars", [900, 48 << 10])
def test_a_fleet_of_two_engines_is_read_as_one_of_vllm(dialect, most_chars, promtool, tmp_path):  # noqa: F811
    rng, labels = random.Random(7), 'namespace="ns",model_name="m",pod="{}"'
    pages = {
        pod: far_from_zero(page(rng, labels.format(pod), counts_arrivals=False)) for pod in ("a-1-x", "b-1-x")
    }
    if dialect is MetricsDialect.NIM:  # it has no TPOT per request
        pages = {
            p: {n: v for n, v in made.items() if not n.startswith(queries.TPOT)} for p, made in pages.items()
        }
    as_vllm = pages["a-1-x"] | pages["b-1-x"]
    mixed = pages["a-1-x"] | in_dialect(pages["b-1-x"], dialect)
    dialects = queries.VLLM_NAMES | {dialect}
    answers = {}
    for name, fleet, subject in (
        ("vllm", as_vllm, metrics_subject("u", "ns", "m", tuple(pages), BOTH)),
        ("mixed", mixed, metrics_subject("u", "ns", "m", tuple(pages), BOTH, dialects)),
    ):
        asked = for_fleet([subject], WINDOW_S, most_chars)
        questions = [(query.promql, at) for at in INSTANTS for query in asked]
        vectors = iter(promtool_answers.vectors(promtool, fleet, questions, tmp_path / f"{name}.yaml"))
        for at in INSTANTS:
            found = FleetAnswers()
            for query in asked:
                found.add(query, next(vectors))
            answers[name, at] = found.results(subject, WINDOW_S, at)

    for at in INSTANTS:
        for field, number in answers["vllm", at].items():
            assert answers["mixed", at][field] == (
                None if number is None else pytest.approx(number, rel=1e-6, nan_ok=True)
            ), (at, field)
    assert answers["mixed", 1500]["targets"] == 2
