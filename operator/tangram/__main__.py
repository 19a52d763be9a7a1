"""`python -m tangram`, also installed as `tangram-operator`: run the operator."""

import sys


def main(argv: list[str] | None = None) -> int:
    """Run the operator until it is told to stop; return the exit code."""
    # The planning process imports this module, too.
    from tangram.shell.process.command import run  # noqa: PLC0415

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
