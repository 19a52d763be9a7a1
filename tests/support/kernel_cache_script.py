"""Compiles one kernel over and over, with its cache damaged in between; prints what was seen as JSON.

A process of its own, because the test run interprets kernels. TRITON_CACHE_DIR must be empty.
"""

import json
import logging
import os
import sys
from pathlib import Path

import triton

from tangram_engine.run.late_kernels import LateKernels
from tests.support.compile_gate import compile_case
from tests.support.gate_kernels import CASES

KERNEL_FILES = ("json", "cubin")


class Warnings(logging.Handler):
    """Counts what is logged."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def main() -> None:
    case, folder = CASES[0], Path(os.environ["TRITON_CACHE_DIR"])
    hits: list[bool] = []
    warned = Warnings()
    logging.getLogger("tangram_engine").addHandler(warned)
    whole = compile_case(case, 80).kernel
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    late = LateKernels()
    seen: dict[str, object] = {"before ready": late.take()}

    def again(what: str) -> None:
        warned.count = 0
        same = compile_case(case, 80).kernel == whole
        seen[what] = {"counted": late.take(), "hit": hits[-1], "same": same, "warnings": warned.count}

    again("whole cache")
    for suffix in KERNEL_FILES:
        (file,) = (path for path in folder.glob(f"*/*.{suffix}") if not path.name.startswith("__grp__"))
        file.write_bytes(file.read_bytes()[:-100])
        again(suffix)
    (group,) = folder.glob("*/__grp__*.json")
    group.write_bytes(b"")
    again("group")
    next(folder.glob("*/*.cubin")).unlink()
    again("missing")
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main()
