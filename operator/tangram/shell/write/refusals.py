"""Refused writes that a user must solve: the problem that a condition of the LLMDeployment reports."""

from tangram.fleet import WriteProblem
from tangram.kube.client import ApiError
from tangram.kube.kinds import Kind, Object


class NameTaken(Exception):  # becomes a condition
    """A foreign object has the name of an object that the operator must create."""

    def __init__(self, kind: Kind, rendered: Object) -> None:
        meta = rendered["metadata"]
        super().__init__(
            f"a {kind.kind} named {meta['name']} exists in namespace {meta['namespace']} and does not belong"
            " to this LLMDeployment; it was left alone: rename the LLMDeployment or remove that object"
        )


def write_problem(owner_uid: str, error: ApiError | NameTaken) -> WriteProblem | None:
    """Return what the user must solve; None for an error that passes by itself (conflict, overload)."""
    if isinstance(error, NameTaken):
        return WriteProblem(owner_uid, "NameTaken", str(error))
    if error.status == 403:
        return WriteProblem(owner_uid, "Forbidden", error.message)
    if 400 <= error.status < 500 and not error.transient and error.status != 409:
        return WriteProblem(owner_uid, "Rejected", error.message)
    return None
