"""Settings of when plans are made, and when another shape is tried."""

from typing import Annotated

from pydantic import Field, PositiveFloat, model_validator

from tangram.shell.setting_types import SettingsSection


class SchedulingSettings(SettingsSection):
    """How long pods may be unschedulable before another shape is tried."""

    deadline_seconds: PositiveFloat = 180
    """The time where a GPU or slice is free."""
    growing_deadline_seconds: PositiveFloat = 900
    """The time where a GPUPool may still grow, or a terminating pod still holds a device."""


class AdviceSettings(SettingsSection):
    """When recommendations for the whole fleet are computed, in a process of their own."""

    deadline_seconds: Annotated[float, Field(gt=0, le=600)] = 60
    """Time limit of one recommendation."""
    settle_seconds: Annotated[float, Field(ge=0)] = 5
    """How long the fleet must be unchanged before a recommendation starts."""
    latest_seconds: PositiveFloat = 30
    """How long after the first change a recommendation starts although changes continue."""
    idle_seconds: PositiveFloat = 120
    """How long the idle process waits for the next change before it ends and frees its memory."""

    @model_validator(mode="after")
    def _ordered(self) -> "AdviceSettings":
        if self.settle_seconds > self.latest_seconds:
            raise ValueError("settleSeconds must not be above latestSeconds")
        return self
