"""A fleet, planned: what `tangram plan` shows and `tangram explain` asks again."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from tangram.catalog import Architecture, InputError
from tangram.packing import Packing
from tangram.planner.joint.answer import plan_document
from tangram.planner.joint.explain import tried
from tangram.planner.joint.nouns import FleetInput
from tangram.planner.joint.pack import Limits, pack
from tangram.planner.joint.problem import Joint, joint
from tangram.planner.joint.short import short

LONGEST_S = 86_400


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, with what it was made from."""

    asked: Joint
    packing: Packing
    document: dict[str, Any]


def planned(given: FleetInput, limits: Limits) -> Planned:
    """Plan the whole fleet. Raises `InputError` for what contradicts itself."""
    asked = joint(given)
    packing = pack(asked, limits)
    return Planned(asked, packing, plan_document(asked, packing))


def explained(plan: Planned, who: str, limits: Limits) -> dict[str, Any]:
    """Return the document of LLMDeployment `who` with every alternative tried on the whole fleet and, where
    it goes short, what rules it out and what would help.
    """
    number = [each.id for each in plan.asked.given.deployments].index(who)
    mine = plan.document["deployments"][number]
    told = tried(plan.asked, plan.document, mine, lambda other: pack(other, limits), who)
    return told | short(plan.asked, plan.packing, who)


def time_limit_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--time-limit`; the value arrives as `limits: Limits`."""
    return click.option(
        "--time-limit",
        "limits",
        type=float,
        metavar="SECONDS",
        callback=lambda _context, _option, seconds: _limits(seconds),
        help="Think no longer; the best plan until then is shown, with its gap.",
    )(command)


def _limits(time_limit: float | None) -> Limits:
    if time_limit is not None and not 0 < time_limit <= LONGEST_S:
        raise InputError(
            "--time-limit", f"must be above 0 and at most {LONGEST_S} seconds, not {time_limit:g}"
        )
    return Limits(wall_s=time_limit, clock=time.monotonic)


def facts_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--model-facts`; the value arrives as `facts`, models by the name of their LLMDeployment."""
    return click.option(
        "--model-facts",
        "facts",
        multiple=True,
        metavar="NAME=MODEL",
        callback=lambda _context, _option, said: _models(said),
        help="What an LLMDeployment serves: a directory with config.json, or a well-known model; repeatable.",
    )(command)


def _models(facts: tuple[str, ...]) -> dict[str, Architecture]:
    from tangram.cli.model_option import named_model  # noqa: PLC0415 - only for whoever says so

    found = {}
    for each in facts:
        name, equals, source = each.partition("=")
        if not (name and equals and source):
            raise InputError("--model-facts", f"{each!r} is not NAME=MODEL")
        found[name] = named_model(source, "--model-facts")
    return found
