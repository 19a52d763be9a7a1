"""`tangram convert`: the old form in, the new form out, every other byte as it was."""

import io
import json
import stat
import sys
from decimal import Decimal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.api.common.old_forms import OLD_FORMS, Change, old_parts
from tangram.cli.convert.conversion import Converter
from tangram.cli.main import main

OLD = """\
# Chat, for the front end.
apiVersion: v1
kind: Namespace
metadata: {name: shop}   # keep me
---
apiVersion: tangram.dev/v1alpha1
kind: LLMDeployment
metadata:
    name:   chat   # odd indentation
    namespace: 'shop'
spec:
    model: {uri: "pvc://weights/llama"}
    scaling:      # bounds
        min: 2    # never fewer
        max: 8
    # Before the batch jobs.
    priority: 10
    traffic: {requestsPerSecond: 0.10, inputTokens: 1024, outputTokens: 256}
    placement:
        allowedSKUs:
        - H100-80GB-SXM
        spread:
            node: .5
            zone: 1e-3
        budgetPerHour: 12

---

apiVersion: tangram.dev/v1alpha1
kind: GPUPool
metadata: {name: h100}
spec:
  nodeSelector: {pool: h100}
  pricePerGPUHour: 2.50
  nodes:
    max: 4
    sku: H100-80GB-SXM  # what we can get
    gpusPerNode: 8
"""
NEW = """\
# Chat, for the front end.
apiVersion: v1
kind: Namespace
metadata: {name: shop}   # keep me
---
apiVersion: tangram.dev/v1alpha1
kind: LLMDeployment
metadata:
    name:   chat   # odd indentation
    namespace: 'shop'
spec:
    model: {uri: "pvc://weights/llama"}
    scaling:      # bounds
        minReplicas: 2    # never fewer
        maxReplicas: 8
    # Before the batch jobs.
    priorityClassName: tangram-priority-10
    traffic: {requestsPerSecond: "0.10", inputTokens: {mean: 1024}, outputTokens: {mean: 256}}
    placement:
        allowedSKUs:
        - H100-80GB-SXM
        spread:
            node: "0.5"
            zone: "0.001"
        budgetPerHour: 12

---

apiVersion: tangram.dev/v1alpha1
kind: GPUPool
metadata: {name: h100}
spec:
  nodeSelector: {pool: h100}
  pricePerGPUHour: "2.50"
  sku: H100-80GB-SXM  # what we can get
  nodes:
    max: 4
    gpusPerNode: 8
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata:
  name: tangram-priority-10
  labels:
    tangram.dev/priority-class: 'true'
value: 1010
preemptionPolicy: Never
description: LLMDeployments that had spec.priority 10.
"""
HEAD = "apiVersion: tangram.dev/v1alpha1\nkind: LLMDeployment\nmetadata: {name: chat}\n"


def converted(text, *others):
    """The new form of one file, beside other files of the same call."""
    converter = Converter()
    for each in (text, *others):
        converter.read(each, "f.yaml")
    return converter.convert(text, "f.yaml").after


