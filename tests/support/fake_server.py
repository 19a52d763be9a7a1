"""`python -m tests.support.fake_server BEHAVIOUR_JSON serve ...`: the real server over the fake engine."""

import json
import sys
from functools import partial


def main() -> int:
    # Imported here, because the engine process imports this module too and needs nothing of it.
    from tangram_engine import __main__ as command
    from tangram_engine.serve import server
    from tests.support.fake_engine import Behaviour, build

    behaviour = Behaviour(**json.loads(sys.argv[1]))
    real = server.serve
    server.serve = lambda options, config: real(options, config, partial(build, behaviour=behaviour))
    return command.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
