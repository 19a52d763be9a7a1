"""The four questions, asked of pages whose load is known."""

from dataclasses import replace

import pytest

from tangram.capacity.diagnosis.diagnose import EngineFlags, diagnose
from tangram.capacity.diagnosis.findings import CANNOT_TELL, Diagnosis, Finding
from tangram.capacity.diagnosis.pressure import capacity_tokens
from tangram.capacity.diagnosis.scrape import Scrape
from tangram.capacity.hardware import hardware
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.steps.calibration import coefficients_for
from tangram.capacity.steps.step_model import StepModel
from tangram.catalog import known_model
from tangram.cli.diagnose.metrics_page import parsed
from tests.support.vllm_page import Page, steady


def scrape(page: Page, *, old: bool = False) -> Scrape:
    return parsed(page.text(old=old).encode())


def ask(pages: tuple[Page, Page], *, old: bool = False, **known: object) -> Diagnosis:
    before, after = (scrape(page, old=old) for page in pages)
    return diagnose(before, after, 15.0, **known)  # type: ignore[arg-type]


def bound(found: Diagnosis) -> Finding:
    return found.answers[0]


def phase(found: Diagnosis) -> Finding:
    return found.answers[1]


def pressure(found: Diagnosis) -> Finding:
    return found.answers[2]


def policy(found: Diagnosis) -> Finding:
    return found.answers[3]


def number(answer: Finding, name: str) -> float:
    return next(each.value for each in answer.numbers if each.name == name)


def model_on(sku: str, weights: str = "bf16", tp: int = 1, name: str = "Llama-3.1-8B") -> StepModel:
    architecture = known_model(name)
    assert architecture is not None
    board = hardware(sku)
    held = footprint(architecture, weights, tensor_parallel=tp, hardware=board)
    return StepModel(held, board, coefficients_for("vllm", None, weights, sku).coefficients)


H100 = model_on("H100-80GB-SXM")


def as_modelled(
    step: StepModel, batch: float, prompt: float, output: float, slower: float = 1.0
) -> Diagnosis:
    """A load whose steps take as long as the step-time model says, or `slower` times as long."""
    steps_per_prompt = output / batch
    step_s = step.step_s(
        batch - batch / output, prompt + output / 2, prompt / steps_per_prompt, prompt / 2
    ).total
    return ask(steady(batch=batch, step_s=step_s * slower, prompt=prompt, output=output), step=step)


def test_questions_come_in_the_order_in_which_to_ask() -> None:
    found = ask(steady(batch=4, step_s=0.01))
    assert [answer.question for answer in found.answers] == [
        "compute or memory bound?",
        "prefill, decode or queue?",
        "KV pressure?",
        "scheduler policy?",
    ]


def test_small_batches_of_an_8b_on_an_h100_stand_against_the_memory_wire() -> None:
    found = bound(as_modelled(H100, batch=8, prompt=100, output=1000))
    assert found.verdict == "memory bandwidth"
    # 8B parameters of two bytes, less the embedding, once per step.
    steps_per_s = 1000 / number(found, "measured step, mean")
    assert number(found, "read while busy") == pytest.approx(15.0 * steps_per_s, rel=0.1)


def test_long_prompts_with_short_answers_are_compute_bound() -> None:
    found = bound(as_modelled(H100, batch=16, prompt=4000, output=16))
    assert found.verdict == "compute"
    assert number(found, "of the data sheet's arithmetic") > number(found, "of the data sheet's bandwidth")


def test_steps_that_nothing_on_the_gpu_explains_point_at_the_host() -> None:
    found = bound(as_modelled(H100, batch=8, prompt=100, output=1000, slower=4))
    assert found.verdict == "neither"
    assert "host" in found.next_step


def test_a_model_cut_into_slivers_waits_for_launches() -> None:
    slivers = model_on("B200-180GB-SXM", "fp8", tp=8)
    assert bound(as_modelled(slivers, batch=1, prompt=20, output=400)).verdict == "launch overhead"


def test_more_than_the_data_sheet_is_a_wrong_flag_not_a_finding() -> None:
    found = bound(ask(steady(batch=8, step_s=0.0005), step=H100))
    assert found.verdict == CANNOT_TELL
    assert "--sku" in found.missing[0]


