"""A model that never becomes Ready: its checkpoint is not there, or it is deleted before that."""

import pytest

from e2e.demo import install
from e2e.kube import Kube
from e2e.tests.support import deployment

pytestmark = pytest.mark.cluster


def test_a_checkpoint_that_is_not_there_is_reported_before_any_gpu_is_taken(kube: Kube) -> None:
    kube.apply(deployment("lost", "image:///models/nowhere"), namespace="default")
    kube.kubectl("wait", "--for=condition=ModelReady=False", "llmdep/lost", "--timeout=60s")
    kube.kubectl("wait", '--for=jsonpath={.status.conditions[?(@.type=="ModelReady")].reason}=NotFound',
                 "llmdep/lost", "--timeout=90s")  # fmt: skip

    assert not kube.exists("deploy", "-n", "default")


def test_deletion_while_starting_leaves_nothing(kube: Kube) -> None:
    kube.apply(install.EXAMPLE, namespace="default")
    kube.kubectl("delete", "llmdep", install.NAME, "--wait")
    ours = ("deploy,svc,job,pod", "-l", f"tangram.dev/llmdeployment={install.NAME}")
    kube.kubectl("wait", "--for=delete", *ours, "--timeout=90s")

    assert kube.kubectl("get", *ours, "-o", "name") == ""
