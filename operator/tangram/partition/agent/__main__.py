"""`python -m tangram.partition.agent`, also installed as `tangram-agent`."""

import sys

from tangram.partition.agent.command import main

if __name__ == "__main__":
    sys.exit(main())
