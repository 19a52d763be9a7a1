"""Waits for a GPU sleep: a wait that spins takes a core that the API process of the same pod needs.

Without a GPU nothing can wait for one, so this reads the sources.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tangram_engine

SERVING = ("cache", "models", "run", "sample", "schedule", "serve")
# Calls by which the host waits for a device, by module. What spins here runs at the start alone.
WAITS = {
    ("run/runner.py", "self._done.synchronize"),  # the event of a step: see below
    ("run/sizing.py", "torch.cuda.synchronize"),  # between the trials of sizing
    ("run/device.py", "torch.ones(1, device=device).add(1).item"),  # whether the device computes at all
    ("run/speed.py", "torch.cuda.synchronize"),  # steps that are timed at the start
    (  # whether it has this product
        "models/quantized.py",
        "scaled_product(*fp8_rows.reference(ones), to_fp8(ones), ones[0, :16], dtype).sum().item",
    ),
}
SPINNING = (
    "torch.cuda.Event()",
    "torch.cuda.Event(False, False)",
    "torch.cuda.Event(enable_timing=True)",
    "torch.Event(blocking=False)",
    "Event(blocking=wanted)",
    "torch.cuda.synchronize()",
    "torch.cuda.current_stream().synchronize()",
    "while not done.query(): pass",
    "total.item()",
)


def waits(source: str) -> Iterator[str]:
    """What waits by spinning, or might: events that do not block, and every call that waits at once."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            name = function.rpartition(".")[2]
            if name == "Event" and not function.startswith(("asyncio.", "threading.")):
                blocking = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}.get(
                    "blocking"
                )
                if blocking != "True":
                    yield ast.unparse(node)
            elif name in {"synchronize", "query", "item"}:
                yield function


@pytest.mark.parametrize("source", SPINNING)
def test_a_spinning_wait_is_found(source: str) -> None:
    assert list(waits(source))


def test_the_engine_sleeps_while_it_waits_for_a_step() -> None:
    package = Path(tangram_engine.__file__).parent
    found = {
        (str(path.relative_to(package)), wait)
        for room in SERVING
        for path in (package / room).rglob("*.py")
        for wait in waits(path.read_text())
    }
    assert found == WAITS
