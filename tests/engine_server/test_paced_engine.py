"""A pace makes the steps of an engine on a CPU as long as those of a slower device, and counts late ones."""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from e2e.paced_engine import step_pace
from e2e.paced_engine.__main__ import main
from e2e.paced_engine.step_pace import VARIABLE, PacedStep, StepPace, paced_engine
from tangram_engine.config import EngineConfig
from tangram_engine.messages import EngineInfo, StepStats, TokenOutput
from tangram_engine.start_error import StartError
from tests.support.engine_process import engine_process

INFO = EngineInfo(
    block_size=16,
    num_blocks=64,
    max_model_len=1024,
    max_num_seqs=64,
    max_num_batched_tokens=512,
    vocab_size=4096,
    dtype="float32",
    device="cpu",
    load_seconds=0.0,
    warmup_seconds=0.0,
)
CONFIG = EngineConfig(model=Path("model"))
PACE = StepPace(0.08, 0.002, 0.0005)


@dataclass
class TimedStep:
    """A step that takes some seconds of a clock of its own, which its sleep moves on, too."""

    step_s: float
    stats: StepStats
    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def __call__(self) -> tuple[list[TokenOutput], StepStats]:
        self.now += self.step_s
        return [], self.stats


def stepped(step: TimedStep, steps: int = 1) -> tuple[PacedStep, StepStats]:
    paced = PacedStep(step, PACE, step.clock, step.sleep)
    for _ in range(steps):
        _, stats = paced()
    return paced, stats


def test_a_step_lasts_as_long_as_its_sequences_and_prompt_tokens_ask() -> None:
    step = TimedStep(0.01, StepStats(batch_tokens=104, prompt_tokens=100))

    paced, stats = stepped(step)

    assert step.now == pytest.approx(0.08 + 4 * 0.002 + 100 * 0.0005)
    assert stats.step_seconds == pytest.approx(step.now)
    assert paced.late == 0


def test_a_step_that_computes_longer_than_its_pace_is_late_and_sleeps_no_more() -> None:
    step = TimedStep(0.2, StepStats(batch_tokens=1))

    paced, stats = stepped(step)

    assert step.slept == []
    assert (paced.steps, paced.late) == (1, 1)
    assert stats.step_seconds == pytest.approx(0.2)


def test_a_step_without_tokens_is_not_paced() -> None:
    step = TimedStep(0.0, StepStats())

    paced, _ = stepped(step)

    assert step.now == 0.0
    assert paced.steps == 0


def test_the_log_says_at_the_start_that_steps_are_paced_and_later_how_many_were_late(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    stepped(TimedStep(0.2, StepStats(batch_tokens=1)), steps=100)

    first, last = caplog.messages
    assert first.startswith("steps are paced, for benchmarks: 80 ms, 2 ms per decoding sequence, 0.5 ms per")
    assert last == "paced steps: 100, 100 late, 20.00 s instead of 8.20 s"


@dataclass
class EngineOn:
    """An engine on a device, which computes nothing."""

    info: EngineInfo

    def step(self) -> tuple[list[TokenOutput], StepStats]:
        return [], StepStats()


def test_an_engine_on_a_gpu_refuses_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "80,2,0.5")
    monkeypatch.setattr(step_pace, "llm_engine", lambda _: EngineOn(replace(INFO, device="cuda:0")))

    with pytest.raises(StartError, match="on a CPU, for benchmarks; this one is on cuda:0"):
        paced_engine(CONFIG)


@pytest.mark.parametrize(
    "text", ["", "80", "80,2", "80,2,0.5,1", "80,2,x", "80,-2,0.5", "nan,2,0.5", "inf,2,0.5"]
)
def test_a_pace_that_is_not_three_times_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)

    with pytest.raises(StartError, match="three numbers of milliseconds"):
        paced_engine(CONFIG)


@pytest.mark.slow
def test_a_server_keeps_the_pace_of_its_environment(
    served_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "50,0,0")
    flags = ("--kv-cache-bytes", str(8 << 20), "--max-num-seqs", "8", "--drain-seconds", "0.3")
    with engine_process(served_model, tmp_path / "log", *flags, program="e2e.paced_engine") as server:
        took = server.complete("a", max_tokens=5, ignore_eos=True).elapsed

        assert took.total_seconds() >= 5 * 0.05
        assert "steps are paced, for benchmarks: 50 ms" in server.log.read_text()


def test_other_commands_are_those_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", "--help"])

    assert "--termination-log" in capsys.readouterr().out
