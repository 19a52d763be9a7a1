"""Which client set spec.replicas: of managedFields only that is kept, whatever is in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.api.llm_deployment.replicas_set_by import reduced, replicas_set_by
from tangram.api.llm_deployment.status import ReplicasSetBy
from tangram.fleet import FieldManager
from tangram.shell.watch import kept_fields

OWNED = {"f:spec": {"f:replicas": {}}}


def entry(manager="kubectl", fields=OWNED, time="2026-11-22T10:00:00Z", **more):
    return {"manager": manager, "operation": "Update", "fieldsV1": fields, "time": time} | more


def obj(*entries, **spec):
    meta = {"name": "m", "namespace": "ns", "uid": "u", "managedFields": list(entries)}
    return {"kind": "LLMDeployment", "metadata": meta, "spec": spec}


def test_the_manager_that_owns_the_field_is_told_with_subresource_and_time():
    found = replicas_set_by(
        obj(
            entry("tangram-status", {"f:status": {"f:replicas": {}}}, subresource="status"),
            entry("helm", {"f:spec": {"f:model": {}}}, "2026-11-22T12:00:00Z"),
            entry("kube-controller-manager", subresource="scale"),
        )
    )

    assert found == FieldManager("kube-controller-manager", "scale", "2026-11-22T10:00:00Z")


def test_of_several_owners_the_last_one_counts():
    found = replicas_set_by(obj(entry("argocd", time="2026-11-22T11:00:00Z"), entry("kubectl")))

    assert found == FieldManager("argocd", "", "2026-11-22T11:00:00Z")


def test_the_mirror_keeps_the_client_and_no_managed_fields():
    kept = kept_fields.custom_resource(obj(entry("kubectl", subresource="scale"), replicas=3))

    assert "managedFields" not in kept["metadata"]
    assert replicas_set_by(kept) == FieldManager("kubectl", "scale", "2026-11-22T10:00:00Z")
    assert kept_fields.custom_resource(kept) == kept


@pytest.mark.parametrize(
    "entries",
    [
        None,
        "x",
        [None],
        [[]],
        [entry(None)],
        [entry("")],
        [entry("\u202e\x00\n")],
        [entry(fields=None)],
        [entry(fields={"f:spec": None})],
        [entry(fields={"f:spec": []})],
        [entry(fields="f:spec")],
        [],
    ],
)
def test_managed_fields_that_tell_nothing_are_no_client(entries):
    assert replicas_set_by({"metadata": {"managedFields": entries}}) is None
    assert reduced({"metadata": {"managedFields": entries}}) == {}


def test_names_and_times_are_bounded_and_plain():
    found = replicas_set_by(
        obj(entry("a\n\x1b[31m" + "b" * 100_000, time="2026-13-45T99:00:00Z", subresource=7))
    )

    assert found is not None
    assert len(found.manager) <= 128
    assert found.manager.isprintable()
    assert (found.subresource, found.time) == ("", "")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["f:spec", "f:replicas"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["manager", "time", "subresource", "fieldsV1", "f:spec", "f:replicas"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_whatever_is_in_managed_fields_nothing_raises_and_the_status_fits_its_schema(entries):
    found = replicas_set_by({"metadata": {"managedFields": entries}})

    if found is not None:
        ReplicasSetBy(manager=found.manager, subresource=found.subresource or None, time=found.time or None)
