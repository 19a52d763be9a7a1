"""`python -m tangram.gateway`, also installed as `tangram-gateway`."""

import sys

from tangram.gateway.command import main

if __name__ == "__main__":
    sys.exit(main())
