"""More load than a replica carries: replicas rise. It ends: they fall. No accepted request is cut."""

import pytest

from e2e.demo import install
from e2e.demo.stage import Stage
from e2e.kube import Kube, wait_until

pytestmark = pytest.mark.cluster


def test_replicas_follow_the_load_and_no_request_is_cut(stage: Stage, model: Kube) -> None:
    install.load(model, stage.references["silicon"], seconds=300)

    wait_until(lambda: install.replicas(model)[0] > 1, 120, "a second replica to serve", every=1)
    install.end_load(model, after_s=15)  # the second one serves, too
    wait_until(lambda: install.replicas(model) == (1, 1), 300, "one replica again", every=1)

    said = model.kubectl("logs", "job/load", "--tail=1")
    assert "cut" in said
    assert ", 0 cut" in said, said
