"""The mutants of the campaign: each is another function, and the same one at each run."""

from pathlib import Path

from tests.mutation.mutants import mutants_of, mutated_source

SCHEDULER = Path(__file__).resolve().parents[2] / "engine" / "tangram_engine" / "schedule" / "scheduler.py"


def test_every_mutant_is_another_program_that_compiles() -> None:
    source = SCHEDULER.read_text()
    mutants = list(mutants_of("tangram_engine.schedule.scheduler", SCHEDULER))
    sources = [mutated_source(source, mutant) for mutant in mutants]

    assert len(mutants) > 100
    assert len(set(sources)) == len(sources)
    for text in sources:
        compile(text, "mutant", "exec")
