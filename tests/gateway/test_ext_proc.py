"""The protocol of external processing, message by message: what any gateway may send, and what it gets."""

import asyncio
import json

import pytest
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from tangram.gateway.body_limits import BodyLimits
from tangram.gateway.ext_proc import AccessLog, Picker
from tangram.gateway.metrics import GatewayMetrics
from tangram.gateway.published_models import PublishedModel, PublishedModels
from tangram.gateway.router import BEYOND_MAX_REQUEST_S, MAX_PREFIX_ENTRIES, RequestRouter

MODEL = PublishedModel("ns", "m", "m", 60)
MODELS = PublishedModels({"m": (MODEL,)}, {"ns/m": MODEL})
REPLICAS = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000")
BODY = b'{"model":"m","messages":[]}'


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def router_of(*replicas, clock=None):
    router = RequestRouter(clock or Clock())
    router.update(MODELS, {MODEL.key: replicas})
    return router


def headers(path="/v1/chat/completions", *, method="POST", ends=False, subset=None):
    message = ProcessingRequest()
    for name, value in ((":method", method), (":path", path)):
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    message.request_headers.end_of_stream = ends
    if subset is not None:
        hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint.update({"x-gateway-destination-endpoint-subset": subset})
    return message


def piece(body, *, ends=True):
    message = ProcessingRequest()
    message.request_body.body, message.request_body.end_of_stream = body, ends
    return message


def trailers():
    message = ProcessingRequest()
    message.request_trailers.SetInParent()
    return message


async def replies(picker, *messages, then=None):
    async def stream():
        for message in messages:
            yield message
        if then is not None:
            await then

    return [reply async for reply in picker.Process(stream(), None)]


def picker_of(router, **limits):
    return Picker(router, GatewayMetrics(), BodyLimits(**limits))


def destinations(reply):
    options = reply.request_headers.response.header_mutation.set_headers
    return {option.header.key: option.header.raw_value.decode() for option in options}


def answer(reply):
    return reply.immediate_response.status.code, json.loads(reply.immediate_response.body)["error"]["code"]


async def test_a_replica_is_named_in_a_header_and_in_metadata_with_two_to_try_next():
    first, body = await replies(picker_of(router_of(*REPLICAS)), headers(), piece(BODY))
    named = destinations(first)
    assert list(named) == [
        "x-gateway-destination-endpoint",
        "x-tangram-destination-2",
        "x-tangram-destination-3",
    ]
    assert set(named.values()) < set(REPLICAS)
    assert len(set(named.values())) == 3
    metadata = first.dynamic_metadata["envoy.lb"]
    assert metadata["x-gateway-destination-endpoint"] == named["x-gateway-destination-endpoint"]
    assert first.request_headers.response.clear_route_cache
    streamed = body.request_body.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (BODY, True)


async def test_what_names_no_replica_is_removed():
    first, _ = await replies(picker_of(router_of(REPLICAS[0])), headers(), piece(BODY))
    mutation = first.request_headers.response.header_mutation
    assert list(mutation.remove_headers) == ["x-tangram-destination-2", "x-tangram-destination-3"]
    assert [option.append_action for option in mutation.set_headers] == [2]  # OVERWRITE_IF_EXISTS_OR_ADD


async def test_bodies_come_back_in_pieces_of_less_than_64_kib_and_trailers_stay():
    body = b'{"model":"m","messages":"' + b"x" * 200_000 + b'"}'
    sent = [piece(body[:90_000], ends=False), piece(body[90_000:], ends=False), trailers()]
    _, *pieces, last = await replies(picker_of(router_of(*REPLICAS)), headers(), *sent)
    streamed = [each.request_body.response.body_mutation.streamed_response for each in pieces]
    assert b"".join(each.body for each in streamed) == body
    assert max(len(each.body) for each in streamed) <= 65_536
    assert not any(each.end_of_stream for each in streamed)
    assert last.WhichOneof("response") == "request_trailers"


@pytest.mark.parametrize("form", [", ".join, list], ids=["text", "list"])
async def test_a_gateway_may_restrict_the_replicas(form):
    picker = picker_of(router_of(*REPLICAS))
    for _ in range(6):
        first, _ = await replies(picker, headers(subset=form(REPLICAS[1:3])), piece(BODY))
        assert set(destinations(first).values()) == set(REPLICAS[1:3])


@pytest.mark.parametrize("subset", ["", [], "10.9.9.9:1", ["10.9.9.9:1"]], ids=repr)
async def test_a_subset_without_a_replica_is_no_permission_for_others(subset):
    (reply,) = await replies(picker_of(router_of(*REPLICAS)), headers(subset=subset), piece(BODY))
    assert answer(reply) == (503, "no_replica")


async def test_a_picker_that_does_not_know_the_cluster_answers_503():
    for sent in ((headers(), piece(BODY)), (headers("/v1/models", method="GET", ends=True),)):
        (reply,) = await replies(picker_of(RequestRouter(Clock())), *sent)
        assert answer(reply) == (503, "not_synced")


