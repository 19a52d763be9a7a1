"""One gateway for the tests of a file, with the configuration that the chart renders."""

import pytest

from tests.chart.conftest import helm  # noqa: F401 - a fixture
from tests.support.front_door import FrontDoor, bootstrap_of

ENABLED = {"gateway": {"enabled": True, "envoyImage": f"docker.io/envoyproxy/envoy@sha256:{'a' * 64}"}}


@pytest.fixture(scope="session")
def bootstrap(helm):  # noqa: F811
    return bootstrap_of(helm.objects(ENABLED))


@pytest.fixture(scope="module")
def door(bootstrap, tmp_path_factory):
    with FrontDoor(bootstrap, tmp_path_factory.mktemp("door")) as running:
        yield running
