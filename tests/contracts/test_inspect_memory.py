"""The inspect Job has the memory that `tangram-engine inspect` allows itself."""

from tangram.fleet.quantity import parse_quantity
from tangram.shell.objects.job_pods import INSPECT_MEMORY
from tangram_engine import inspect
from tangram_engine.serve.text import process as text_process

INTERPRETER = 64 << 20  # bytes: the process that writes the report, beside those it limits


def test_the_limits_of_inspect_leave_room_for_the_report() -> None:
    job = parse_quantity(INSPECT_MEMORY)
    assert job >= INTERPRETER + inspect.MEMORY_LIMIT
    assert job >= INTERPRETER + text_process.LOAD_MEMORY + inspect.TEXT_MEMORY