async def test_the_bytes_of_all_bodies_are_bounded_and_given_back():
    picker = picker_of(router_of(*REPLICAS), body_bytes=1000, bytes_in_flight=1500)
    wait = asyncio.Event()
    first = asyncio.create_task(
        replies(picker, headers(), piece(BODY + b" " * 900, ends=False), then=wait.wait())
    )
    await asyncio.sleep(0)
    assert picker.bodies.in_flight > 900
    (reply,) = await replies(picker, headers(), piece(b" " * 800))
    assert answer(reply) == (503, "body_bytes")
    (reply,) = await replies(picker, headers(), piece(b" " * 1001))
    assert answer(reply) == (413, "invalid_request")
    wait.set()
    (reply,) = await first
    assert answer(reply) == (400, "invalid_request")
    assert picker.bodies.in_flight == 0


@pytest.mark.parametrize("body_bytes", [0, 1501])
def test_a_limit_with_which_no_body_or_no_large_one_could_be_read_is_refused(body_bytes):
    with pytest.raises(ValueError, match=f"a body of {body_bytes} bytes"):
        BodyLimits(body_bytes, 1500)


async def test_a_body_that_never_ends_is_answered():
    picker = picker_of(router_of(*REPLICAS), seconds=0.01)
    (reply,) = await replies(picker, headers(), piece(b"{", ends=False), then=asyncio.Event().wait())
    assert answer(reply) == (408, "invalid_request")
    assert picker.bodies.in_flight == 0


async def test_a_request_runs_until_the_access_log_has_its_end_or_it_is_overdue():
    clock = Clock()
    router = router_of(*REPLICAS, clock=clock)
    replied = [await replies(picker_of(router), headers(), piece(BODY)) for _ in range(3)]
    entries = StreamAccessLogsMessage()
    for first, _ in replied[:1]:
        entry = entries.http_logs.log_entry.add()
        entry.common_properties.metadata.filter_metadata["tangram"].CopyFrom(
            first.dynamic_metadata["tangram"]
        )
    for number in ("99", "no number", ""):
        entry = entries.http_logs.log_entry.add()
        entry.common_properties.metadata.filter_metadata["tangram"].update({"request_number": number})
    entries.http_logs.log_entry.add()

    async def batches():
        yield entries
        yield entries

    await AccessLog(router).StreamAccessLogs(batches(), None)
    assert router.running == 2
    router.update(MODELS, {MODEL.key: REPLICAS[:1]})
    clock.now = MODEL.max_request_s + BEYOND_MAX_REQUEST_S + 1
    router.end_overdue()
    assert router.running == 0
    router.update(PublishedModels(), {})
    assert router.replicas == 0


async def test_where_a_gateway_has_responses_processed_a_request_ends_with_its_stream():
    router = router_of(*REPLICAS)
    picker = Picker(router, GatewayMetrics(), stays_until_end=True)
    head, chunk, last = ProcessingRequest(), ProcessingRequest(), ProcessingRequest()
    head.response_headers.SetInParent()
    chunk.response_body.body = b"data: 1\n\n"
    last.response_trailers.SetInParent()
    seen = []

    async def stream():
        for message in (headers(), piece(BODY), head, chunk, last):
            yield message
            seen.append((router.running, picker.bodies.in_flight))

    replied = [reply async for reply in picker.Process(stream(), None)]
    assert [reply.WhichOneof("response") for reply in replied[2:]] == [
        "response_headers",
        "response_body",
        "response_trailers",
    ]
    assert replied[3].response_body.response.body_mutation.streamed_response.body == b"data: 1\n\n"
    assert seen == [(0, 0), (1, 0), (1, 0), (1, 0), (1, 0)]
    assert router.running == 0


async def test_a_client_that_leaves_before_its_request_is_sent_on_leaves_nothing_running():
    router = router_of(*REPLICAS)
    picker = picker_of(router)

    async def stream():
        yield headers()
        yield piece(BODY)

    process = picker.Process(stream(), None)
    await anext(process)
    assert router.running == 1
    await process.aclose()
    assert (router.running, picker.bodies.in_flight) == (0, 0)


async def test_a_stream_that_envoy_ends_with_the_last_response_ends_no_request():
    router = router_of(*REPLICAS)

    async def stream():
        yield headers()
        yield piece(BODY)

    process = picker_of(router).Process(stream(), None)
    _, last = await anext(process), await anext(process)
    assert last.request_body.response.body_mutation.streamed_response.end_of_stream
    await process.aclose()
    assert router.running == 1


async def test_an_answer_of_the_gateway_itself_to_a_request_that_it_did_not_show_stays_as_it_is():
    head, rest = ProcessingRequest(), ProcessingRequest()
    head.response_headers.SetInParent()
    rest.response_body.body, rest.response_body.end_of_stream = b"ok", True
    replied = await replies(picker_of(router_of(*REPLICAS)), head, rest)
    assert [reply.WhichOneof("response") for reply in replied] == ["response_headers", "response_body"]


def test_prefix_entries_are_divided_anew_when_models_come():
    router = RequestRouter(Clock())
    for count in range(1, 33):
        models = {
            f"ns/m{number}": PublishedModel("ns", f"m{number}", f"m{number}") for number in range(count)
        }
        router.update(PublishedModels({}, models), {})
    most = [loads.prefixes.most_entries for loads in router._loads.values()]
    assert sum(most) <= MAX_PREFIX_ENTRIES
    assert len(most) == 32