def refused(text, capsys, tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text(text)
    assert main(["convert", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    return err.replace(str(tmp_path), "")


def test_only_what_changed_is_written_anew():
    assert converted(OLD) == NEW


def test_what_is_converted_stays_as_it_is():
    assert converted(NEW) == NEW


def test_line_ends_and_a_byte_order_mark_stay():
    text = "\ufeff" + OLD.replace("\n", "\r\n")

    assert converted(text) == "\ufeff" + NEW.replace("\n", "\r\n")


def test_every_row_of_the_list_converts_as_it_says():
    for form in OLD_FORMS:
        if form.change is Change.OBSERVED:
            continue
        (key, _, value), (new_key, _, new_value) = (each.partition(": ") for each in (form.old, form.new))
        head = HEAD.replace("LLMDeployment", form.kind)
        before, after = (
            yaml.safe_load(head) | {"spec": nested(path.split("."), yaml.safe_load(text))}
            for path, text in ((key, value), (new_key, new_value))
        )

        found = yaml.safe_load_all(converted(yaml.safe_dump(before)))

        assert next(found) == after
        assert [each.change for each in old_parts(form.kind, before)] == [form.change]
        assert list(old_parts(form.kind, after)) == []


def nested(path, value):
    for key in reversed(path):
        value = {key: value}
    return value


def as_json_prints(text):
    """The same with numbers as Python and JSON have them, too."""
    for written, printed in (("0.10", "0.1"), (" .5", " 0.5"), ("1e-3", "0.001"), ("2.50", "2.5")):
        text = text.replace(written, printed)
    return text


@pytest.mark.parametrize("indent", [None, 4, "\t"])
def test_json_stays_json(indent):
    objects = list(yaml.safe_load_all(as_json_prints(OLD)))
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=indent)

    found = json.loads(converted(text))

    *wanted, made = yaml.safe_load_all(as_json_prints(NEW))
    assert found == {"apiVersion": "v1", "kind": "List", "items": [made, *wanted]}


def test_one_json_object_and_its_priority_class_become_a_list():
    (_, old, _), (_, new, _, made) = (list(yaml.safe_load_all(as_json_prints(text))) for text in (OLD, NEW))

    found = json.loads(converted(json.dumps(old)))

    assert found == {"apiVersion": "v1", "kind": "List", "items": [made, new]}


def test_a_dump_of_a_cluster_loses_what_only_the_cluster_writes(tmp_path, capsys):
    item = {
        "apiVersion": "tangram.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}\n"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 3,
            "labels": {"team": "shop"},
            "managedFields": [{"manager": "kubectl"}],
            "name": "chat",
            "namespace": "shop",
            "resourceVersion": "12",
            "uid": "a-b",
        },
        "spec": {"model": {"uri": "image:///m"}, "scaling": {"max": 2, "min": 1}},
        "status": {"replicas": "1/1"},
    }
    path = tmp_path / "dump.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "items": [item, item], "kind": "List"}))

    assert main(["convert", str(path)]) == 0

    out, err = capsys.readouterr()
    bare = {
        "apiVersion": "tangram.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"labels": {"team": "shop"}, "name": "chat", "namespace": "shop"},
        "spec": {"model": {"uri": "image:///m"}, "scaling": {"maxReplicas": 2, "minReplicas": 1}},
    }
    assert yaml.safe_load(out)["items"] == [bare, bare]
    assert "shop/chat: dropped fields that only the cluster writes: status, metadata.managedFields" in err


def test_a_priority_class_of_the_files_is_taken():
    ours = (
        "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\n"
        'metadata: {name: urgent, labels: {tangram.dev/priority-class: "true"}}\n'
        "value: 1010\npreemptionPolicy: Never\n"
    )
    text = HEAD + "spec: {priority: 10}\n"

    assert converted(text, ours) == HEAD + "spec: {priorityClassName: urgent}\n"
    for useless in (ours.replace("Never", "PreemptLowerPriority"), ours.replace('"true"', '"no"')):
        assert "tangram-priority-10" in converted(text, useless)


def test_one_priority_class_is_made_for_all_files_of_a_call(tmp_path):
    paths = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for path in paths:
        path.write_text(HEAD + "spec:\n  priority: -5\n")

    assert main(["convert", "-i", *map(str, paths)]) == 0

    first, second = (list(yaml.safe_load_all(path.read_text())) for path in paths)
    assert [each["kind"] for each in first] == ["LLMDeployment", "PriorityClass"]
    assert first[1]["metadata"]["name"] == "tangram-priority-minus-5"
    assert first[1]["value"] == 995
    assert second == first[:1]


@pytest.mark.parametrize(
    ("spec", "new"),
    [
        ("spec:\n  priority: 0  # none\n  paused: true\n", "spec:\n  paused: true\n"),
        (
            "spec:\n  paused: true\n\n  # last\n  priority: 0\n# end\n",
            "spec:\n  paused: true\n\n  # last\n# end\n",
        ),
        ("spec: {paused: true, priority: 0}\n", "spec: {paused: true}\n"),
        ("spec: {priority: 0, paused: true}\n", "spec: {paused: true}\n"),
        ("spec:\n  scaling:\n    min:   1\n", "spec:\n  scaling:\n    minReplicas:   1\n"),
        ("spec:\n  scaling: {'max': 1}\n", "spec:\n  scaling: {'maxReplicas': 1}\n"),
        ("spec:\n  scaling: {min: 2, minReplicas: 2}\n", "spec:\n  scaling: {minReplicas: 2}\n"),
        (
            "spec:\n  traffic:\n    inputTokens:\n      512\n",
            "spec:\n  traffic:\n    inputTokens: {mean: 512}\n",
        ),
        (
            "spec:\n  traffic: {inputTokens: &n 512, outputTokens: *n}\n",
            "spec:\n  traffic: {inputTokens: &n {mean: 512}, outputTokens: {mean: 512}}\n",
        ),
    ],
)
def test_layouts(spec, new):
    assert converted(HEAD + spec) == HEAD + new


@pytest.mark.parametrize(
    ("written", "decimal"),
    [
        ("0.50", '"0.50"'),
        ("5.", '"5"'),
        ("1.5e+3", '"1500"'),
        ("2e-3", '"0.002"'),
        ("0.30000000000000004", '"0.3"'),
        ("0.1234567890123456789", '"0.12345678901235"'),
        ("12", "12"),
        ('"0.5"', '"0.5"'),
        ("0.0", '"0.0"'),
    ],
)
def test_decimals_stay_as_they_are_written_within_the_digits_of_a_float(written, decimal):
    text = f"{HEAD}spec: {{placement: {{budgetPerHour: {written}}}}}\n"

    assert converted(text) == text.replace(written, decimal)


def test_a_pool_that_says_nothing_but_the_model_of_new_nodes_loses_its_section():
    head = HEAD.replace("LLMDeployment", "GPUPool")

    assert converted(head + "spec:\n  nodes:\n    sku: A30 # new\n") == head + "spec:\n  sku: A30 # new\n"
    assert converted(head + "spec: {nodes: {sku: A30}}\n") == head + "spec: {sku: A30}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            HEAD + "spec:\n  priority: high\n",
            "/f.yaml:5: LLMDeployment chat: spec.priority: is 'high', not a",
        ),
        (
            HEAD + "spec:\n  traffic:\n    inputTokens: many\n",
            "/f.yaml:6: LLMDeployment chat: spec.traffic.inputT",
        ),
        (
            HEAD + "spec: {scaling: {min: 1, minReplicas: 2}}\n",
            "spec.scaling.min: is set as well as spec.scaling.",
        ),
        (
            HEAD + "spec: {placement: {budgetPerHour: .inf}}\n",
            "spec.placement.budgetPerHour: is .inf, not a dec",
        ),
        (HEAD + "spec: {priority: 1000000000}\n", "spec.priority: is 1000000000: its PriorityClass would h"),
        (HEAD + "spec: {priority: 1, priorityClassName: a}\n", "is set as well as spec.priorityClassName"),
        (HEAD + "spec: {a: &s {min: 1}, scaling: *s}\n", "uses a part of it in several places"),
        (HEAD + "spec: {a: &s {min: 1}, scaling: {<<: *s}}\n", "merged in with `<<`"),
        ("a: {{ .Values.b }}\n", "helm template"),
        ("a: 1\na: 2\n", "/f.yaml:2: not YAML: the key 'a' is there twice"),
        ("- - " * 300, "levels deep"),
    ],
)
def test_what_has_no_new_form_is_said_and_nothing_is_written(text, problem, capsys, tmp_path):
    assert problem in refused(text, capsys, tmp_path)


