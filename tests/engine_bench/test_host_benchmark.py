"""The benchmark of a step's cost on the host."""

import json
import sys
from collections import Counter

from benchmarks.engine.host import BLOCK_SIZE, decoding_engine, main


def calls_of_steps(context):
    """Calls of functions, of Python or C, while each sequence fills one block."""
    engine = decoding_engine(batch=4, context=context, steps=2 * BLOCK_SIZE)
    counted = Counter()
    previous = sys.getprofile()
    sys.setprofile(lambda frame, event, function: counted.update([event]))
    for _ in range(BLOCK_SIZE):
        engine.step()
    sys.setprofile(previous)
    return counted["call"], counted["c_call"]


def test_the_calls_of_a_decode_step_do_not_grow_with_the_context():
    calls_of_steps(64)  # first uses, such as imports inside torch
    assert calls_of_steps(64) == calls_of_steps(1024)


def test_the_benchmark_writes_the_milliseconds_of_each_part(tmp_path):
    report = tmp_path / "host.json"
    arguments = ("--batch", "2", "--contexts", "32", "--steps", "4", "--json", str(report))
    main(arguments)
    medians = json.loads(report.read_text())["median_ms"]["32"]
    assert {"schedule", "launch", "commit", "frame", "total"} <= medians.keys()
    assert 0 < medians["schedule"] < medians["total"]
