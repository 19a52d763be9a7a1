"""A settings file is read whole, or refused with the name of the field."""

from pathlib import Path

import pytest

from tangram.kube.client import REQUEST_TIMEOUT_S
from tangram.shell.decide.worker import LONGEST_START_S
from tangram.shell.process.app import loop_dead_s
from tangram.shell.settings import ProcessSettings, Settings, SettingsError, load_settings


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_the_smallest_file_has_working_defaults(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, "engineImage: e:1\n"))

    assert settings.leader_election.lease_seconds == 15
    assert settings.prometheus is None
    assert settings.scrape.enabled
    assert settings.pod_needs.cpu_per_gpu == 8
    assert settings.pod_needs.memory_per_gpu == 64 * 2**30
    assert settings.pod_needs.max_cpu_per_gpu == 8  # what may be asked for is the default
    assert settings.pod_needs.max_memory_per_gpu == 64 * 2**30


@pytest.mark.parametrize(("section", "enabled"), [("", False), ("partition: {enabled: true}", True)])
def test_layouts_may_change_only_where_the_file_says_so(tmp_path: Path, section: str, enabled: bool) -> None:
    settings = load_settings(write(tmp_path, f"engineImage: e\n{section}\n"))

    assert settings.partition.enabled is enabled


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "engineImage"),
        ("engineImage: ''", "engineImage"),
        ("engineImage: e\nenginImage: x", "enginImage"),
        ("engineImage: e\nengine: {cpuPerGPU: lots}", "engine.cpuPerGPU"),
        ("engineImage: e\nengine: {memoryPerGPU: 0}", "engine.memoryPerGPU"),
        ("engineImage: e\nengine: {maxCPUPerGPU: lots}", "engine.maxCPUPerGPU"),
        ("engineImage: e\ncpuPerGPU: 8", "cpuPerGPU"),
        ("engineImage: e\nengine: {maxCPUPerGPU: 4}", "maxCPUPerGPU is 4, below cpuPerGPU, which is 8"),
        ("engineImage: e\nengine: {maxMemoryPerGPU: 32Gi}", "maxMemoryPerGPU is 32Gi, below memoryPerGPU"),
        ("engineImage: e\nprometheus: {url: ftp://x}", "prometheus.url"),
        (
            "engineImage: e\nprometheus: {url: http://x, windowSeconds: 20, scrapeIntervalSeconds: 10}",
            "windowSeconds",
        ),
        ("engineImage: e\nscrape: {enabled: yes please}", "scrape.enabled"),
        ("engineImage: e\nscrape: {windowSeconds: 20, intervalSeconds: 10}", "windowSeconds"),
        ("engineImage: e\nscrape: {intervalSeconds: 0}", "scrape.intervalSeconds"),
        ("engineImage: e\nleaderElection: {leaseSeconds: 5}", "leaderElection"),
        ("engineImage: e\nprices: {H100: -1}", "prices.H100"),
        ("engineImage: e\nprices: {H100: .inf}", "prices.H100"),
        ("engineImage: e\nprices: {H100: .nan}", "prices.H100"),
        ("engineImage: e\noperator: {tickSeconds: 61}", "operator.tickSeconds"),
        ("engineImage: e\noperator: {planDeadlineSeconds: 600}", "operator.planDeadlineSeconds"),
        ("engineImage: e\nadvice: {settleSeconds: 40}", "advice"),
        ("engineImage: e\nadvice: {deadlineSeconds: 601}", "advice.deadlineSeconds"),
        ("engineImage: e\npartition: {enabled: 1}", "partition.enabled"),
        ("engineImage: e\npartition: {backend: NVML}", "partition.backend"),
        ("engineImage: e\npartition: true", "partition"),
        ("[", "not YAML"),
    ],
)
def test_a_wrong_file_is_refused_by_the_name_of_the_field(tmp_path: Path, text: str, names: str) -> None:
    with pytest.raises(SettingsError, match=names.replace(".", r"\.")):
        load_settings(write(tmp_path, text))


@pytest.mark.parametrize("deadline_s", [5.0, 30.0, 60.0])
def test_a_planner_that_uses_its_whole_deadline_is_no_stuck_loop(
    deadline_s: float,
) -> None:
    settings = Settings(
        engine_image="e", operator=ProcessSettings(plan_deadline_seconds=deadline_s, tick_seconds=60)
    )

    assert (
        loop_dead_s(settings)
        > settings.operator.tick_seconds + LONGEST_START_S + deadline_s + REQUEST_TIMEOUT_S
    )


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"config\.yaml"):
        load_settings(tmp_path / "config.yaml")