def test_check_names_what_is_old_and_changes_nothing(tmp_path, capsys):
    path, fresh = tmp_path / "f.yaml", tmp_path / "new.yaml"
    path.write_text(OLD)
    fresh.write_text(NEW)

    assert main(["convert", "--check", str(path), str(fresh)]) == 1
    assert f"{path}:14: LLMDeployment shop/chat: spec.scaling.min is now spec.scaling.minReplicas" in (
        capsys.readouterr().out.splitlines()
    )
    assert main(["convert", "--check", str(fresh)]) == 0
    assert path.read_text() == OLD


def test_nothing_is_written_in_place_where_one_file_cannot_be_converted(tmp_path, capsys):
    path, broken = tmp_path / "f.yaml", tmp_path / "g.yaml"
    path.write_text(OLD)
    broken.write_text(HEAD + "spec: {priority: high}\n")

    assert main(["convert", "-i", str(path), str(broken)]) == 2

    assert path.read_text() == OLD
    assert sorted(each.name for each in tmp_path.iterdir()) == ["f.yaml", "g.yaml"]


def test_in_place_keeps_modes_and_links(tmp_path):
    path, link = tmp_path / "f.yaml", tmp_path / "link.yaml"
    path.write_text(OLD)
    path.chmod(0o640)
    link.symlink_to(path)

    assert main(["convert", "-i", str(link)]) == 0

    assert link.is_symlink()
    assert path.read_text() == NEW
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["f.yaml", "link.yaml"]


