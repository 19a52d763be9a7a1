"""`python3 -m sglang.launch_server FLAG...`, as the image of SGLang has it."""

import sys

from e2e.runtimes.stand_in import main

sys.exit(main(["sglang", *sys.argv[1:]]))
