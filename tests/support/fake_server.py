"""`python -m tests.support.fake_server BEHAVIOUR_JSON serve ...`: the real server over the fake engine."""

import json
import sys
from functools import partial

from tangram_engine import __main__ as command
from tangram_engine.serve import server
from tests.support.fake_engine import Behaviour, build


def main() -> int:
    behaviour = Behaviour(**json.loads(sys.argv[1]))
    real = server.serve
    server.serve = lambda options, config: real(options, config, partial(build, behaviour=behaviour))
    return command.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
