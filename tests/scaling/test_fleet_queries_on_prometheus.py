"""The queries about a fleet give what those about each LLMDeployment give, on Prometheus' own engine."""

import itertools
import random

import pytest

from e2e.cluster import packages
from e2e.cluster.base import ClusterError
from tangram.fleet import Objective, Objectives
from tangram.scaling import FleetAnswers, for_fleet, metrics_subject, queries
from tests.support import promtool_answers

pytestmark = pytest.mark.slow

WINDOW_S = 60
END_S = 1560
BOTH = Objectives(Objective(90, 1000), Objective(95, 60))

# Of two LLMDeployments with one served name; one whose pods still have another's name; one of another
# namespace; one without objectives; one with other edges; one of an engine that exports current and previous
# names; one without pods; one that no Prometheus scrapes.
SUBJECTS = {
    "twin-a": metrics_subject("twin-a", "ns", "m/twin", ("a-1-x", "a-1-y"), BOTH),
    "twin-b": metrics_subject("twin-b", "ns", "m/twin", ("b-1-x", "b-2-z"), BOTH),
    "renamed": metrics_subject("renamed", "ns", "m/new", ("r-1-old", "r-2-new"), BOTH),
    "has-name": metrics_subject("has-name", "ns", "m/old", ("h-1-x",), BOTH),
    "elsewhere": metrics_subject("elsewhere", "other", "m/new", ("r-1-old", "e-1-x"), BOTH),
    "plain": metrics_subject("plain", "ns", "m/plain", ("p-1-x",), Objectives()),
    "strict": metrics_subject(
        "strict", "ns", 'm/"q\\', ("s.t-1-x", "s.t-1-y"), Objectives(Objective(99, 700), Objective(90, 9))
    ),
    "ttft-only": metrics_subject("ttft-only", "ns", "m/t", ("t-1-x",), Objectives(Objective(90, 2500))),
    "both-names": metrics_subject("both-names", "ns", "m/both", ("v-1-x",), BOTH),
    "no-pods": metrics_subject("no-pods", "ns", "m/none", (), BOTH),
    "not-scraped": metrics_subject("not-scraped", "ns", "m/not", ("n-1-x",), BOTH),
}
INSTANTS = (20, 70, 400, 905, 940, 1500)


def page(rng, labels, *, decimal=False, counts_arrivals=True, begin=0, end=END_S, names="current"):
    """Series of one scraped page with random counters, every 15 s from `begin` to `end`.

    `names`: "previous" is a version of the engine before metrics were renamed, "both" one in between.
    """
    times = range(begin, end, 15)
    made = {}

    def put(name, more, values):
        made[f"{name}{{{labels}{more}}}"] = dict(zip(times, values, strict=True))

    def growing(most):
        return list(itertools.accumulate(rng.randrange(most) for _ in times))

    for name in (queries.RUNNING, queries.WAITING):
        put(name, "", [rng.randrange(30) for _ in times])
    put(queries.KV_USAGE, "", [rng.random() for _ in times])
    if counts_arrivals:
        put(queries.RECEIVED, "", growing(20))
    for name in (queries.PROMPT_LENGTH, queries.ANSWER_LENGTH):
        put(f"{name}_count", "", growing(15))
        put(f"{name}_sum", "", growing(9000))
    for name, edges in (
        (queries.TTFT, queries.TTFT_BUCKETS),
        (queries.TPOT, queries.TPOT_BUCKETS),
        (queries.ITL, queries.TPOT_BUCKETS),
    ):
        buckets = [growing(4) for _ in (*edges, None)]
        for position, edge in enumerate((*edges, float("inf"))):
            total = [sum(column) for column in zip(*buckets[: position + 1], strict=True)]
            le = "+Inf" if edge == float("inf") else str(edge) if decimal else f"{edge:g}"
            put(f"{name}_bucket", f',le="{le}"', total)
        put(f"{name}_count", "", total)
    renamed = dict(made)
    for current, previous in queries.PREVIOUS_NAMES.items():
        renamed = {name.replace(current, previous): values for name, values in renamed.items()}
    return {"current": made, "previous": renamed, "both": made | renamed}[names]


