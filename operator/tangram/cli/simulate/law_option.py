"""The scaling law of `--law`: one of the product by its name, or that of a function in a module."""

import sys
import traceback
from dataclasses import dataclass
from functools import partial
from importlib import import_module

from tangram.catalog import InputError
from tangram.cli.simulate.options import finite_number
from tangram.simulator.control.laws_by_name import LAWS
from tangram.simulator.controllers import Controller, LawFactory, LawKnowledge

FORMS = "tangram, static=N, hpa[=SHARE], or MODULE:FACTORY[=KNOB]"
_OPTION = "--law"


@dataclass(frozen=True, slots=True)
class LawChoice:
    """A scaling law as the option has it, with its knob; None: the default of the law."""

    name: str
    factory: LawFactory
    knob: float | None = None

    def __str__(self) -> str:
        """Return it as the option has it."""
        return self.name if self.knob is None else f"{self.name}={self.knob:g}"


def static_choice(replicas: int) -> LawChoice:
    """Return a fixed number of replicas."""
    return LawChoice("static", LAWS["static"], float(replicas))


def law_choice(text: str) -> LawChoice:
    """Return the law of `--law`. Raises `InputError` where there is none, or no such knob."""
    name, equals, knob = text.partition("=")
    is_module = ":" in name
    if not is_module and name not in LAWS:
        raise InputError(_OPTION, f"{text!r} is none of {FORMS}")
    factory = _imported(name) if is_module else LAWS[name]
    if not equals:
        if name == "static":
            raise InputError(_OPTION, "static needs a number of replicas: static=4")
        return LawChoice(name, factory)
    value = finite_number(knob)
    if value is None or (value <= 0 and name != "static" and not is_module):
        raise InputError(_OPTION, f"{knob!r} is no value of the knob of {name}")
    return LawChoice(name, factory, value)


def _imported(name: str) -> LawFactory:
    """Return the factory MODULE:FACTORY; what it fails with is an error of the input.

    The current directory is searched last: no file in it stands in for an installed module.
    """
    module, _, function = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), function)):
        raise InputError(_OPTION, f"{name!r} is no MODULE:FACTORY")
    if "" not in sys.path:
        sys.path.append("")
    try:
        factory = getattr(import_module(module), function, None)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            problem = f"there is no module {error.name} in the current directory or on Python's path"
            raise InputError(_OPTION, problem) from None
        raise InputError(_OPTION, f"{module} cannot be imported: {_described(error)}") from error
    if not callable(factory):
        raise InputError(_OPTION, f"{module} has no function {function}")
    return partial(_built, name, factory)


def _built(name: str, factory: LawFactory, knowledge: LawKnowledge, knob: float | None) -> Controller:
    """Return the law that a factory of the user builds. Raises `InputError` where it builds none."""
    try:
        law = factory(knowledge, knob)
    except InputError:
        raise
    except Exception as error:
        raise InputError(_OPTION, f"{name} failed: {_described(error)}") from error
    decide, interval_s = getattr(law, "decide", None), getattr(law, "interval_s", None)
    if not callable(decide) or not isinstance(interval_s, int | float):
        returned = f"{name} returned an object of type {type(law).__name__}"
        raise InputError(_OPTION, f"{returned}: a law has a method decide and a number interval_s")
    return law


def _described(error: Exception) -> str:
    """Return type and message of an error, and the line that raised it, where that is in a file."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if frame.filename.startswith("<") else f" ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {str(error)[:200]}{place}"
