"""The return codes of NVML, by value and name as in nvml.h."""

from __future__ import annotations

from enum import IntEnum


class ReturnCode(IntEnum):
    """What an NVML call returns. Those that no simulated call returns are here for faults."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    INSUFFICIENT_RESOURCES = 23
    ARGUMENT_VERSION_MISMATCH = 25
    UNKNOWN = 999


class CallFailed(Exception):
    """A call of NVML, or of an operator, that returns something other than success."""

    def __init__(self, code: ReturnCode, detail: str = "") -> None:
        super().__init__(f"{code.name}{': ' if detail else ''}{detail}")
        self.code = code
