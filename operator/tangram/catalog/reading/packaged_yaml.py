"""Read a YAML file that is shipped with a package."""

import importlib.resources
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # six times faster where libyaml is there


def packaged_yaml(package: str, name: str) -> Any:
    """Return the document in the file `name` of `package`."""
    text = importlib.resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - both are safe loaders
