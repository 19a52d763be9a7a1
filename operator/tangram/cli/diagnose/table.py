"""A diagnosis as people read it: one answer per question, its numbers, and the next step."""

import click

from tangram.capacity.diagnosis.findings import Diagnosis, Finding, Number
from tangram.cli.output import UNVERIFIED_MARK, note, notes, unverified_mark


def show(diagnosis: Diagnosis) -> None:
    """Print a diagnosis."""
    engines = f", {diagnosis.engines} engines" if diagnosis.engines > 1 else ""
    click.echo(
        f"{diagnosis.model or 'an unnamed model'}{engines}, {diagnosis.seconds:.1f} s between the readings"
    )
    for number, answer in enumerate(diagnosis.answers, 1):
        _show_answer(number, answer, unverified_mark(number == 1 and diagnosis.unverified))
    texts = list(diagnosis.notes)
    if diagnosis.unverified:
        unverified = ", ".join(diagnosis.unverified)
        texts.append(
            f"{UNVERIFIED_MARK} Not measured, or without a cited source; the first answer depends on"
            f" it: {unverified}."
        )
    notes(texts)


def _show_answer(rank: int, answer: Finding, mark: str) -> None:
    click.echo(f"\n{rank}. {answer.question}  ", nl=False)
    click.secho(answer.verdict + mark, bold=True)
    note(f"   {answer.reason}.", indent="   ")
    width = max((len(number.name) for number in answer.numbers), default=0)
    for number in answer.numbers:
        click.echo(f"     {number.name:<{width}}  {_value(number)}")
    if answer.missing:
        note(f"   missing: {'; '.join(answer.missing)}", indent="            ")
    if answer.next_step:
        note(f"   next: {answer.next_step}", indent="         ")


def _value(number: Number) -> str:
    """Return three significant digits, as two readings justify no more; whole numbers unrounded."""
    value = number.value
    text = f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{text} {number.unit}".rstrip()