def test_pauses_are_not_taken_for_slow_steps() -> None:
    """Steps of 8 ms with as much pause between them: the page's step count shows it."""
    before, after = steady(batch=8, step_s=0.008, prompt=100, output=1000)
    found = bound(diagnose(scrape(before), scrape(after), 30.0, step=H100))
    assert number(found, "measured step, mean") == pytest.approx(8.0, rel=0.01)


def test_drafts_are_work_of_a_step_but_not_sequences_of_it() -> None:
    """Speculative decoding: three tokens from each row of a step, of which the page counts one interval."""
    before, after = steady(batch=8, step_s=0.0095, prompt=100, output=1000)
    rows = sum(after.itl.values()) - sum(before.itl.values())
    drafts = "vllm:spec_decode_num_draft_tokens_total"
    more_tokens = replace(after, generated=before.generated + 3 * rows, extra=(f"{drafts} {4 * rows}",))
    ends = (replace(before, extra=(f"{drafts} 0",)), more_tokens)
    plain, speculative = bound(ask((before, after), step=H100)), bound(ask(ends, step=H100))
    more = number(speculative, "tokens per step, mean") - number(plain, "tokens per step, mean")
    assert more == pytest.approx(4 * 8, rel=0.01)
    assert number(speculative, "read while busy") == pytest.approx(number(plain, "read while busy"), rel=0.01)
    assert number(speculative, "computed while busy") > 3 * number(plain, "computed while busy")


def test_without_gpu_and_model_steps_of_few_tokens_still_rule_compute_out() -> None:
    found = bound(ask(steady(batch=4, step_s=0.01, prefill_steps=False)))
    assert found.verdict == "not compute"
    assert found.missing == ("--sku", "--model")


def test_without_gpu_and_model_steps_with_prompts_may_be_either() -> None:
    found = bound(ask(steady(batch=32, step_s=0.01)))
    assert found.verdict == CANNOT_TELL
    assert found.missing == ("--sku", "--model")


@pytest.mark.parametrize(
    ("flops", "moved", "verdict"),
    [(9e12, 42e12, "memory bandwidth"), (9e15, 15e12, "compute"), (1e12, 1e12, "neither")],
)
def test_estimates_of_the_engine_are_held_against_the_data_sheet(
    flops: float, moved: float, verdict: str
) -> None:
    before, after = steady(batch=8, step_s=0.01)
    names = ("vllm:estimated_flops_per_gpu_total", "vllm:estimated_read_bytes_per_gpu_total")
    ends = (replace(before, extra=tuple(f"{name} 5" for name in names)),
            replace(after, extra=(f"{names[0]} {5 + flops}", f"{names[1]} {5 + moved}")))  # fmt: skip
    assert bound(ask(ends, hardware=H100.hardware)).verdict == verdict
    without = bound(ask(ends))
    assert without.verdict == ("not compute" if flops / moved < 50 else CANNOT_TELL)
    assert "--sku" in without.missing


@pytest.mark.parametrize(
    ("queue_s", "prefill_s", "verdict"), [(0.01, 0.1, "decode"), (9, 0.1, "queue"), (0.01, 9, "prefill")]
)
def test_time_goes_where_the_sums_say(queue_s: float, prefill_s: float, verdict: str) -> None:
    found = phase(ask(steady(batch=4, step_s=0.01, queue_s=queue_s, prefill_s=prefill_s)))
    assert found.verdict == verdict
    assert number(found, "queue per request") == pytest.approx(queue_s)
    assert number(found, "prefill per request") == pytest.approx(prefill_s)
    assert number(found, "decode per request") == pytest.approx(2.0)


def test_answers_that_share_their_steps_with_prompts_are_not_said_to_lack_bandwidth() -> None:
    mixed = phase(ask(steady(batch=48, step_s=0.03, prompt=3000, output=100)))
    alone = phase(ask(steady(batch=48, step_s=0.03, prompt=30, output=100)))
    assert mixed.verdict == alone.verdict == "decode"
    assert "97% of the tokens in its steps were prompts" in mixed.reason
    assert "--max-num-batched-tokens" in mixed.next_step
    assert "bandwidth" in alone.next_step


def test_old_names_tell_the_same() -> None:
    pages = steady(batch=8, step_s=0.0095, prompt=100, output=1000, kv_usage=0.95, waiting=5)
    new, old = (ask(pages, old=old, step=H100) for old in (False, True))
    assert bound(old).verdict == bound(new).verdict == "memory bandwidth"
    assert phase(old).verdict == phase(new).verdict == "decode"
    assert pressure(old).verdict == pressure(new).verdict == "high"
    assert policy(old).verdict == policy(new).verdict == "held by KV cache"
    assert "vllm:iteration_tokens_total" in bound(old).missing[0]
    assert "vllm:request_queue_time_seconds" in phase(old).missing


