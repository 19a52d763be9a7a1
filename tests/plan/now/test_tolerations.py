"""Which taints engine pods tolerate: a change of the list would roll every model."""

import re

import pytest

from tangram.catalog import gpu, skus
from tangram.eligibility.devices.tolerations import (
    HELD_PROFILES,
    engine_tolerations,
    hold_taint,
    inspect_tolerations,
    tolerates,
)
from tangram.fleet import WHOLE_GPU, resource_name

CUT = [sku for sku in skus() if gpu(sku).profiles]
# kubernetes/apimachinery, validation.IsQualifiedName: the part after the slash
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def tolerated(resource, taint, sku, *added):
    return any(tolerates(toleration, taint) for toleration in engine_tolerations(sku, resource, added))


def held(resource):
    return {"key": hold_taint(resource), "effect": "NoSchedule"}


JOINED_LATER: set[tuple[str, str]] = set()
"""(SKU, profile) that joined the catalog after its board: a toleration of its hold would roll engines."""


def test_every_board_that_can_be_cut_may_be_held_for_each_of_its_profiles():
    listed = {(sku, profile) for sku, profiles in HELD_PROFILES.items() for profile in profiles}
    catalogued = {(sku, profile.name) for sku in CUT for profile in gpu(sku).profiles}

    assert (listed, listed & JOINED_LATER) == (catalogued - JOINED_LATER, set())


@pytest.mark.parametrize("sku", CUT)
def test_engines_tolerate_each_hold_of_their_board_but_that_of_their_own_resource(sku):
    resources = [resource_name(WHOLE_GPU), *(profile.resource for profile in gpu(sku).profiles)]

    for own in resources:
        assert [r for r in resources if not tolerated(own, held(r), sku)] == [own]


def test_the_name_of_a_hold_is_that_of_the_resource_and_a_valid_key():
    names = [
        hold_taint(resource_name(p)).removeprefix("hold.tangram.dev/")
        for ps in HELD_PROFILES.values()
        for p in ps
    ]

    assert all(NAME.fullmatch(name) for name in names)
    assert hold_taint("nvidia.com/gpu") == "hold.tangram.dev/gpu"
    assert {"mig-1g.10gb", "mig-1g.10gb.me", "mig-1g.24gb-me", "mig-2g.48gb.me.all"} <= set(names)


def test_a_board_that_cannot_be_cut_is_held_for_nothing():
    keys = [toleration["key"] for toleration in engine_tolerations("L4", "nvidia.com/gpu", ())]

    assert keys == ["nvidia.com/gpu", "sku"]


def test_inspect_jobs_tolerate_every_hold_since_they_ask_for_no_device():
    tolerations = inspect_tolerations(())

    for sku in CUT:
        for resource in (resource_name(WHOLE_GPU), *(p.resource for p in gpu(sku).profiles)):
            assert any(tolerates(toleration, held(resource)) for toleration in tolerations)
