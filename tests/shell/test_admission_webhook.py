"""The webhook on its port: what it answers, and what it outlives."""

import asyncio
import json
import logging
import math
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tangram.admission import NO_ANSWER, RefusedField, Review
from tangram.kube.kinds import GPU_POOLS, LLM_DEPLOYMENTS, NODES
from tangram.shell.admission import review_server, reviewer
from tangram.shell.admission.processor_share import ProcessorShare
from tangram.shell.intake import supervision
from tests.support.apiserver import llm
from tests.support.kopf_api import DEEP, KopfApi
from tests.support.webhook import issue, review, webhook

MODEL = llm("m", "n")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("authority")


@pytest.fixture
def folder(authority: Path, tmp_path: Path) -> Path:
    return issue(tmp_path / "webhook", authority)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "RESTART_S", (0.02, 0.05))
    monkeypatch.setattr(review_server, "CERTIFICATE_CHECK_S", 0.05)


def api(**fields: Any) -> KopfApi:
    return KopfApi((LLM_DEPLOYMENTS, GPU_POOLS), **fields)


async def says(*warnings: str) -> tuple[str, ...]:
    return warnings


async def test_a_refusal_is_a_422_with_the_field(
    folder: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = RefusedField("spec.placement.allowedSKUs", "no node has H1000-80GB, perhaps H100-80GB-SXM")
    monkeypatch.setattr(reviewer, "refusal", lambda *_: refused)
    async with webhook(api(), folder, authority) as this:
        status, response = await (await this.up()).post(review(MODEL))

    assert (status, response["allowed"], response["status"]["code"]) == (200, False, 422)
    assert response["status"]["message"] == f"{refused.field_path}: {refused.message}"
    assert this.outcomes == ["refused"]


async def test_warnings_are_what_the_placement_says(folder: Path, authority: Path) -> None:
    seen: list[Review] = []

    async def placement(asked: Review) -> tuple[str, ...]:
        seen.append(asked)
        return ("runs on 1 x H100-80GB-SXM, $2.49/h", "x" * 200)

    update = review(MODEL, operation="UPDATE", oldObject=MODEL, dryRun=True)
    async with webhook(api(), folder, authority, placement) as this:
        _, response = await (await this.up()).post(update)

    assert response["allowed"]
    assert response["warnings"] == ["runs on 1 x H100-80GB-SXM, $2.49/h", "x" * 120]
    assert seen == [Review("UPDATE", "llmdeployments", "n", "m", MODEL, MODEL, "ada", dry_run=True)]
