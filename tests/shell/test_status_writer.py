"""Statuses are written even where the CRDs are older than the operator."""

import logging
from typing import Any

from tangram.kube.client import ApiError
from tangram.kube.kinds import LLM_DEPLOYMENTS
from tangram.kube.retry_delays import RetrySchedule
from tangram.shell.report.status_writer import NewStatus, StatusWriter
from tangram.shell.watch.expectations import Expectations

WANTED = {"readyReplicas": 1, "placement": {"sku": "L4", "alternatives": [1], "because": ["x"]}}
OBJECT = {"metadata": {"name": "chat", "namespace": "a", "uid": "u"}}


class OldServer:
    """An API server that knows no field of `unknown`, and names one of them at a time."""

    def __init__(self, *unknown: str) -> None:
        self.unknown, self.attempts = list(unknown), 0

    async def apply(self, _kind: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.attempts += 1
        for name in self.unknown:
            if name in body["status"]["placement"]:
                why = f".status.placement.{name}: field not declared in schema"
                raise ApiError(
                    500, "InternalError", f"failed to create typed patch object (a/chat; v1): {why}"
                )
        return body | {"metadata": OBJECT["metadata"] | {"resourceVersion": "2"}}


def writer(server: OldServer, clock: list[float]) -> StatusWriter:
    expectations = Expectations(lambda _kind, _namespace: {})
    return StatusWriter(server, lambda: None, expectations, RetrySchedule(), lambda: clock[0])  # type: ignore[arg-type]


async def test_status_fields_unknown_to_an_older_crd_are_omitted_and_retried(caplog) -> None:
    server, clock = OldServer("alternatives", "because"), [0.0]
    statuses = writer(server, clock)
    with caplog.at_level(logging.WARNING):
        first = await statuses.write([NewStatus(OBJECT, WANTED, LLM_DEPLOYMENTS)])
        clock[0] = 2.0
        again = await statuses.write([NewStatus(OBJECT, WANTED, LLM_DEPLOYMENTS)])

    assert (len(first), len(again), server.attempts) == (1, 1, 6)
    messages = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[0] for text in messages] == [
        f"the CRD of LLMDeployment is older than this operator and has no status.placement.{name}"
        for name in ("alternatives", "because")
    ]

    server.unknown, clock[0] = [], 99.0
    await statuses.write([NewStatus(OBJECT, WANTED, LLM_DEPLOYMENTS)])
    stored = OBJECT | {"status": WANTED}
    await statuses.write([NewStatus(stored, WANTED, LLM_DEPLOYMENTS)])
    assert server.attempts == 7


async def test_a_refusal_of_another_kind_is_not_retried() -> None:
    server, clock = OldServer("not-there"), [0.0]

    async def refuses(*_: Any, **__: Any) -> None:
        server.attempts += 1
        raise ApiError(500, "InternalError", ".status.nothing.there: field not declared in schema")

    server.apply = refuses  # type: ignore[method-assign, assignment]
    assert await writer(server, clock).write([NewStatus(OBJECT, WANTED, LLM_DEPLOYMENTS)]) == []
    assert server.attempts == 1


async def test_a_bug_in_a_status_write_affects_one_object() -> None:
    class Server(OldServer):
        async def apply(self, _kind: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
            if body["metadata"]["name"] == "bad":
                raise ZeroDivisionError("division by zero")
            return body | {"metadata": OBJECT["metadata"] | {"resourceVersion": "2"}}

    bad = OBJECT | {"metadata": OBJECT["metadata"] | {"name": "bad", "uid": "bad"}}
    statuses, met = writer(Server(), [0.0]), []
    statuses.failed = lambda *fault: met.append(fault[:2])
    written = await statuses.write([NewStatus(obj, WANTED, LLM_DEPLOYMENTS) for obj in (bad, OBJECT)])

    assert [new_status.obj for new_status in written] == [OBJECT]
    assert [(step, what.split("/")[-1]) for step, what in met] == [("status", "bad")]
