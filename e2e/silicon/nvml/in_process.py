"""A driver in the same process as its clients: the fastest link, and the state is at hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from e2e.silicon.nvml import calls
from e2e.silicon.nvml.codes import ReturnCode
from e2e.silicon.nvml.state import NvmlState


class StateLink:
    """Calls to a state, for `library.installed`. `made` holds the names of all calls, in order.

    A call that hangs waits for `released`.
    """

    def __init__(self, state: NvmlState, *, client: str = "client", privileged: bool = True) -> None:
        self.state = state
        self.made: list[str] = []
        self.released = threading.Event()
        self._client, self._privileged = client, privileged
        self._lock = threading.Lock()

    def call(self, name: str, arguments: Sequence[Any], *, initialized: bool) -> tuple[ReturnCode, Any]:
        """Make one call, and take as long as it takes."""
        caller = calls.Caller(self._client, self._privileged, initialized)
        with self._lock:
            self.made.append(name)
            self.state, prospect = calls.begin(self.state, name)
        time.sleep(prospect.wait_s)
        with self._lock:
            self.state, answer = calls.finish(self.state, name, arguments, caller, prospect)
        if prospect.hangs:
            self.released.wait()
        return answer.code, answer.value

    def change(self, operation: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Perform an operation of `state` from outside of NVML; returns its value beside the state."""
        with self._lock:
            result = operation(self.state, *arguments, **named)
            self.state, value = result if isinstance(result, tuple) else (result, None)
        return value
