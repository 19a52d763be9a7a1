"""The mirror's copy against a reference: whatever is lost, doubled or replayed, a LIST corrects it."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tangram.kube.store import Store

NAMES = st.sampled_from(["a", "b", "c"])


def obj(name: str, version: int, uid: str, value: int = 0, owner: str = "") -> dict[str, Any]:
    meta: dict[str, Any] = {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version)}
    if owner:
        meta["ownerReferences"] = [{"uid": owner}]
    return {"metadata": meta, "spec": {"value": value}}


class MirrorModel(RuleBasedStateMachine):
    """An API server with a log of events, a watch that delivers from it in order, and relists."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(lambda obj: obj)
        self.truth: dict[str, dict[str, Any]] = {}
        self.history: dict[int, dict[str, dict[str, Any]]] = {0: {}}
        self.log: list[tuple[int, str, dict[str, Any]]] = []
        self.version, self.delivered, self.uids = 0, 0, 0
        self.store.replace([], 0)

    def _commit(self, kind: str, event: dict[str, Any]) -> None:
        self.log.append((self.version, kind, event))
        self.history[self.version] = dict(self.truth)

    @rule(name=NAMES, value=st.integers(0, 2), owner=st.sampled_from(["", "o1", "o2"]))
    def write(self, name: str, value: int, owner: str) -> None:
        self.version += 1
        current = self.truth.get(name)
        if current is None:
            self.uids += 1
        uid = current["metadata"]["uid"] if current else str(self.uids)
        self.truth[name] = obj(name, self.version, uid, value, owner)
        self._commit("MODIFIED" if current else "ADDED", self.truth[name])

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.truth)))
        self.version += 1
        gone = self.truth.pop(name)
        self._commit("DELETED", obj(name, self.version, gone["metadata"]["uid"]))

    @precondition(lambda self: self.delivered < len(self.log))
    @rule(again=st.booleans())
    def deliver(self, again: bool) -> None:
        _, kind, event = self.log[self.delivered]
        self.delivered += 1
        for _ in range(1 + again):
            (self.store.remove if kind == "DELETED" else self.store.upsert)(event)

    @precondition(lambda self: self.delivered > 1)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        """Events that were delivered already come again (a watch that starts too early)."""
        _, kind, event = self.log[data.draw(st.integers(0, self.delivered - 1))]
        assert not (self.store.remove if kind == "DELETED" else self.store.upsert)(event)

    @rule()
    def relist(self) -> None:
        """A disconnect (events are lost), then a LIST."""
        self.store.replace(list(self.truth.values()), self.version)
        self.delivered = len(self.log)

    @precondition(lambda self: self.delivered == len(self.log))
    @rule()
    def bookmark(self) -> None:
        self.store.advance(self.version)

    @rule()
    def compare_with_a_list(self) -> None:
        if self.delivered == len(self.log):
            assert self.store.mismatches(list(self.truth.values())) == {}

    @invariant()
    def the_copy_is_the_truth_up_to_what_was_delivered(self) -> None:
        at = self.log[self.delivered - 1][0] if self.delivered else 0
        expected = self.history[max(at, 0)]
        assert {o["metadata"]["name"]: o for o in self.store} == expected


MirrorModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMirrorModel = MirrorModel.TestCase


def test_a_change_of_the_resource_version_alone_is_no_change() -> None:
    store = Store(lambda obj: obj)
    assert store.replace([obj("a", 1, "u")], 1)

    assert not store.upsert(obj("a", 2, "u"))
    assert store.upsert(obj("a", 3, "u", value=1))


def test_a_lost_deletion_is_a_mismatch() -> None:
    store = Store(lambda obj: obj)
    store.replace([obj("a", 1, "u"), obj("b", 2, "v")], 2)

    assert store.mismatches([obj("a", 1, "u")]) == {("n", "b"): ("v", 2)}


def test_an_irrelevant_object_is_dropped_from_the_store() -> None:
    store = Store(lambda o: o if o["spec"]["value"] else None)
    store.replace([obj("a", 1, "u", value=1)], 1)

    assert store.upsert(obj("a", 2, "u", value=0))
    assert len(store) == 0
