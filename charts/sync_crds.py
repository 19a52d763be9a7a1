"""Copies crds/*.yaml into the chart: `python charts/sync_crds.py [--check]`.

The files of crds/ are the source. A chart cannot reach outside its own folder, so it carries a copy.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "crds"
COPY = ROOT / "charts" / "tangram" / "files" / "crds"


def stale(source: Path = SOURCE, copy: Path = COPY) -> list[str]:
    """Return the names of files in which the copy differs, missing and superfluous ones included."""
    names = {path.name for folder in (source, copy) for path in folder.glob("*.yaml")}
    return sorted(name for name in names if _read(source / name) != _read(copy / name))


def sync(source: Path = SOURCE, copy: Path = COPY) -> None:
    """Make the copy equal to the source."""
    copy.mkdir(parents=True, exist_ok=True)
    for name in stale(source, copy):
        content = _read(source / name)
        if content is None:
            (copy / name).unlink()
        else:
            (copy / name).write_bytes(content)


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def main(argv: list[str]) -> int:
    """Sync, or with --check only tell whether the copy is stale (exit code 1)."""
    if argv not in ([], ["--check"]):
        sys.stderr.write(__doc__ or "")
        return 2
    if argv == ["--check"]:
        found = stale()
        if found:
            sys.stderr.write(f"the chart's copy of {', '.join(found)} is stale: run `make generate`\n")
        return int(bool(found))
    sync()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
