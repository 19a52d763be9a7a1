"""How to install the packages that a command needs: Tangram is installed from its source."""


def installation(extras: str = "cli") -> str:
    """Return the command that installs Tangram with `extras`, separated by commas."""
    return f"in the folder of Tangram's source, pip install '.[{extras}]'"
