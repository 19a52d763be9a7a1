"""Lengths of input and output from options and files: mean and P90, one length, or a histogram."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from tangram.catalog import InputError
from tangram.cli.options.csv_file import read_csv
from tangram.fleet import Lengths
from tangram.fleet.lengths import MOST_P90, around, counted

LONGEST_TOKENS = 1_048_576  # the maximum of `traffic.inputTokens`
MOST_REQUESTS = 10**12  # largest count of one length
FIELDS = ("inputTokens", "outputTokens")


def read_histogram(path: Path) -> Lengths:
    """Return the lengths of a CSV file with columns `tokens` and `count` (default 1).

    Raises `InputError` naming file and line.
    """
    pairs = []
    for line, row in enumerate(read_csv(path, ("tokens",)), start=2):
        tokens = _whole(row["tokens"], f"{path}: line {line}: tokens", 1, LONGEST_TOKENS)
        pairs.append((tokens, _whole(row.get("count", "1"), f"{path}: line {line}: count", 0, MOST_REQUESTS)))
    try:
        return counted(pairs)
    except ValueError as error:
        raise InputError(str(path), str(error)) from error


def _whole(text: str, where: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15 or not least <= int(text) <= most:
        shown = repr(text if len(text) <= 40 else text[:37] + "...")
        raise InputError(where, f"must be a whole number from {least} to {most}, not {shown}")
    return int(text)


def with_histogram_means(
    body: Mapping[str, Any], folder: Path, where: str
) -> tuple[Mapping[str, Any], dict[str, Lengths]]:
    """Return an LLMDeployment with each histogram replaced by its mean, and the histograms' lengths by field.

    File names are relative to `folder`, that of the YAML file. Raises `InputError`.
    """
    spec = body.get("spec")
    traffic = spec.get("traffic") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(traffic, Mapping):
        return body, {}
    histograms: dict[str, Lengths] = {}
    means: dict[str, Any] = {}
    for name in FIELDS:
        setting = traffic.get(name)
        if not isinstance(setting, Mapping) or "histogram" not in setting:
            continue
        path = f"{where}: spec.traffic.{name}"
        if len(setting) > 1:
            raise InputError(path, "exactly one of mean, fixed and histogram must be set")
        file = setting["histogram"]
        if not isinstance(file, str) or not file:
            raise InputError(f"{path}.histogram", "must be the name of a CSV file")
        try:
            histograms[name] = read_histogram(folder / file)
        except InputError as error:
            raise InputError(f"{path}.histogram: {error.field}", error.problem) from error
        means[name] = {"mean": max(1, round(histograms[name].mean))}
    if not histograms:
        return body, {}
    return {**body, "spec": {**spec, "traffic": {**traffic, **means}}}, histograms


def lengths_options(label: str, name: str, mean: int) -> Callable[[Any], Any]:
    """Add `--NAME`, `--NAME-p90` and `--NAME-histogram`; the value arrives as `NAME_tokens: Lengths`."""

    def decorate(command: Any) -> Any:
        @click.option(f"--{name}", f"{name}_mean", type=int, help=f"{label} tokens: mean.  [default: {mean}]")
        @click.option(
            f"--{name}-p90",
            type=int,
            help=f"{label} tokens: P90; equal to the mean: one length.  [default: 2 x mean]",
        )
        @click.option(
            f"--{name}-histogram",
            type=click.Path(path_type=Path),
            help=f"{label} tokens: CSV file with the columns tokens and count.",
        )
        @functools.wraps(command)
        def run(**arguments: Any) -> Any:
            parts = [arguments.pop(f"{name}_{part}") for part in ("mean", "p90", "histogram")]
            return command(**arguments, **{f"{name}_tokens": lengths_given(name, mean, *parts)})

        return run

    return decorate


def lengths_given(
    name: str, default: int, mean: int | None, p90: int | None, histogram: Path | None
) -> Lengths:
    """Return the lengths that the options of `lengths_options` set. Raises `InputError`."""
    if histogram is not None:
        if mean is not None or p90 is not None:
            raise InputError(f"--{name}-histogram", f"excludes --{name} and --{name}-p90")
        return read_histogram(histogram)
    tokens = default if mean is None else mean
    if p90 is None or tokens < 1:
        return around(tokens)
    if not tokens <= p90 <= MOST_P90 * tokens:
        raise InputError(
            f"--{name}-p90",
            f"must be from 1 to {MOST_P90} times --{name}, {tokens}, not {p90}; for longer tails use "
            f"--{name}-histogram",
        )
    return Lengths(float(tokens), float(p90))
