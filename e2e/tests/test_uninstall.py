"""The chart is uninstalled: models go on serving, definitions stay, and a new install takes over."""

import pytest

from e2e.demo import install
from e2e.demo.stage import Stage
from e2e.kube import Kube
from e2e.tests.support import ask

pytestmark = pytest.mark.cluster


def test_uninstalling_keeps_models_and_definitions_and_a_new_install_adopts_them(
    stage: Stage, model: Kube
) -> None:
    before = _pods(model)
    model.helm("uninstall", install.RELEASE, "--namespace", install.SYSTEM, "--wait")
    try:
        assert model.exists("crd", "llmdeployments.tangram.dev")
        assert ask(model)
        left = model.kubectl(
            *("get", "deploy,sa,cm,svc,clusterrole,clusterrolebinding,role,rolebinding", "-A"),
            *("-l", f"app.kubernetes.io/instance={install.RELEASE}", "-o", "name"),
        )
        assert left == ""
    finally:
        stage.install_tangram()

    model.kubectl("wait", "--for=condition=Ready", f"llmdep/{install.NAME}", "--timeout=60s")
    assert _pods(model) == before


def test_deleting_a_model_leaves_nothing_of_it(model: Kube) -> None:
    model.kubectl("delete", "llmdep", install.NAME, "--wait")
    ours = ("deploy,rs,svc,job,pod", "-l", f"tangram.dev/llmdeployment={install.NAME}")
    model.kubectl("wait", "--for=delete", *ours, "--timeout=90s")

    assert model.kubectl("get", *ours, "-o", "name") == ""


def _pods(kube: Kube) -> list[str]:
    return sorted(
        kube.kubectl("get", "pods", "-l", "app.kubernetes.io/component=engine", "-o", "name").split()
    )
