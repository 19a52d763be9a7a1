"""Whatever a page says, the diagnosis has four answers, finite numbers, and a way on where it cannot tell."""

import json
from dataclasses import asdict

from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.capacity.diagnosis import scrape as m
from tangram.capacity.diagnosis.diagnose import EngineFlags, diagnose
from tangram.capacity.diagnosis.findings import CANNOT_TELL
from tangram.capacity.diagnosis.scrape import Interval, MetricSample, Scrape
from tangram.capacity.hardware import Hardware, hardware
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.steps.calibration import coefficients_for
from tangram.capacity.steps.step_model import StepModel
from tangram.catalog import InputError, known_model
from tangram.cli.diagnose.metrics_page import parsed
from tests.support.vllm_page import steady

NAMES = m.ALL_NAMES
SUFFIXES = ("", "", "_sum", "_count", "_bucket", "_total")
VALUES = st.one_of(
    st.sampled_from(["0", "1", "NaN", "+Inf", "-Inf", "-1", "1e-320", "1e30", "1e31", "1" * 400]),
    st.integers(0, 10**6).map(str),
    st.floats(0, 1e9).map(str),
)
LABELS = st.dictionaries(
    st.sampled_from(["model_name", "engine", "le", "block_size", "num_gpu_blocks", "max_num_seqs", "reason"]),
    st.sampled_from(["", "0", "1", "16", "+Inf", "NaN", "None", "²", "llama", "a\\\\b", "9" * 30]),
    max_size=4,
)


@st.composite
def growing(draw: st.DrawFn) -> tuple[str, str]:
    """One series at both readings: counters mostly grow, or every page would be that of a restart."""
    name = draw(st.sampled_from(NAMES)) + draw(st.sampled_from(SUFFIXES))
    labels = ",".join(f'{label}="{value}"' for label, value in draw(LABELS).items())
    first = draw(st.one_of(st.integers(0, 1000).map(str), VALUES))
    second = str(int(first) + draw(st.integers(0, 10**6))) if first.isdigit() and len(first) < 9 else first
    return f"{name}{{{labels}}} {first}", f"{name}{{{labels}}} {second}"


def busy() -> st.SearchStrategy[tuple[str, str]]:
    """A consistent engine at work, so that the questions behind the obstacles are asked too."""

    def texts(batch: int, step_ms: float, prompt: int, output: int, **gauges: float) -> tuple[str, str]:
        first, second = steady(batch=batch, step_s=step_ms / 1e3, prompt=prompt, output=output, **gauges)
        return first.text(), second.text()

    return st.builds(
        texts,
        batch=st.integers(1, 300),
        step_ms=st.floats(0.1, 1e4),
        prompt=st.integers(1, 10**5),
        output=st.integers(2, 10**4),
        waiting=st.integers(0, 50),
        kv_usage=st.floats(0, 1),
    )


def joined(found: list[tuple[str, str]]) -> tuple[str, str]:
    return "\n".join(("vllm:x 1", *(a for a, _ in found))), "\n".join(("vllm:x 1", *(b for _, b in found)))


SOME = st.lists(growing(), max_size=40)
PAGES = st.one_of(SOME.map(joined), st.tuples(busy(), SOME).map(lambda both: joined([both[0], *both[1]])))


def step_model(name: str, sku: str) -> StepModel:
    architecture = known_model(name)
    assert architecture is not None
    board = hardware(sku)
    return StepModel(footprint(architecture, "bf16", hardware=board), board, coefficients_for().coefficients)


STEPS = (None, step_model("Llama-3.1-8B", "H100-80GB-SXM"), step_model("gpt-oss-120b", "H200-141GB-SXM"))
BOARDS = (None, hardware("T4"))
LIMITS = (None, EngineFlags(1, 512), EngineFlags(64))


@given(PAGES, st.floats(0.001, 1e5), st.sampled_from(STEPS), st.sampled_from(BOARDS), st.sampled_from(LIMITS))
@settings(deadline=None)
def test_any_two_pages_have_a_diagnosis(
    pages: tuple[str, str],
    seconds: float,
    step: StepModel | None,
    board: Hardware | None,
    limits: EngineFlags | None,
) -> None:
    before, after = (parsed(page.encode()) for page in pages)
    found = diagnose(before, after, seconds, hardware=board, step=step, limits=limits)
    assert len(found.answers) == 4
    json.dumps(asdict(found), allow_nan=False)
    for answer in found.answers:
        assert answer.verdict
        assert answer.reason
        if answer.verdict == CANNOT_TELL:
            assert answer.missing or answer.next_step


@given(PAGES, st.floats(0.001, 1e5))
@settings(deadline=None)
def test_a_page_that_does_not_change_shows_no_work(pages: tuple[str, str], seconds: float) -> None:
    still = parsed(pages[0].encode())
    compute, where, _, _ = diagnose(still, still, seconds, step=STEPS[1]).answers
    assert compute.verdict == where.verdict == CANNOT_TELL


def refusal(page: str, content_type: str) -> str:
    try:
        parsed(page.encode("utf-8", errors="replace"), content_type)
    except InputError as error:
        return str(error)
    return ""


@given(st.one_of(st.text(), st.binary().map(lambda raw: raw.decode("latin-1"))))
def test_any_text_is_a_page_or_one_clear_line(text: str) -> None:
    name = NAMES[0]
    for content_type in ("", "application/openmetrics-text"):
        for page in (text, f"{name} 1\n{name}{text}\n", f"# TYPE {name} histogram\n{name}{{{text}}} 1\n"):
            assert "\n" not in refusal(page, content_type)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_growth_is_the_difference_and_never_below_zero(start: float, end: float) -> None:
    def page(value: float) -> Scrape:
        return Scrape.of([MetricSample("vllm:prompt_tokens_total", {}, value)])

    grown = Interval(page(start), page(end), 15.0).increase(m.PROMPT_TOKENS)
    assert grown == max(0.0, end - start)
    assert (Interval(page(start), page(end), 15.0).restart() is not None) == (end < start)
