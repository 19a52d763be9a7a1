"""The list of an image has what is in the image, by its lock and by its Debian packages."""

from typing import Any

import pytest

from e2e.cluster import sbom
from e2e.cluster.base import ClusterError

NAME = "tangram.local/tangram-agent:dev"
LIBC = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:2.36-9+deb12u10\n"
CONTENTS = {"distribution": "debian", "debian": [LIBC], "python": {"PyYAML": "6.0", "ruamel.yaml": "0.18"}}


def component(name: str) -> dict[str, Any]:
    return {"bom-ref": f"lock-{name}", "name": name, "type": "library", "hashes": []}


def listed(*names: str) -> dict[str, Any]:
    return {"bomFormat": "CycloneDX", "metadata": {"tools": {}}, "components": [*map(component, names)]}


def test_the_list_has_the_packages_of_the_image_and_no_others_of_its_lock() -> None:
    found = sbom.of_image(listed("pyyaml", "ruamel-yaml", "pywin32"), CONTENTS, NAME)
    libc = "pkg:deb/debian/libc6@1%3A2.36-9%2Bdeb12u10?arch=amd64"
    assert [one["bom-ref"] for one in found["components"]] == ["lock-pyyaml", "lock-ruamel-yaml", libc]
    assert found["components"][2]["version"] == "1:2.36-9+deb12u10"
    assert found["metadata"]["component"]["name"] == NAME
    assert found["dependencies"][0] == {"ref": NAME, "dependsOn": ["lock-pyyaml", "lock-ruamel-yaml", libc]}


def test_an_image_with_a_package_that_its_lock_lacks_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"that its lock lacks: ruamel-yaml$"):
        sbom.of_image(listed("pyyaml"), CONTENTS, NAME)
