"""`spec.runtime`: which runtime serves the model, and what is added to its command line."""

from typing import Annotated

from pydantic import Field, JsonValue, StrictStr, StringConstraints

from tangram.api.common.base import APIModel, optional
from tangram.api.common.values import NAME_PATTERN
from tangram.runtimes.runtime import ANY_RUNTIME, RuntimeOption, RuntimeRequest

MOST_OPTIONS = 32
FLAG_PATTERN = r"^-{1,2}[A-Za-z][A-Za-z0-9_.-]*$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
_BY_NAME: dict[str, JsonValue] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
# Without line breaks and other control characters.
_Value = Annotated[StrictStr, StringConstraints(max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*$")]


class ArgumentSpec(APIModel):
    """An argument that is added to the command line."""

    name: Annotated[StrictStr, StringConstraints(min_length=2, max_length=128, pattern=FLAG_PATTERN)] = Field(
        description="The flag, such as --tool-call-parser."
    )
    value: _Value | None = optional("Its value. Default: none, for a flag that takes none.")


class RuntimeVariableSpec(APIModel):
    """A variable that is added to the environment."""

    name: Annotated[StrictStr, StringConstraints(min_length=1, max_length=128, pattern=VARIABLE_PATTERN)] = (
        Field(description="Name of the variable.")
    )
    value: _Value = Field(description="Its value.")


class RuntimeSpec(APIModel):
    """Which runtime serves the model."""

    name: (
        Annotated[StrictStr, StringConstraints(min_length=1, max_length=63, pattern=NAME_PATTERN)] | None
    ) = optional(
        "Name of the EngineRuntime. Default: the bundled engine (tangram) where it serves the checkpoint, "
        "else the runtime that serves it at the lowest price, of those that this namespace may use."
    )
    arguments: tuple[ArgumentSpec, ...] = Field(
        default=(),
        max_length=MOST_OPTIONS,
        description="Arguments that are added, of those in allowedArguments of the EngineRuntime. "
        "They need a "
        "name of a runtime.",
        json_schema_extra=_BY_NAME,
    )
    variables: tuple[RuntimeVariableSpec, ...] = Field(
        default=(),
        max_length=MOST_OPTIONS,
        description="Environment variables that are added, of those in allowedVariables of the "
        "EngineRuntime.",
        json_schema_extra=_BY_NAME,
    )

    def to_noun(self) -> RuntimeRequest:
        """Return the same as decisions read it."""
        if self.name is None and not self.arguments and not self.variables:
            return ANY_RUNTIME
        return RuntimeRequest(
            self.name or "",
            tuple(RuntimeOption(argument.name, argument.value) for argument in self.arguments),
            tuple(RuntimeOption(variable.name, variable.value) for variable in self.variables),
        )
