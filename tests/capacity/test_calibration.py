"""Coefficients: the ladder from version to engine to all, their confidence, live correction, and the fit."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.calibrate.__main__ import equal
from benchmarks.calibrate.fit import Fit, errors, fit
from benchmarks.calibrate.points import Points, measured
from benchmarks.calibrate.priors import DENSE, EXPERTS
from benchmarks.calibrate.twin import step, tpot
from tangram.capacity.steps.calibration import (
    Basis,
    CalibrationSample,
    coefficients_for,
    correct,
    kv_precision,
    load,
)
from tangram.capacity.steps.step_model import Coefficients, StepModel


@pytest.fixture(scope="module")
def points() -> Points:
    found = measured()
    return found.take(found.labels["kind"] != "ep")


@pytest.fixture(scope="module")
def fitted(points: Points) -> Fit:
    return fit(points)


# --- the ladder


@pytest.mark.parametrize(
    ("engine", "version", "basis", "key"),
    [
        ("vllm", "0.18.0", Basis.VERSION, "vllm 0.18.0"),
        ("vLLM", " 0.18.0 ", Basis.VERSION, "vllm 0.18.0"),
        ("TensorRT-LLM", "1.0.0rc3", Basis.VERSION, "trtllm 1.0.0rc3"),
        ("vllm", "99.0", Basis.ENGINE, "vllm"),
        ("vllm", None, Basis.ENGINE, "vllm"),
        ("vllm", "", Basis.VERSION, "vllm (version not told)"),
        ("tangram", "0.1.0", Basis.ALL, "all"),
        ("tangram", "", Basis.ALL, "all"),
        ("", "", Basis.ALL, "all"),
        (None, None, Basis.ALL, "all"),
        ("roofline", None, Basis.ROOFLINE, "roofline"),
    ],
)
def test_an_unknown_version_falls_back_to_its_engine_and_an_unknown_engine_to_all(
    engine: str | None, version: str | None, basis: Basis, key: str
) -> None:
    found = coefficients_for(engine, version)

    assert (found.basis, found.key) == (basis, key)


def test_what_was_never_measured_is_marked() -> None:
    assert not coefficients_for("vllm", None, "fp8", "H100-80GB-SXM").unverified
    assert coefficients_for("vllm", None, "fp8", "L40S").unverified
    assert coefficients_for("vllm", None, "int4", "H100-80GB-SXM").unverified
    assert coefficients_for("tangram", None, "fp8", "H100-80GB-SXM").unverified
    assert coefficients_for("roofline").unverified


def test_where_no_engine_is_named_only_the_gpu_and_the_format_can_be_unmeasured() -> None:
    assert not coefficients_for(None, None, "fp8", "H100-80GB-SXM").unverified
    assert coefficients_for(None, None, "fp8", "L40S").unverified
    assert coefficients_for(None, None, "int4", "H100-80GB-SXM").unverified


def test_less_known_means_larger_errors_stated() -> None:
    """Unless luck has it otherwise, which the data decides: so only the ends of the ladder are compared."""
    known = coefficients_for("trtllm", "1.0.0rc3", "fp8", "H100-80GB-SXM")
    unknown = coefficients_for("tangram", None, "fp8", "L40S")

    assert known.error_p50 is not None
    assert unknown.error_p50 is not None
    assert known.error_p50 < unknown.error_p50
    assert all(entry["error"]["p50"] <= entry["error"]["p90"] for entry in load()["versions"].values())


def test_every_entry_has_every_coefficient_within_the_bounds_of_physics() -> None:
    names = {field.name for field in fields(Coefficients)}
    priors = {**DENSE.priors, **EXPERTS.priors}
    document = load()

    for entry in (document["all"], *document["engines"].values(), *document["versions"].values()):
        assert set(entry["coefficients"]) == names
        assert 0 <= entry["burst"] <= 1
        for name, prior in priors.items():
            assert prior.low * 0.999 <= entry["coefficients"][name], (entry["key"], name)


def test_intervals_hold_the_coefficients_of_most_names() -> None:
    document = load()["all"]
    inside = [
        low * 0.97 <= document["coefficients"][name] <= high * 1.03
        for name, (low, high) in document["interval"].items()
    ]

    assert sum(inside) >= len(inside) - 2


def test_the_cache_is_kept_in_eight_bits_beside_eight_bit_weights() -> None:
    assert kv_precision("trtllm", "fp8") == kv_precision("vllm", "NVFP4") == "fp8"
    assert kv_precision("vllm", "bf16") == kv_precision("sglang", "fp8_block") == "bf16"


# --- live correction


def test_no_sample_corrects_nothing() -> None:
    assert correct([], 0.1).factor == 1
    assert (
        correct(
            [
                CalibrationSample(math.nan, 1),
                CalibrationSample(0, 1),
                CalibrationSample(1, 0),
                CalibrationSample(math.inf, 1),
            ],
            0.1,
        ).samples
        == 0
    )


def test_three_samples_that_agree_say_most_of_what_they_say() -> None:
    twice = [CalibrationSample(2.0, 1.0)] * 3

    assert 1.6 < correct(twice, 0.1).factor < 2.0
    assert correct(twice[:1], 0.1).factor < correct(twice, 0.1).factor


def test_a_prediction_that_is_usually_right_is_harder_to_move() -> None:
    twice = [CalibrationSample(2.0, 1.0)] * 3

    assert correct(twice, 0.03).factor < correct(twice, 0.15).factor


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.floats(0.01, 0.5))
def test_a_correction_lies_between_none_and_the_mean_of_the_samples(
    ratios: list[float], error: float
) -> None:
    mean = sum(math.log(ratio) for ratio in ratios) / len(ratios)

    factor = correct([CalibrationSample(ratio, 1.0) for ratio in ratios], error).factor

    assert min(0.0, mean) - 1e-9 <= math.log(factor) <= max(0.0, mean) + 1e-9


# --- the fit


def test_the_fit_computes_steps_as_the_package_does(points: Points, fitted: Fit) -> None:
    values = fitted.values(points)
    batch, context = points["batch"], points["input"] + points["output"] / 2
    prompt = np.where(np.arange(len(points)) % 2, points["input"], 0.0)
    columns = step(values, points, batch, context, prompt, prompt / 2)

    for i in range(0, len(points), 7):
        coefficients = Coefficients(**{name: float(column[i]) for name, column in values.items()})
        model = StepModel(*points.loads[i], coefficients)
        one = model.step_s(batch[i], context[i], prompt[i], prompt[i] / 2).total
        assert one == pytest.approx(columns[i], rel=1e-12)


def test_the_same_points_give_the_shipped_coefficients(fitted: Fit) -> None:
    """`python -m benchmarks.calibrate --check` compares everything; this, in a second, the coefficients."""
    document = load()
    shipped = [("", "", document["all"])]
    shipped += [(name, "", entry) for name, entry in document["engines"].items()]
    for engine, version, entry in shipped:
        for name, value in fitted.of(engine, version).items():
            assert entry["coefficients"][name] == pytest.approx(value, rel=0.02), (engine, name)


def test_step_times_err_less_than_the_report_claims(points: Points, fitted: Fit) -> None:
    error = 100 * errors(fitted, points)[points.labels["kind"] == "dense"]

    assert np.median(error) < 4.0
    assert np.percentile(error, 90) < 11.5


def test_a_combination_that_the_fit_has_not_seen_errs_less_than_the_reference(
    points: Points, fitted: Fit
) -> None:
    """Every fourth combination held out together, which is harder than one by one (11 % in the reference)."""
    names = sorted(set(points.labels["combination"][points.labels["kind"] == "dense"]))[::4]
    held = np.isin(points.labels["combination"], names)

    error = 100 * errors(fit(points.take(~held), fitted), points.take(held))

    assert np.median(error) < 8.0
    assert np.percentile(error, 90) < 25.0


def test_the_reference_is_beaten_by_the_form_not_by_the_number_of_keys(points: Points, fitted: Fit) -> None:
    """With what all engines have in common alone: no engine, no version."""
    dense = points.take(points.labels["kind"] == "dense")
    common = {**fitted.dense.common(), **fitted.experts.common()}
    error = 100 * np.abs(tpot(common, dense) / dense["tpot"] - 1)

    assert np.median(error) < 9.0
    assert np.percentile(error, 90) < 25.0


def test_a_fit_does_not_depend_on_where_it_starts(points: Points, fitted: Fit) -> None:
    """Steps do not: coefficients are not unique, their sum is."""
    dense = points.take(points.labels["kind"] == "dense")
    moved = replace(fitted, dense=replace(fitted.dense, unknowns=fitted.dense.unknowns + 0.3))

    again = fit(dense, moved)

    assert tpot(again.values(dense), dense) == pytest.approx(tpot(fitted.values(dense), dense), rel=0.015)


def test_files_are_the_same_up_to_the_last_digits_and_not_further() -> None:
    assert equal("a 1.001 b 2e-05 c 0", "a 1.002 b 2.01e-05 c 0")
    assert not equal("a 1.00", "a 1.03")
    assert not equal("a 1", "b 1")
    assert not equal("a 1", "a 1 2")