def test_old_engines_leave_queue_and_prefill_apart_only_by_who_waits() -> None:
    slow_start = {"batch": 4, "step_s": 0.01, "queue_s": 4.0, "prefill_s": 4.0}
    assert phase(ask(steady(**slow_start, waiting=9), old=True)).verdict == "queue"
    assert phase(ask(steady(**slow_start, waiting=0), old=True)).verdict == "prefill"
    assert phase(ask(steady(**slow_start, waiting=2), old=True)).verdict == "queue or prefill"


def test_before_any_request_has_ended_tokens_tell_where_the_time_goes() -> None:
    before, after = steady(batch=4, step_s=0.01)
    running_still = replace(after, ended=before.ended, queue_s=before.queue_s, prefill_s=before.prefill_s,
                            decode_s=before.decode_s)  # fmt: skip
    found = phase(ask((before, running_still)))
    assert found.verdict == "decode"
    assert "longer --interval" in found.missing[0]


def test_preemptions_are_high_pressure_whatever_the_gauge_shows() -> None:
    before, after = steady(batch=4, step_s=0.01, kv_usage=0.4)
    found = pressure(ask((before, replace(after, preemptions=3))))
    assert found.verdict == "high"
    assert number(found, "preemptions in between") == 3


@pytest.mark.parametrize(
    ("usage", "waiting", "verdict"),
    [(0.2, 0, "low"), (0.75, 0, "moderate"), (0.97, 0, "moderate"), (0.97, 4, "high")],
)
def test_pressure_is_usage_and_whether_anybody_waits(usage: float, waiting: float, verdict: str) -> None:
    found = pressure(ask(steady(batch=4, step_s=0.01, kv_usage=usage, waiting=waiting)))
    assert found.verdict == verdict
    assert number(found, "capacity") == 16 * 27000


def test_a_usage_in_percent_is_not_taken_for_a_share() -> None:
    assert pressure(ask(steady(batch=4, step_s=0.01, kv_usage=37.0))).verdict == CANNOT_TELL


def test_capacity_is_what_the_engine_says_before_what_blocks_multiply_to() -> None:
    hybrid = {"block_size": "4", "num_gpu_blocks": "9000", "kv_cache_size_tokens": "512000"}
    assert capacity_tokens(scrape(Page(config=hybrid))) == 512000
    assert capacity_tokens(scrape(Page(config={"block_size": "16", "num_gpu_blocks": "None"}))) is None


def test_a_queue_with_all_places_taken_is_the_sequence_limit() -> None:
    pages = steady(batch=64, step_s=0.02, waiting=12)
    assert policy(ask(pages, limits=EngineFlags(64))).verdict == "held by sequence limit"
    told = tuple(replace(page, config={"max_num_seqs": "64"}) for page in pages)
    assert policy(ask((told[0], told[1]))).verdict == "held by sequence limit"
    guessed = policy(ask(pages))
    assert guessed.verdict == "held by sequence limit, it seems"
    assert guessed.missing[0] == "--max-num-seqs"


def test_a_queue_with_places_free_is_not_blamed_on_the_sequence_limit() -> None:
    found = policy(ask(steady(batch=64, step_s=0.02, waiting=12), limits=EngineFlags(256, 8192)))
    assert found.verdict == CANNOT_TELL
    assert found.missing == ()


def test_steps_that_fill_the_budget_hold_prompts_back() -> None:
    pages = steady(batch=64, step_s=0.2, prompt=2048, output=1, prefill_steps=True, waiting=12)
    found = policy(ask(pages, limits=EngineFlags(256, 1024)))
    assert found.verdict == "held by token budget"


def test_nobody_waiting_means_admission_is_not_the_problem() -> None:
    assert policy(ask(steady(batch=4, step_s=0.01))).verdict == "admits at once"


def test_a_restart_between_the_readings_is_no_traffic_of_billions() -> None:
    before, after = steady(batch=4, step_s=0.01)
    for ends in ((after, before), (before, replace(after, started=after.started + 5))):
        found = ask(ends)
        assert [answer.verdict for answer in found.answers[:2]] == [CANNOT_TELL] * 2
        assert "restarted" in bound(found).reason
        assert pressure(found).verdict == "low", "the gauge is still true"


