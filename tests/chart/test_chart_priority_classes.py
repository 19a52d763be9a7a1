"""The PriorityClasses of the chart: those that the operator and `tangram plan` take for granted."""

import yaml

from tangram.api import parse_priority_class
from tangram.api.common.priority import CHART_CLASSES, CHART_DEFAULT


def default_of(objects):
    config = yaml.safe_load(objects.one("ConfigMap")["data"]["config.yaml"])
    return config.get("defaultPriorityClassName", "")


def test_the_chart_makes_the_classes_that_tangram_plan_knows_by_name(helm):
    objects = helm.objects()
    found = {parse_priority_class(each) for each in objects.of("PriorityClass")}
    assert found == set(CHART_CLASSES)
    assert default_of(objects) == CHART_DEFAULT
    assert min(each.value for each in found) >= 0


def test_two_releases_have_classes_of_their_own(helm):
    objects = helm.objects({"fullnameOverride": "brain"})
    names = {each["metadata"]["name"] for each in objects.of("PriorityClass")}
    assert names == {"brain-low", "brain-standard", "brain-high"}
    assert default_of(objects) == "brain-standard"


def test_classes_outlive_the_release_unless_told_otherwise(helm):
    for keep in (True, False):
        for each in helm.objects({"priorityClasses": {"keep": keep}}).of("PriorityClass"):
            policy = each["metadata"].get("annotations", {}).get("helm.sh/resource-policy")
            assert policy == ("keep" if keep else None)


def test_without_them_the_default_is_the_installers_or_none(helm):
    without = {"priorityClasses": {"create": False}}
    assert not helm.objects(without).of("PriorityClass")
    assert default_of(helm.objects(without)) == ""
    assert default_of(helm.objects(without | {"defaultPriorityClassName": "gold"})) == "gold"
