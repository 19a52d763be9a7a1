"""Lengths as counted in a file, for `tangram size` and `tangram plan -f`."""

import pytest

from tangram.catalog import InputError
from tangram.cli.options.lengths import lengths_given, read_histogram
from tangram.fleet.lengths import around, counted, fixed
from tests.support.plans import Planner, gpu, inventory


def file(tmp_path, text):
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    return path


def test_a_histogram_and_a_list_of_requests_say_the_same(tmp_path):
    histogram = read_histogram(file(tmp_path, "tokens,count\n100,2\n300,1\n"))

    assert histogram == counted([(100, 2), (300, 1)])
    assert histogram == read_histogram(file(tmp_path, "tokens\n300\n100\n100\n"))
    assert histogram.mean == pytest.approx(500 / 3)


HOSTILE = {
    "nothing": ("", "is empty"),
    "no rows": ("tokens,count\n", "has a header but no rows"),
    "another header": ("length,count\n1,2\n", "lacks a column: tokens"),
    "no requests": ("tokens,count\n5,0\n", "there is no length in it"),
    "no tokens": ("tokens,count\n0,1\n", "line 2: tokens must be a whole number from 1 to 1048576, not '0'"),
    "negative": ("tokens,count\n5,-1\n", "line 2: count must be a whole number"),
    "half a token": ("tokens,count\n5,1\n1.5,1\n", "line 3: tokens must be a whole number"),
    "infinite": ("tokens,count\ninf,1\n", "line 2: tokens must be a whole number"),
    "many digits": ("tokens,count\n" + "9" * 5000 + ",1\n", "line 2: tokens must be a whole number"),
    "other digits": ("tokens,count\n\u0665,1\n", "line 2: tokens must be a whole number"),
    "a cell too many": ("tokens,count\n5,1,1\n", "has 3 cells under 2 columns"),
    "binary": ("tokens,count\n\0,1\n", "is binary"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_is_no_histogram_is_one_line_with_its_place(tmp_path, case):
    text, message = HOSTILE[case]

    with pytest.raises(InputError) as refused:
        read_histogram(file(tmp_path, text))

    assert message in f"{refused.value.field} {refused.value.problem}"
    assert len(refused.value.problem) < 200


@pytest.mark.parametrize(
    ("mean", "p90", "found"),
    [
        (None, None, around(1024)),
        (500, None, around(500)),
        (500, 500, fixed(500)),
        (500, 1000, around(500)),
    ],
)
def test_options_say_a_mean_and_a_p90(mean, p90, found):
    assert lengths_given("input", 1024, mean, p90, None) == found


@pytest.mark.parametrize("p90", [499, 1136, -1])
def test_a_p90_that_no_lengths_of_that_mean_have_is_refused(p90):
    with pytest.raises(InputError) as refused:
        lengths_given("input", 1024, 500, p90, None)

    assert refused.value.field == "--input-p90"
    assert "from 1 to 2.27 times --input" in refused.value.problem


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def llm(**traffic):
    spec = {"model": {"uri": "pvc://m/llama-3.1-8b"}, "engine": {"maxModelLen": 8192}}
    spec |= {"objectives": {"ttft": {"milliseconds": 450}}, "traffic": {"requestsPerSecond": 60} | traffic}
    spec |= {"scaling": {"minReplicas": 1, "maxReplicas": 60}}
    return {"kind": "LLMDeployment", "metadata": {"name": "chat"}, "spec": spec}


FLEET = inventory(*(gpu(f"g{i}", sku="L40S") for i in range(60)))


def replicas(plan):
    return sum(each["replicas"] for each in plan["deployments"][0]["chosen"])


def test_a_plan_heeds_a_histogram_beside_its_file(planner, tmp_path):
    file(tmp_path, "tokens,count\n2000,1\n")

    by_file = planner.plan(FLEET, llm(inputTokens={"histogram": "lengths.csv"}))
    alike = planner.plan(FLEET, llm(inputTokens={"fixed": 2000}))
    usual = planner.plan(FLEET, llm(inputTokens={"mean": 2000}))

    assert replicas(by_file) == replicas(alike) < replicas(usual)


def test_a_histogram_that_is_missing_or_has_company_is_told_with_its_path(planner):
    path = "LLMDeployment: spec.traffic.inputTokens"

    assert f"{path}.histogram: " in planner.refused(FLEET, llm(inputTokens={"histogram": "none.csv"}))
    assert "exactly one of mean, fixed and histogram" in planner.refused(
        FLEET, llm(inputTokens={"histogram": "none.csv", "mean": 5})
    )
    assert "must be the name of a CSV file" in planner.refused(FLEET, llm(inputTokens={"histogram": 7}))