def test_no_traffic_is_said_and_not_divided_by() -> None:
    quiet = Page(ended=5, generated=100)
    found = ask((quiet, quiet))
    assert [answer.verdict for answer in found.answers] == [CANNOT_TELL, CANNOT_TELL, "low", CANNOT_TELL]
    assert "no traffic" in bound(found).reason


def test_requests_that_run_without_a_token_are_a_stuck_engine() -> None:
    stuck = Page(running=7, waiting=3, generated=100)
    assert "7 requests run, but not one token" in bound(ask((stuck, stuck))).reason


def test_numbers_that_no_engine_means_are_left_out_and_named() -> None:
    before, after = steady(batch=4, step_s=0.01)
    for value in ("NaN", "+Inf", "-Inf", "-3", "1e300"):
        usage = 'vllm:kv_cache_usage_perc{engine="0",model_name="llama"}'
        broken = parsed(after.text().replace(f"{usage} 0.1", f"{usage} {value}").encode())
        found = diagnose(scrape(before), broken, 15.0)
        assert pressure(found).verdict == CANNOT_TELL
        assert "vllm:kv_cache_usage_perc" in found.notes[0]
        assert len(broken.samples) == len(scrape(after).samples) - 1


def test_a_histogram_without_buckets_costs_only_what_buckets_tell() -> None:
    pages = [
        "\n".join(line for line in page.text().splitlines() if "_bucket" not in line) + "\n"
        for page in steady(batch=4, step_s=0.01)
    ]
    before, after = (parsed(page.encode()) for page in pages)
    found = diagnose(before, after, 15.0, step=H100)
    assert bound(found).verdict != CANNOT_TELL
    assert phase(found).verdict == "decode"
    assert bound(diagnose(before, after, 15.0)).verdict == CANNOT_TELL


def test_engines_of_one_page_are_added_up() -> None:
    pages = [
        parsed((one.text() + replace(one, engine="1", kv_usage=0.8).text()).encode())
        for one in steady(batch=8, step_s=0.0095, prompt=100, output=1000)
    ]
    found = diagnose(pages[0], pages[1], 15.0, step=H100, limits=EngineFlags(8))
    assert found.engines == 2
    assert number(bound(found), "measured step, mean") == pytest.approx(9.5, rel=0.01)
    assert number(policy(found), "running, second reading") == 16
    assert number(pressure(found), "usage, second reading") == 80
    assert "2 engines" in found.notes[0]


def test_places_are_counted_per_engine() -> None:
    """Twelve run on two engines of eight places each: there is room, so the limit is not what holds."""
    pages = [
        parsed((one.text() + replace(one, engine="1", running=4, waiting=0).text()).encode())
        for one in steady(batch=8, step_s=0.0095, prompt=100, output=1000, waiting=3)
    ]
    assert policy(diagnose(pages[0], pages[1], 15.0, limits=EngineFlags(8, 8192))).verdict == CANNOT_TELL


def test_prompt_tokens_from_the_prefix_cache_are_not_computed() -> None:
    before, after = steady(batch=16, step_s=0.02, prompt=4000, output=100)
    ended = after.ended - before.ended
    cached = replace(after, cached_tokens=3900 * ended)
    cold, warm = bound(ask((before, after), step=H100)), bound(ask((before, cached), step=H100))
    saved = number(cold, "tokens per step, mean") - number(warm, "tokens per step, mean")
    assert saved == pytest.approx(3900 * ended / number(cold, "steps"), rel=0.01)
    assert number(warm, "computed while busy") < number(cold, "computed while busy") / 5
    assert number(policy(ask((before, cached))), "prompt tokens found in the prefix cache") == pytest.approx(
        97.5
    )


def test_adapters_of_one_engine_are_told_apart() -> None:
    both = parsed((Page(model="base").text() + Page(model="sql-lora").text()).encode())
    assert both.models == ("base", "sql-lora")
    one = both.of_model("base")
    assert one.models == ("base",)
    assert one.config("block_size") == "16", "engine-wide settings have no model"


def test_a_zero_interval_is_a_programming_error() -> None:
    page = scrape(Page())
    with pytest.raises(ValueError, match="above 0"):
        diagnose(page, page, 0.0)
