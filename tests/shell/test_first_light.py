"""An LLMDeployment becomes a Deployment and a Service that say the right things, and a status that says the truth."""

import pytest

from tangram.shell.kinds import DEPLOYMENTS, JOBS, SERVICES
from tests.support.apiserver import World, eventually, llm

pytestmark = pytest.mark.apiserver


async def test_an_llmdeployment_becomes_ready(here: World, operator) -> None:
    operator()
    await here.apply(llm("tiny", here.namespace, scaling={"min": 2}))
    ready = await here.until("tiny", "Ready", "True", within_s=60)
    assert ready["observedGeneration"] == 1
