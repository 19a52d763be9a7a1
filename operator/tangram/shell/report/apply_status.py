"""Write the status of one object by server-side apply on its status subresource."""

from tangram.shell.api_server.client import ApiClient, ApiError, Guard
from tangram.shell.objects.kinds import Kind, Object


async def apply_status(
    client: ApiClient, guard: Guard, kind: Kind, obj: Object, status: Object, manager: str
) -> Object | None:
    """Return `obj` as stored; None if it was deleted, or deleted and created again. Raises ApiError."""
    meta = obj["metadata"]
    body = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {key: meta[key] for key in ("name", "namespace", "uid") if key in meta},
        "status": status,
    }
    try:
        return await client.apply(kind, body, manager=manager, force=True, subresource="status", guard=guard)
    except ApiError as error:
        if error.status == 404 or (error.status == 409 and "uid" in error.message.lower()):
            return None  # the mirror will show it
        raise
