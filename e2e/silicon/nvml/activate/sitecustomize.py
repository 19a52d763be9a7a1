"""Python runs this at its start in processes whose path it is on: `library.environment` puts it there."""

import os
from importlib.util import find_spec

if os.environ.get("SIMULATED_NVML_SOCKET") and find_spec("pynvml"):
    from e2e.silicon.nvml.library import install_from

    install_from(os.environ)
