"""`python -m tangram.sources`, also installed as `tangram-fetch`."""

import sys

from tangram.sources.command import main

if __name__ == "__main__":
    sys.exit(main())
