"""`python -m tangram`, also installed as `tangram-operator`: run the operator."""

import sys


def main(argv: list[str] | None = None) -> int:
    """Run the operator until it is told to stop; return the exit code."""
    from tangram.shell.command import run  # noqa: PLC0415 - the planning process imports this module too

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