def test_a_file_that_is_named_twice_keeps_its_priority_class(tmp_path, capsys):
    path, link = tmp_path / "f.yaml", tmp_path / "link.yaml"
    path.write_text(HEAD + "spec: {priority: 10}\n")
    link.symlink_to(path)

    assert main(["convert", "-i", str(path), str(path), str(link)]) == 0

    kinds = [each["kind"] for each in yaml.safe_load_all(path.read_text())]
    assert kinds == ["LLMDeployment", "PriorityClass"]


def test_standard_input_and_several_files_make_one_stream(tmp_path, capsys, monkeypatch):
    path = tmp_path / "f.yaml"
    path.write_text(HEAD + "spec: {scaling: {min: 1}}")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OLD.encode())))

    assert main(["convert", str(path), "-"]) == 0

    out = capsys.readouterr().out
    assert out == HEAD + "spec: {scaling: {minReplicas: 1}}\n---\n" + NEW


def test_fleet_plans_and_other_kinds_stay(tmp_path, capsys):
    text = "".join(
        f"---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n"
        "spec: {priority: 3, scaling: {min: 1}}\n"
        for version, kind in (
            ("tangram.dev/v1alpha1", "FleetPlan"),
            ("other.dev/v1", "LLMDeployment"),
            ("v1", "ConfigMap"),
        )
    )
    path = tmp_path / "f.yaml"
    path.write_text(text)

    assert main(["convert", str(path)]) == 0

    out, err = capsys.readouterr()
    assert out == text
    assert "FleetPlan a is written by the operator" in err


_WORDS = st.sampled_from(["a", "b b", "# c", "x: y", "é", "0.5", "{", "- d", "\n", "'", '"'])
_NUMBERS = st.one_of(st.integers(0, 9), st.floats(1e-9, 9, allow_nan=False), st.none())
_OLD_SPECS = st.fixed_dictionaries(
    {"model": st.dictionaries(_WORDS, _WORDS)},
    optional={
        "scaling": st.fixed_dictionaries({}, optional={"min": st.integers(1, 9), "max": st.integers(1, 9)}),
        "priority": st.integers(-3, 3),
        "traffic": st.fixed_dictionaries(
            {}, optional={"requestsPerSecond": _NUMBERS, "inputTokens": st.integers(1, 9), "a": _WORDS}
        ),
        "placement": st.fixed_dictionaries(
            {},
            optional={
                "budgetPerHour": _NUMBERS,
                "spread": st.fixed_dictionaries({}, optional={"node": _NUMBERS, "zone": _NUMBERS}),
                "pools": st.lists(_WORDS),
            },
        ),
    },
)


def _expected(spec):
    """The new form of a spec, by other means: rebuilt from data, floats as Python prints them."""
    found = json.loads(json.dumps(spec), parse_float=lambda text: _positional(float(text)))
    scaling = found.get("scaling", {})
    found |= {"scaling": {f"{key}Replicas": value for key, value in scaling.items()}} if scaling else {}
    if found.pop("priority", 0):
        value = spec["priority"]
        found["priorityClassName"] = f"tangram-priority-{'minus-' if value < 0 else ''}{abs(value)}"
    if "inputTokens" in found.get("traffic", {}):
        found["traffic"]["inputTokens"] = {"mean": found["traffic"]["inputTokens"]}
    return found


def _positional(number):
    plain = f"{Decimal(repr(number)):f}"
    return plain if len(plain) <= 16 else f"{round(Decimal(plain), 14):f}".rstrip("0").rstrip(".")


@settings(max_examples=40)
@given(
    st.lists(_OLD_SPECS, min_size=1, max_size=3),
    st.sampled_from([None, True, False]),
    st.booleans(),
    st.integers(2, 5),
)
def test_every_layout_of_every_object_means_the_same_afterwards(specs, flow, as_list, indent):
    objects = [yaml.safe_load(HEAD) | {"spec": spec} for spec in specs]
    documents = [{"kind": "List", "apiVersion": "v1", "items": objects}] if as_list else objects
    text = yaml.safe_dump_all(documents, default_flow_style=flow, indent=indent, sort_keys=False)

    new = converted(text)

    found = list(yaml.safe_load_all(new))
    seen = found[0]["items"] if as_list else found[: len(objects)]
    assert [each["spec"] for each in seen] == [_expected(spec) for spec in specs]
    assert converted(new) == new
