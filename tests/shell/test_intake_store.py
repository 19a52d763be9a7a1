"""The intake's copy against a log of the API server: events in any order, doubled or lost, and LISTs."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tangram.kube.kinds import LLM_DEPLOYMENTS, Key
from tangram.shell.intake import store as store_module
from tangram.shell.intake.store import IntakeStore
from tangram.shell.watch.expectations import Expectations

NAMES = ("a", "b", "c")


def obj(name: str, version: int, uid: str = "u", value: int = 0) -> dict[str, Any]:
    meta = {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"value": value}}


def new_store() -> IntakeStore:
    return IntakeStore(lambda obj: obj)


class IntakeModel(RuleBasedStateMachine):
    """An API server that remembers its state at each version; its events arrive in any order, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.store = new_store()
        self.states: list[dict[str, dict[str, Any]]] = [{}]  # by version
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.listed = -1  # newest version of an applied LIST of whole objects
        self.shown = dict.fromkeys(NAMES, -1)

    @property
    def version(self) -> int:
        return len(self.states) - 1

    @rule(name=st.sampled_from(NAMES), value=st.integers(0, 2))
    def write(self, name: str, value: int) -> None:
        before, version = self.states[-1].get(name), len(self.states)
        written = obj(name, version, before["metadata"]["uid"] if before else str(version), value)
        self.states.append({**self.states[-1], name: written})
        self.events.append(("MODIFIED", written))

    @precondition(lambda self: self.states[-1])
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.states[-1])))
        uid = self.states[-1][name]["metadata"]["uid"]
        self.states.append({key: kept for key, kept in self.states[-1].items() if key != name})
        self.events.append(("DELETED", obj(name, self.version, uid)))

    @precondition(lambda self: self.events)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """Deliver any event: late, before an older one, or a second time."""
        kind, event = self.events[data.draw(st.integers(0, len(self.events) - 1))]
        (self.store.remove if kind == "DELETED" else self.store.upsert)(event)

    @rule(age=st.integers(0, 3))
    def list_names(self, age: int) -> None:
        """Apply a LIST of names; newer events may have overtaken it."""
        at = max(0, self.version - age)
        versions = {key(name): int(o["metadata"]["resourceVersion"]) for name, o in self.states[at].items()}
        self.store.compare(versions, at)

    @rule(age=st.integers(0, 3))
    def list_objects(self, age: int) -> None:
        at = max(0, self.version - age)
        if at >= self.store.version:
            self.store.replace(list(self.states[at].values()), at)
            self.listed = at

    @invariant()
    def no_object_is_older_than_what_the_store_claims_to_show(self) -> None:
        for name in NAMES:
            shown = max(v for v in range(-1, self.version + 1) if self.store.shows(key(name), v) or v < 0)
            later = [state.get(name) for state in self.states[max(0, shown, self.listed) :]]
            assert self.store.get(key(name)) in later
            assert shown >= self.shown[name], "what was shown once is not forgotten"
            self.shown[name] = shown

    @invariant()
    def an_object_that_lags_behind_the_last_list_is_known_to(self) -> None:
        at = self.store.version
        for name, listed in self.states[at].items() if at >= 0 else ():
            lags = not self.store.shows(key(name), int(listed["metadata"]["resourceVersion"]))
            assert (key(name) in self.store.behind) == lags


def key(name: str) -> Key:
    return "n", name


IntakeModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestIntakeModel = IntakeModel.TestCase


def test_a_late_event_does_not_bring_a_deleted_object_back() -> None:
    store = new_store()
    store.replace([obj("a", 1)], 1)

    assert store.remove(obj("a", 5))
    assert not store.upsert(obj("a", 3))
    store.compare({}, 7)
    assert not store.upsert(obj("a", 4))
    assert len(store) == 0


def test_an_event_of_one_object_hides_no_older_event_of_another() -> None:
    store = new_store()
    store.replace([obj("a", 1), obj("b", 2)], 2)

    assert store.upsert(obj("a", 9, value=1))
    assert store.upsert(obj("b", 5, value=1))


def test_an_own_write_is_seen_once_the_event_of_that_object_arrives() -> None:
    store = new_store()
    store.replace([obj("a", 1), obj("b", 2)], 2)
    expectations = Expectations(lambda _kind, _namespace: store)
    expectations.expect_write(LLM_DEPLOYMENTS, obj("a", 7), now=0.0)

    store.upsert(obj("b", 9))
    assert len(expectations.open()) == 1
    store.upsert(obj("a", 7))
    assert expectations.open() == ()


def test_a_flood_of_deletions_takes_bounded_memory_and_brings_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_module, "MAX_DELETED", 10)
    store = new_store()
    store.replace([], 0)

    for number in range(100):
        store.upsert(obj(f"o{number}", 2 * number + 1))
        store.remove(obj(f"o{number}", 2 * number + 2))

    assert len(store._versions) <= 10
    assert not any(store.upsert(obj(f"o{number}", 2 * number + 1)) for number in range(100))
    assert store.upsert(obj("new", 500))


def test_the_objects_of_a_kind_that_is_no_longer_served_are_dropped() -> None:
    store = new_store()
    store.replace([obj("a", 1)], 1)
    store.upsert(obj("b", 5))

    assert store.clear()
    assert len(store) == 0
    assert not store.upsert(obj("b", 4))
