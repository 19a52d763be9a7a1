"""PrometheusRules of LLMDeployments: what is written, refused, deleted, left alone; without an API server."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tangram.fleet import Intent, Objective
from tangram.kube.client import ApiError, Listing
from tangram.kube.kinds import PROMETHEUS_RULES, Kind, key_of
from tangram.kube.mirror import Mirror
from tangram.shell.lead.lease import NotLeader
from tangram.shell.measure.fault_log import FaultLog
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.measure.scaler import Scaler
from tangram.shell.process.observation import Observer
from tangram.shell.settings import PrometheusRuleSettings
from tangram.shell.write.alert_rules import AlertRules, rule_sources
from tests.support import views
from tests.support.fleet import intent as llm
from tests.support.views import running

SETTINGS = PrometheusRuleSettings(per_llm_deployment=True, labels={"release": "kps"})
CHAT = llm("chat", namespace="ns", ttft=Objective(99, 1000))
KEY = ("ns", "chat")
NOT_SERVED = ApiError(404, "NotFound", "the server could not find the requested resource")
FORBIDDEN = ApiError(403, "Forbidden", "prometheusrules is forbidden")


@dataclass
class Api:
    """Stores PrometheusRules. `fails` and `list_fails` are raised instead."""

    rules: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    version: int = 10
    writes: list[str] = field(default_factory=list)
    fails: Exception | None = None
    list_fails: ApiError | None = None

    async def list(
        self, kind: Kind, namespace: str, selector: str, keep: Callable[[Any], Any], _page: Any
    ) -> Listing:
        assert (kind, selector) == (PROMETHEUS_RULES, "app.kubernetes.io/managed-by=tangram")
        if self.list_fails is not None:
            raise self.list_fails
        kept = [keep(rule) for rule in self.rules.values() if key_of(rule)[0] == namespace]
        return Listing([rule for rule in kept if rule is not None], str(self.version))

    async def get(self, _kind: Kind, namespace: str, name: str) -> Any:
        return self.rules.get((namespace, name))

    async def create(self, kind: Kind, obj: Any, **_: Any) -> Any:
        if key_of(obj) in self.rules:
            raise ApiError(409, "AlreadyExists", "exists")
        return self._stored("create", kind, obj)

    async def apply(self, kind: Kind, obj: Any, **_: Any) -> Any:
        return self._stored("apply", kind, obj)

    async def delete(self, kind: Kind, namespace: str, name: str, *, resource_version: str, **_: Any) -> bool:
        assert self.rules[namespace, name]["metadata"]["resourceVersion"] == resource_version
        del self.rules[namespace, name]
        self._note("delete", kind)
        return True

    def _stored(self, verb: str, kind: Kind, obj: Any) -> Any:
        self._note(verb, kind)
        meta = {"uid": f"uid-rule-{obj['metadata']['name']}"} | obj["metadata"]
        self.rules[key_of(obj)] = {**obj, "metadata": meta | {"resourceVersion": str(self.version)}}
        return self.rules[key_of(obj)]

    def _note(self, verb: str, kind: Kind) -> None:
        assert kind == PROMETHEUS_RULES
        if self.fails is not None:
            raise self.fails
        self.version += 1
        self.writes.append(verb)


class Cluster:
    """An API server and the rules that are kept there; time passes by hand."""

    def __init__(self) -> None:
        self.now, self.changes, self.bugs = 1000.0, 0, 0
        self.api = Api()
        (source,) = rule_sources(("ns",), SETTINGS)
        self.mirror = Mirror(self.api, source, changed=lambda: None, clock=lambda: self.now)  # type: ignore[arg-type]
        self.rules = AlertRules(
            self.api,  # type: ignore[arg-type]
            (self.mirror,),
            SETTINGS,
            lambda: self.now,
            changed=self._changed,
            failed=self._failed,
        )

    def _changed(self) -> None:
        self.changes += 1

    def _failed(self, *_: Any) -> None:
        self.bugs += 1

    async def keep(self, *intents: Intent, after_s: float = 0.0) -> list[str]:
        """Run one pass after the mirror has listed; return what was written in it."""
        self.now += after_s
        self.api.writes.clear()
        await self.mirror.refresh_if_available()
        self.rules.offer(intents, lambda: 10.0)
        await self.rules.write()
        return self.api.writes[:]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_an_llm_deployment_with_objectives_gets_a_rule_once(cluster: Cluster) -> None:
    assert await cluster.keep(CHAT) == ["create"]
    assert await cluster.keep(CHAT) == []
    assert await cluster.keep(CHAT, after_s=3600) == []


async def test_the_rule_is_owned_and_has_the_labels_that_prometheus_and_the_operator_select_by(
    cluster: Cluster,
) -> None:
    await cluster.keep(CHAT)

    rule = cluster.api.rules[KEY]
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["metadata"]["labels"] == {
        "release": "kps",
        "app.kubernetes.io/managed-by": "tangram",
        "app.kubernetes.io/component": "alerts",
        "tangram.dev/llmdeployment": "chat",
    }
    (owner,) = rule["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == (
        *("LLMDeployment", "chat", CHAT.uid),
        True,
    )


async def test_without_objectives_there_is_no_rule(cluster: Cluster) -> None:
    assert await cluster.keep(replace(CHAT, ttft=None)) == []


async def test_the_rule_goes_with_the_objectives(cluster: Cluster) -> None:
    await cluster.keep(CHAT)

    assert await cluster.keep(replace(CHAT, ttft=None)) == ["delete"]
    assert await cluster.keep(replace(CHAT, ttft=None)) == []
    assert await cluster.keep(CHAT) == ["create"]


async def test_a_changed_objective_changes_the_rule(cluster: Cluster) -> None:
    await cluster.keep(CHAT)

    assert await cluster.keep(replace(CHAT, ttft=Objective(90, 1000))) == ["apply"]
    assert "> 0.75 and" in str(cluster.api.rules[KEY]["spec"])


@pytest.mark.parametrize("part", ["expr", "release", "app.kubernetes.io/component", "deleted"])
async def test_an_edit_is_set_back(part: str, cluster: Cluster) -> None:
    await cluster.keep(CHAT)
    rule = cluster.api.rules[KEY]
    original = str(rule["spec"]), str(rule["metadata"]["labels"])
    if part == "expr":
        (group,) = rule["spec"]["groups"]
        rule["spec"] = {"groups": [{**group, "rules": group["rules"][:-1]}]}
    elif part == "deleted":
        del cluster.api.rules[KEY]
    else:
        rule["metadata"]["labels"] = rule["metadata"]["labels"] | {part: "other"}
    cluster.api.version += 1
    rule["metadata"] = rule["metadata"] | {"resourceVersion": str(cluster.api.version)}

    assert await cluster.keep(CHAT) == ["create" if part == "deleted" else "apply"]

    rule = cluster.api.rules[KEY]
    assert (str(rule["spec"]), str(rule["metadata"]["labels"])) == original


async def test_a_group_that_a_person_adds_causes_no_write(cluster: Cluster) -> None:
    await cluster.keep(CHAT)
    rule = cluster.api.rules[KEY]
    rule["spec"]["groups"].append({"name": "mine", "rules": []})
    rule["metadata"]["annotations"]["a"] = "b"
    cluster.api.version += 1
    rule["metadata"]["resourceVersion"] = str(cluster.api.version)

    assert await cluster.keep(CHAT) == []


async def test_where_the_kind_is_not_served_nothing_happens_until_it_is(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.api.list_fails = NOT_SERVED
    for _ in range(5):
        assert await cluster.keep(CHAT, after_s=60) == []
    assert (cluster.rules.problems, cluster.bugs) == ({}, 0)
    assert len(caplog.records) == 1

    cluster.api.list_fails = None
    await cluster.mirror._list()
    assert await cluster.keep(CHAT) == ["create"]


async def test_a_kind_that_is_removed_and_comes_back_is_noticed(cluster: Cluster) -> None:
    await cluster.keep(CHAT)
    cluster.api.list_fails, cluster.api.rules = NOT_SERVED, {}
    assert await cluster.keep(CHAT, after_s=60) == []

    cluster.api.list_fails = None
    await cluster.mirror._list()
    assert await cluster.keep(CHAT, after_s=60) == ["create"]


async def test_a_kind_that_is_removed_between_list_and_write_is_no_problem(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.api.fails = NOT_SERVED
    assert await cluster.keep(CHAT) == []
    assert (cluster.rules.problems, caplog.records) == ({}, [])


@pytest.mark.parametrize("call", ["list", "create"])
async def test_a_missing_right_is_one_problem_that_ends_with_it(
    call: str, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    if call == "list":
        cluster.api.list_fails = FORBIDDEN
    else:
        cluster.api.fails = FORBIDDEN
    other = replace(CHAT, name="other", uid="uid-other")
    for _ in range(5):
        await cluster.keep(CHAT, other, after_s=300)

    assert set(cluster.rules.problems) == {CHAT.uid, other.uid}
    (text,) = set(cluster.rules.problems.values())  # one for the namespace: it is logged once
    assert "may not write PrometheusRules in namespace ns" in text
    assert cluster.changes == 1
    assert len(caplog.records) == (1 if call == "list" else 0)  # the round logs warnings of intents

    cluster.api.list_fails = cluster.api.fails = None
    await cluster.mirror._list()
    assert await cluster.keep(CHAT, other, after_s=300) == ["create", "create"]
    assert cluster.rules.problems == {}
    assert cluster.changes == 2


async def test_without_objectives_a_missing_right_is_no_problem(cluster: Cluster) -> None:
    cluster.api.list_fails = FORBIDDEN
    await cluster.keep(replace(CHAT, ttft=None))
    assert cluster.rules.problems == {}


async def test_refused_writes_wait_longer_and_longer(cluster: Cluster) -> None:
    cluster.api.fails = FORBIDDEN
    attempts = 0
    for _ in range(600):
        before = cluster.rules.retries._entries.get(CHAT.uid)
        await cluster.keep(CHAT, after_s=1)
        attempts += cluster.rules.retries._entries.get(CHAT.uid) != before
    assert 5 < attempts < 10


async def test_a_foreign_rule_of_the_name_is_left_alone(cluster: Cluster) -> None:
    meta = {"name": "chat", "namespace": "ns", "uid": "f", "resourceVersion": "3"}
    foreign: dict[str, Any] = {"metadata": meta, "spec": {}}
    cluster.api.rules[KEY] = foreign

    assert await cluster.keep(CHAT) == []
    assert cluster.api.rules[KEY] is foreign
    assert "a PrometheusRule named chat exists in namespace ns" in cluster.rules.problems[CHAT.uid]
    assert await cluster.keep(replace(CHAT, ttft=None), after_s=300) == []
    assert cluster.rules.problems == {}


async def test_a_failing_webhook_is_logged_once(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.api.fails = ApiError(500, "InternalError", "failed calling webhook")
    for _ in range(5):
        await cluster.keep(CHAT, after_s=300)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert cluster.rules.problems == {}


async def test_a_bug_costs_one_llm_deployment_alone(cluster: Cluster) -> None:
    broken = replace(CHAT, name="broken", uid="uid-broken", ttft=Objective(99, 0))  # below all edges
    assert await cluster.keep(broken, CHAT) == ["create"]
    assert (cluster.bugs, key_of(next(iter(cluster.api.rules.values())))) == (1, KEY)


async def test_nothing_is_written_without_the_lease(cluster: Cluster) -> None:
    await cluster.keep(CHAT)
    cluster.rules.stop_leading()
    await cluster.rules.write()
    assert await cluster.keep() == []

    cluster.api.fails = NotLeader("lost")
    cluster.rules.offer([replace(CHAT, ttft=Objective(90, 500))], lambda: 10.0)
    with pytest.raises(NotLeader):
        await cluster.rules.write()


async def test_a_deleted_llm_deployment_is_forgotten_and_its_rule_left_to_the_garbage_collector(
    cluster: Cluster,
) -> None:
    await cluster.keep(CHAT)
    assert await cluster.keep() == []
    assert KEY in cluster.api.rules
    assert cluster.rules._written == {}


async def test_the_rule_of_a_deleted_predecessor_is_not_touched(cluster: Cluster) -> None:
    await cluster.keep(CHAT)
    successor = replace(CHAT, uid="uid-second")
    assert await cluster.keep(successor) == []
    assert cluster.rules.problems == {}

    del cluster.api.rules[KEY]
    assert await cluster.keep(successor) == ["create"]


def test_no_mirror_without_the_setting() -> None:
    assert rule_sources((), PrometheusRuleSettings()) == ()
    assert [source.namespace for source in rule_sources((), SETTINGS)] == [""]
    assert [source.namespace for source in rule_sources(("a", "b"), SETTINGS)] == ["a", "b"]


@pytest.mark.parametrize("labels", [{"a b": "c"}, {"a": "b c"}, {"": "a"}])
def test_settings_refuse_what_is_no_label(labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="is no label"):
        PrometheusRuleSettings(labels=labels)


def test_a_problem_is_a_warning_of_the_llm_deployment_alone() -> None:
    fleet = running("chat", "other")
    observer = Observer(views.SETTINGS, Scaler(views.PARAMS, None), FaultLog(OperatorMetrics()))

    observed = observer.observe(fleet.view(), views.NOW, warnings={"uid-chat": "it has no alert rules"})

    assert {intent.name: intent.warnings for intent in observed.intents} == {
        "chat": ("it has no alert rules",),
        "other": (),
    }
    assert observed.parsed == observed.intents
