"""What the real API server accepts and refuses, with its messages: the cases of tests/api/cases.yaml."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tangram.kube.credentials import ssl_context
from tangram.kube.kinds import LLM_DEPLOYMENTS
from tangram.kube.kubeconfig import load_kubeconfig

pytestmark = pytest.mark.apiserver

_FILE = Path(__file__).parents[1] / "api" / "cases.yaml"
CASES = [case for case in yaml.safe_load(_FILE.read_text()) if case.get("only") != "parse"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"].replace(" ", "-") for case in CASES])
async def test_the_api_server_accepts_or_refuses_as_recorded(plane: Any, case: dict[str, Any]) -> None:
    credentials = load_kubeconfig(str(plane.kubeconfig))
    path = LLM_DEPLOYMENTS.path("default") + "?dryRun=All&fieldValidation=Strict"
    connector = aiohttp.TCPConnector(ssl=ssl_context(credentials) or True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(credentials.server + path, json=_named(case["object"])) as response,
    ):
        answer = await response.json()

    assert response.status == (201 if case["verdict"] == "accepted" else response.status)
    if case["verdict"] == "refused":
        assert response.status in (400, 422)
        assert case["message"] in answer["message"]


def _named(obj: dict[str, Any]) -> dict[str, Any]:
    basics = {"apiVersion": LLM_DEPLOYMENTS.api_version, "kind": LLM_DEPLOYMENTS.kind}
    metadata = {"name": "case"} | obj.get("metadata", {}) | {"namespace": "default"}
    metadata_fields = {
        key: value for key, value in metadata.items() if key in ("name", "namespace", "labels")
    }
    return basics | obj | {"metadata": metadata_fields}
