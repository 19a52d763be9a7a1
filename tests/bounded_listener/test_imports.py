"""The listener goes into every image: it may import aiohttp, the standard library, and nothing else."""

import ast
import sys

from benchmarks.structure import ROOT

PACKAGE = ROOT / "engine" / "tangram_http"


def test_the_listener_imports_aiohttp_and_the_standard_library_alone() -> None:
    imported = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])

    assert "aiohttp" in imported
    assert imported - sys.stdlib_module_names == {"aiohttp"}
