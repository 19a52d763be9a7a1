"""Calls of the driver with a deadline from outside: a call of NVML that hangs cannot be ended."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from tangram.partition.difference import LayoutOperation
from tangram.partition.layouts import ObservedLayout

DEADLINE_S = 60.0  # for all calls of one step; creating an instance takes about two seconds
_Result = TypeVar("_Result")


class GPUDriver(Protocol):
    """The driver of this machine, while it is open."""

    def version(self) -> str:
        """Return the version of the driver."""

    def gpus(self) -> tuple[str, ...]:
        """Return the UUIDs of all GPUs, by their index."""

    def observe(self, gpu: str) -> ObservedLayout:
        """Return what is there on one GPU."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Make one call of NVML."""

    def apply(self, operation: LayoutOperation) -> None:
        """Do one operation."""

    def abandon(self) -> None:
        """Let no further call be made. Called from another thread."""


class DriverHangs(Exception):
    """The driver did not answer within the deadline. Only another process can call it again."""


class DriverThread:
    """Opens the driver for one step at a time, in a thread that is abandoned where it hangs.

    It is closed between steps, so that the driver can be unloaded for an upgrade.
    """

    def __init__(
        self, open_driver: Callable[[], AbstractContextManager[GPUDriver]], deadline_s: float = DEADLINE_S
    ) -> None:
        self._open_driver, self._deadline_s = open_driver, deadline_s

    def run(self, step: Callable[[GPUDriver], _Result]) -> _Result:
        """Return what the step returns, or raise what it raises. Raises `DriverHangs` after the deadline."""
        results: SimpleQueue[tuple[_Result | None, BaseException | None]] = SimpleQueue()

        opened = list[GPUDriver]()

        def work() -> None:
            try:
                with self._open_driver() as driver:
                    opened.append(driver)
                    result = step(driver)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
                results.put((None, error))
            else:
                results.put((result, None))

        threading.Thread(target=work, name="driver", daemon=True).start()
        try:
            result, error = results.get(timeout=self._deadline_s)
        except Empty:
            for driver in opened:  # a call that comes back late is the last one: pods may hold what is left
                driver.abandon()
            raise DriverHangs(f"the driver did not answer within {self._deadline_s:g} s") from None
        if error is not None:
            raise error
        return result  # type: ignore[return-value] # without an error it is the step's
