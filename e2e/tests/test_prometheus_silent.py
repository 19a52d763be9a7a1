"""Prometheus falls silent: nothing scales down on a guess, and the status says that we are blind."""

import pytest

from e2e.demo import install
from e2e.demo.stage import Stage
from e2e.kube import Kube, wait_until
from e2e.tests.support import condition

pytestmark = pytest.mark.cluster


def test_blind_is_not_idle(stage: Stage, model: Kube) -> None:
    install.load(model, stage.references["silicon"], seconds=300)
    wait_until(lambda: install.replicas(model)[0] > 1, 120, "a second replica to serve", every=1)
    model.kubectl("scale", "deploy/prometheus", "-n", "tangram-monitoring", "--replicas=0")
    try:
        wait_until(
            lambda: condition(model, "ScalingActive")["status"] != "True", 120, "ScalingActive to say so"
        )
        grown = install.replicas(model)[1]
        install.end_load(model)
        # Longer than a window of metrics and downAfterSeconds: with metrics, it would have shrunk by now.
        with pytest.raises(TimeoutError):
            wait_until(
                lambda: install.replicas(model)[1] < grown, 50, "a scale-down that must not come", every=1
            )
    finally:
        model.kubectl("scale", "deploy/prometheus", "-n", "tangram-monitoring", "--replicas=1")
    wait_until(
        lambda: condition(model, "ScalingActive")["status"] == "True", 120, "metrics to be believed again"
    )
    wait_until(lambda: install.replicas(model) == (1, 1), 240, "one replica again", every=1)
