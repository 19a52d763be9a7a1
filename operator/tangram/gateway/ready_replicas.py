"""The replicas that are ready, as EndpointSlices list them. Pure."""

from collections.abc import Iterable

from tangram.kube.kinds import Key, Object, key_of, labels_of

SERVICE_LABEL = "kubernetes.io/service-name"
PORT_NAME = "http"  # of the Service of an LLMDeployment


def kept_fields(obj: Object) -> Object | None:
    """Keep the service and the addresses of an EndpointSlice that take new requests."""
    meta, service = obj["metadata"], labels_of(obj).get(SERVICE_LABEL)
    ports = {entry.get("name"): entry.get("port") for entry in obj.get("ports") or ()}
    if service is None or (port := ports.get(PORT_NAME)) is None:
        return None
    form = "[{}]:{}" if obj.get("addressType") == "IPv6" else "{}:{}"
    ready = [
        form.format(address, port)
        for endpoint in obj.get("endpoints") or ()
        if _takes_requests(endpoint.get("conditions") or {})
        for address in endpoint.get("addresses", ())[:1]
    ]
    names = ("name", "namespace", "uid", "resourceVersion")
    return {
        "metadata": {name: meta[name] for name in names if name in meta},
        "service": service,
        "ready": ready,
    }


def ready_replicas(endpoint_slices: Iterable[Object]) -> dict[Key, set[str]]:
    """Return the addresses (`ip:port`) of ready replicas by (namespace, name) of their Service."""
    addresses: dict[Key, set[str]] = {}
    for endpoint_slice in endpoint_slices:
        namespace, _ = key_of(endpoint_slice)
        addresses.setdefault((namespace, endpoint_slice["service"]), set()).update(endpoint_slice["ready"])
    return addresses


def _takes_requests(conditions: Object) -> bool:
    """Whether an endpoint is ready (unknown counts as ready, as in kube-proxy) and does not end."""
    return conditions.get("ready") is not False and not conditions.get("terminating")