def scraped_fleet():
    rng = random.Random(3)

    def labels(namespace, model, pod, more='engine="0"'):
        model = model.replace("\\", "\\\\").replace('"', '\\"')
        return f'namespace="{namespace}",model_name="{model}",pod="{pod}",{more}'

    twice = labels("ns", "m/twin", "a-1-x")
    fleet = page(rng, f'{twice},job="annotations"') | page(rng, f'{twice},job="monitor"')
    for engine in (0, 1):
        fleet |= page(rng, labels("ns", "m/twin", "a-1-y", f'engine="{engine}"'), decimal=True)
    fleet |= page(rng, labels("ns", "m/twin", "b-1-x"), end=900, names="previous")
    fleet |= page(rng, labels("ns", "m/twin", "b-2-z"), begin=600)
    fleet |= page(rng, labels("ns", "m/old", "r-1-old"))
    fleet |= page(rng, labels("ns", "m/new", "r-2-new"))
    fleet |= page(rng, labels("ns", "m/old", "h-1-x"))
    fleet |= page(rng, labels("other", "m/new", "e-1-x"))
    fleet |= page(rng, labels("ns", "m/plain", "p-1-x", 'job="no engine label"'), counts_arrivals=False)
    fleet |= page(rng, labels("ns", 'm/"q\\', "s.t-1-x"))
    fleet |= page(rng, labels("ns", 'm/"q\\', "s.t-1-y"), counts_arrivals=False, end=600)
    fleet |= page(rng, labels("ns", "m/t", "t-1-x"))
    for job in ("annotations", "monitor"):
        fleet |= page(rng, labels("ns", "m/both", "v-1-x", f'job="{job}"'), names="both")
    fleet |= page(rng, labels("ns", "m/t", "t-1-forged"))  # not a replica
    return fleet | page(rng, labels("ns", "m/t", "h-1-x"))  # a replica of another


@pytest.fixture(scope="module")
def promtool():
    try:
        return packages.need("promtool")
    except ClusterError as missing:
        pytest.fail(f"these tests need promtool: {missing}", pytrace=False)


@pytest.fixture(scope="module")
def fleet():
    return scraped_fleet()


QUERIES = {
    uid: queries.for_deployment(s.namespace, s.served_name, s.pods, s.objectives, WINDOW_S)
    for uid, s in SUBJECTS.items()
}


@pytest.fixture(scope="module")
def numbers(promtool, fleet, tmp_path_factory):
    """What queries about each LLMDeployment return: (instant, UID, name of the query) -> number or None."""
    places = [(at, uid, name) for at in INSTANTS for uid, by_name in QUERIES.items() for name in by_name]
    questions = [(QUERIES[uid][name], at) for at, uid, name in places]
    file = tmp_path_factory.mktemp("numbers") / "each.yaml"
    answers = promtool_answers.answers(promtool, fleet, questions, file)
    return dict(zip(places, answers, strict=True))


@pytest.mark.parametrize("most_chars", [600, 4000, 48 << 10])
def test_queries_about_a_fleet_return_what_queries_about_each_llmdeployment_return(
    most_chars, promtool, fleet, numbers, tmp_path
):
    asked = for_fleet(SUBJECTS.values(), WINDOW_S, most_chars)
    questions = [(query.promql, at) for at in INSTANTS for query in asked]
    vectors = iter(promtool_answers.vectors(promtool, fleet, questions, tmp_path / "fleet.yaml"))

    compared = 0
    for at in INSTANTS:
        answers = FleetAnswers()
        for query in asked:
            answers.add(query, next(vectors))
        for uid, subject in SUBJECTS.items():
            results = answers.results(subject, WINDOW_S, at)
            assert results.keys() == QUERIES[uid].keys()
            for name in QUERIES[uid]:
                number = numbers[at, uid, name]
                expected = None if number is None else pytest.approx(number, rel=1e-9, abs=1e-12, nan_ok=True)
                if uid in ("has-name", "ttft-only") and name in ("ttft_s", "tpot_s"):
                    expected = None  # there is a pod with this name that is a replica of another
                assert results[name] == expected, (at, uid, name)
                compared += number is not None
    assert compared > 1000
