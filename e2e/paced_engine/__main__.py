"""`tangram-engine`, whose `serve` keeps the pace of the environment."""

import sys
from functools import partial


def main(arguments: list[str]) -> int:
    from tangram_engine.__main__ import main as engine_main

    if arguments[:1] == ["serve"]:  # `inspect` must not load the server
        from e2e.paced_engine.step_pace import paced_engine
        from tangram_engine.serve import server

        server.serve = partial(server.serve, factory=paced_engine)
    return engine_main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
