"""Scores of predictions against anybody's points."""

import csv
import gzip
import math
from pathlib import Path

import pytest

from tangram.capacity.accuracy.points import points
from tangram.capacity.accuracy.score import OVERALL, Scores, predict, score, step_tokens
from tangram.capacity.hardware import hardware
from tangram.capacity.steps.calibration import Basis
from tangram.catalog import Architecture, InputError, known_model

DATA = Path(__file__).parents[2] / "benchmarks/calibrate/data/measured_ttft_tpot.csv.gz"
ROW: dict[str, str | None] = {
    "id": "one",
    "model": "Llama-3.1-8B",
    "gpu": "h100_sxm",
    "tp": "1",
    "backend": "vllm",
    "backend_version": "0.18.0",
    "weights_precision": "bf16",
    "isl": "1024",
    "osl": "256",
    "concurrency": "8",
    "ttft_ms": "60",
    "tpot_ms": "8",
    "measured": "",
}


def _known(name: str) -> Architecture:
    found = known_model(name)
    if found is None:
        raise InputError("model", f"{name!r} is not known")
    return found


def _row(**changes: str | None) -> dict[str, str | None]:
    return {**ROW, **changes}


@pytest.fixture(scope="module")
def dense() -> list[dict[str, str | None]]:
    with gzip.open(DATA, "rt", encoding="utf-8", newline="") as file:
        return [dict(row) for row in csv.DictReader(file) if row["model"] != "gpt-oss-120b"]


@pytest.fixture(scope="module")
def scored(dense: list[dict[str, str | None]]) -> Scores:
    return score(dense, _known)


def test_the_measured_points_err_less_than_the_report_claims(scored: Scores) -> None:
    overall = scored.scores[-1]

    assert overall.n == 817
    assert overall.tpot is not None
    assert overall.ttft is not None
    assert overall.tpot.median < 5.0  # reference: 9
    assert overall.tpot.p90 < 15  # reference: 25
    assert overall.ttft.median < 30  # wanted: 35


def test_three_live_samples_leave_less_than_the_reference(dense: list[dict[str, str | None]]) -> None:
    overall = score(dense, _known, correct_by=3).scores[-1]

    assert overall.tpot is not None
    assert overall.ttft is not None
    assert overall.tpot.median < 4.4
    assert overall.tpot.p90 < 14
    assert overall.ttft.median < 24
    assert overall.ttft.p90 < 62
    assert overall.n == 817 - 3 * 11  # eleven combinations of model, GPU, engine and precision


def test_scores_come_by_key_in_order_of_appearance_and_overall_last(scored: Scores) -> None:
    keys = [each.key for each in scored.scores]

    assert keys[0] == "Llama-3.1-70B, b200_sxm, trtllm, nvfp4"
    assert keys[-1] == OVERALL
    assert len(keys) == len(set(keys))
    assert sum(each.n for each in scored.scores[:-1]) == scored.scores[-1].n


def test_live_samples_move_predictions_towards_a_deployment_that_is_slower() -> None:
    slow = [_row(concurrency=str(8 * (i + 1)), tpot_ms=str(30 + i)) for i in range(6)]

    before = score(slow, _known).points[-1]
    after = score(slow, _known, correct_by=3).points[-1]

    assert before.point == after.point
    assert after.tpot_error is not None
    assert before.tpot_error is not None
    assert after.tpot_error < before.tpot_error / 1.4


@pytest.mark.parametrize(
    "other",
    [{"model": "Llama-3-8B"}, {"gpu": "h200_sxm"}, {"backend": "sglang"}, {"weights_precision": "fp8"}],
)
def test_rows_of_other_combinations_do_not_correct(other: dict[str, str]) -> None:
    slow, own = [_row(tpot_ms="30")] * 3, [_row(**other)] * 4

    kept = score([*slow, *own], _known, correct_by=3).points

    assert [each.point.line for each in kept] == [8]
    assert kept == score([_row(tpot_ms="1")] * 3 + own, _known, correct_by=3).points


def test_the_first_rows_of_a_combination_are_left_out_whatever_their_tp_and_version() -> None:
    rows = [_row(tp="2"), _row(backend_version="0.11.2"), *[_row()] * 3, _row(tp="2"), _row(gpu="h200_sxm")]

    kept = score(rows, _known, correct_by=3).points

    assert [each.point.line for each in kept] == [5, 6, 7]


def test_what_samples_say_holds_less_at_another_tp_and_least_at_another_version() -> None:
    targets = [{}, {"tp": "2"}, {"backend_version": "0.11.2"}]
    said = []
    for changes in targets:
        found = score([_row(tpot_ms="30")] * 3 + [_row(**changes)], _known, correct_by=3).points[0]
        said.append(math.log(found.tpot_s / score([_row(**changes)], _known).points[0].tpot_s))

    assert said[0] > said[1] > said[2] > 0


