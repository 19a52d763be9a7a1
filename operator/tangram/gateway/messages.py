"""Messages of Envoy's external processing: what is read of requests, and responses. Pure."""

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HeadersResponse,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
    TrailersResponse,
)

from tangram.gateway.answers import GatewayAnswer
from tangram.gateway.router import Route

DESTINATION = "x-gateway-destination-endpoint"
"""Header, and key of metadata, with the replica, as the Gateway API Inference Extension names them."""
NEXT_DESTINATIONS = ("x-tangram-destination-2", "x-tangram-destination-3")
"""Headers with the replicas that Envoy tries next; a replica that is absent has the header removed."""
SUBSET_NAMESPACE, SUBSET = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
LB_NAMESPACE = "envoy.lb"
OWN_NAMESPACE = "tangram"  # of metadata: what Envoy's access log brings back
REQUEST_NUMBER, IS_ANSWERED = "request_number", "is_answered"
MAX_PIECE = 62_000  # bytes of a body in one message: Envoy accepts 64 KiB
MAX_SUBSET = 1024
OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def header(headers: HttpHeaders, name: str) -> str:
    """Return the value of a header, empty where it is absent."""
    for entry in headers.headers.headers:
        if entry.key == name:
            return entry.raw_value.decode("utf-8", "replace") or str(entry.value)
    return ""


def subset_of(request: ProcessingRequest) -> frozenset[str] | None:
    """Return the replicas to which a gateway restricts the choice; None: it does not.

    Gateways write one string with commas, or a list. An empty one allows none.
    """
    fields = request.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in fields or SUBSET not in fields[SUBSET_NAMESPACE].fields:
        return None
    hint = fields[SUBSET_NAMESPACE].fields[SUBSET]
    texts = [value.string_value for value in hint.list_value.values] or hint.string_value.split(",")
    return frozenset(text.strip() for text in texts[:MAX_SUBSET] if text.strip())


def routed(route: Route) -> ProcessingResponse:
    """Return the response that sends a request to its replica."""
    first = route.addresses[0]
    response = ProcessingResponse()
    common = response.request_headers.response
    common.clear_route_cache = True
    for name, address in zip_longest((DESTINATION, *NEXT_DESTINATIONS), route.addresses):
        if address is None:
            common.header_mutation.remove_headers.append(name)
            continue
        option = common.header_mutation.set_headers.add(append_action=OVERWRITE)
        option.header.key, option.header.raw_value = name, address.encode()
    metadata = response.dynamic_metadata.fields
    metadata[LB_NAMESPACE].struct_value.fields[DESTINATION].string_value = first
    metadata[OWN_NAMESPACE].struct_value.fields[REQUEST_NUMBER].string_value = str(route.request_number)
    return response


def sent_on(route: Route, *, has_trailers: bool) -> Iterator[ProcessingResponse]:
    """Return the responses that send a whole request to its replica, the body in pieces."""
    yield routed(route)
    body = route.body
    for begin in range(0, len(body), MAX_PIECE):
        ends_stream = not has_trailers and begin + MAX_PIECE >= len(body)
        yield _streamed("request_body", body[begin : begin + MAX_PIECE], ends_stream)
    if has_trailers:
        yield ProcessingResponse(request_trailers=TrailersResponse())


def unchanged(message: ProcessingRequest) -> ProcessingResponse:
    """Return what leaves a part of a response as it is."""
    match message.WhichOneof("request"):
        case "response_headers":
            return ProcessingResponse(response_headers=HeadersResponse())
        case "response_body":
            part = message.response_body
            return _streamed("response_body", part.body, part.end_of_stream)
        case _:
            return ProcessingResponse(response_trailers=TrailersResponse())


def _streamed(kind: str, body: bytes, ends_stream: bool) -> ProcessingResponse:
    response = ProcessingResponse()
    streamed = getattr(response, kind).response.body_mutation.streamed_response
    streamed.body, streamed.end_of_stream = body, ends_stream
    return response


def answered(answer: GatewayAnswer) -> ProcessingResponse:
    """Return the response with which Envoy answers itself."""
    response = ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = answer.status
    immediate.body = answer.body
    immediate.details = f"tangram_{answer.reason}"
    for name, value in {"content-type": "application/json", **answer.headers}.items():
        option = immediate.headers.set_headers.add()
        option.header.key, option.header.raw_value = name, value.encode()
    response.dynamic_metadata.fields[OWN_NAMESPACE].struct_value.fields[IS_ANSWERED].bool_value = True
    return response


def request_numbers(entries: Iterable[object]) -> Iterator[int]:
    """Return the numbers of the requests that ended, of entries of Envoy's HTTP access log."""
    for entry in entries:
        metadata = entry.common_properties.metadata.filter_metadata  # type: ignore[attr-defined]
        if OWN_NAMESPACE in metadata:
            number = metadata[OWN_NAMESPACE].fields[REQUEST_NUMBER].string_value
            if number.isdecimal():
                yield int(number)