@pytest.mark.parametrize("ttft_ms", ["1", "60", "100000"])
@pytest.mark.parametrize("concurrency", ["1", "8", "800"])
def test_first_tokens_of_few_requests_say_little_of_queues(ttft_ms: str, concurrency: str) -> None:
    target = _row(concurrency=concurrency)

    after = score([_row(ttft_ms=ttft_ms)] * 3 + [target], _known, correct_by=3).points[0].ttft_s
    factor = after / score([target], _known).points[0].ttft_s

    assert 0.7 <= factor <= 1.5
    if concurrency == "800":
        assert 0.99 < factor < 1.01


def test_a_format_in_the_name_of_a_model_does_not_contradict_the_column() -> None:
    names = ("Qwen3-32B", "Qwen/Qwen3-32B-AWQ", "Qwen3-32B-FP8")
    rows = [_row(model=name, weights_precision=form) for form in ("bf16", "fp8", "awq") for name in names]

    found = [each.tpot_s for each in score(rows, _known).points]

    assert [len(set(found[at : at + 3])) for at in (0, 3, 6)] == [1, 1, 1]
    assert len(set(found)) == 3


def test_either_time_may_be_missing() -> None:
    found = score([_row(ttft_ms=""), _row(tpot_ms=None)], _known)
    overall = found.scores[-1]

    assert overall.n == 2
    assert found.points[0].ttft_error is None
    assert found.points[1].tpot_error is None
    assert score([_row(ttft_ms=None)], _known).scores[-1].ttft is None


def test_optional_columns_may_be_absent() -> None:
    bare = {name: value for name, value in ROW.items() if name not in {"id", "backend_version", "measured"}}

    assert score([bare], _known).points[0].basis is Basis.ENGINE


def test_an_engine_that_nobody_measured_falls_back_and_is_marked() -> None:
    found = score([_row(backend="tangram", backend_version="0.1.0"), _row(gpu="L40S")], _known).points

    assert found[0].basis is Basis.ALL
    assert all(each.unverified for each in found)


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"gpu": "abacus"}, "line 2: gpu", "not in the catalog"),
        ({"tp": "0"}, "line 2: tp", "not a positive number"),
        ({"tp": "1.5"}, "line 2: tp", "not a whole number"),
        ({"tp": "3"}, "line 2: tensor parallel", "does not divide"),
        ({"isl": "many"}, "line 2: isl", "not a number"),
        ({"isl": "nan"}, "line 2: isl", "not a positive number"),
        ({"osl": "-5"}, "line 2: osl", "not a positive number"),
        ({"osl": "1e12"}, "line 2: osl", "at most"),
        ({"concurrency": "inf"}, "line 2: concurrency", "not a positive number"),
        ({"concurrency": ""}, "line 2: concurrency", "is empty"),
        ({"tpot_ms": "0"}, "line 2: tpot_ms", "not a positive number"),
        ({"ttft_ms": "", "tpot_ms": ""}, "line 2: tpot_ms", "nothing was measured"),
        ({"model": "Llama-99"}, "line 2: model", "not known"),
        ({"weights_precision": "fp7"}, "line 2: precision", "not a precision of weights"),
        ({"backend": None}, "line 2", "column backend is missing"),
    ],
)
def test_a_row_that_cannot_be_read_is_told_by_line_and_column(
    changes: dict[str, str | None], field: str, problem: str
) -> None:
    with pytest.raises(InputError) as caught:
        score([_row(**changes)], _known)

    assert caught.value.field == field
    assert problem in caught.value.problem


@pytest.mark.parametrize(("rows", "by"), [([], 0), ([ROW], 1), ([ROW], -1)])
def test_nothing_to_score_is_said(rows: list[dict[str, str | None]], by: int) -> None:
    with pytest.raises(InputError):
        score(rows, _known, correct_by=by)


def test_vllm_takes_fewer_tokens_per_step_on_small_gpus_and_on_every_a100() -> None:
    assert step_tokens("vllm", hardware("L4")) == step_tokens("vllm", hardware("A100-80GB-SXM")) == 2048
    assert step_tokens("vllm", hardware("H100-80GB-SXM")) == step_tokens("trtllm", hardware("L4")) == 8192


def test_more_requests_at_once_never_make_tokens_faster() -> None:
    rows = [_row(concurrency=str(count)) for count in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)]

    found = [predict(point, _known(point.model)).tpot_s for point in points(rows)]

    assert found == sorted(found)
