"""The pure parts of the cluster: addresses, command lines, configuration files, versions, package choice."""

import io
import json
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster import baseimage, binaries, flags, images, network, nodeconfig, oci, packages, paths
from e2e.cluster.base import ClusterError
from e2e.cluster.certificates import Authority
from e2e.cluster.flags import Endpoints
from e2e.cluster.local import bootstrap_rights
from e2e.cluster.nodeconfig import Node
from e2e.cluster.versions import parse_version, within

PLAN = network.Plan("10.213.0.0/16")
NODE = Node(Path("/state/node-0"), Path("/cache/containerd"), PLAN)
AUTHORITY = Authority(Path("/state/pki"))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Kubernetes v1.34.4", (1, 34, 4)),
        ("etcd Version: 3.6.4\nGit SHA: 0.1", (3, 6, 4)),
        ("Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0", (1, 32, 4)),
        ("v3.19.5+g123", (3, 19, 5)),
        ("CoreDNS-1.14.0\nlinux/amd64, go1.26.8", (1, 14, 0)),
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("kind v0.30.0 go1.26.8 linux/amd64", (0, 30, 0)),
        ("command not found", ()),
    ],
)
def test_versions_are_read_from_what_programs_print(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


def test_an_unknown_version_is_never_acceptable() -> None:
    assert not within((), (1, 34), (1, 35))
    assert within((1, 34, 9), (1, 34), (1, 35))
    assert not within((1, 35, 0), (1, 34), (1, 35))


def test_every_kubernetes_program_is_told_its_version_when_linked() -> None:
    for name in ("kube-apiserver", "kubelet", "kubectl"):
        assert f"gitVersion=v{binaries.KUBERNETES}" in " ".join(binaries.PROGRAMS[name].ldflags)


def test_the_pinned_versions_are_those_of_the_go_module() -> None:
    module = (binaries.TOOLS / "go.mod").read_text()

    assert f"k8s.io/kubernetes v{binaries.KUBERNETES}\n" in module
    assert f"go.etcd.io/etcd/server/v3 v{binaries.ETCD}\n" in module
    assert f"github.com/coredns/coredns v{binaries.COREDNS}\n" in module
    assert f"helm.sh/helm/v3 v{binaries.HELM}\n" in module


def test_an_upgrade_changes_the_path_so_that_the_program_is_built_anew() -> None:
    program = binaries.PROGRAMS["kubelet"]

    assert program.cached != replace(program, release="kubernetes-1.34.5").cached


def test_unknown_programs_are_refused_with_the_known_ones_named() -> None:
    with pytest.raises(ClusterError, match=r"unknown programs: kubleet(.|\n)*known: kube-apiserver"):
        binaries.ensure_binaries(["kubleet"])


def test_the_network_avoids_every_route_of_the_machine() -> None:
    routes = json.dumps(
        [
            {"dst": "default", "dev": "eth0"},
            {"dst": "10.0.0.0/9", "dev": "eth0"},
            {"dst": "10.213.5.7", "dev": "tun0"},
            {"dst": "10.87.0.0/24", "dev": PLAN.bridge},
        ]
    )

    taken = network.taken_networks(routes, bridge=PLAN.bridge)

    assert taken == ["10.0.0.0/9", "10.213.5.7/32"]
    assert network.choose(taken).base == "10.149.0.0/16"


def test_with_every_candidate_taken_the_error_says_so() -> None:
    with pytest.raises(ClusterError, match="every private network"):
        network.choose(["0.0.0.0/1", "128.0.0.0/1"])


def test_the_parts_of_a_network_do_not_overlap() -> None:
    from ipaddress import IPv4Address, IPv4Network

    nodes, pods, services = (IPv4Network(part) for part in (PLAN.nodes, PLAN.pods, PLAN.services))
    assert not nodes.overlaps(pods)
    assert not nodes.overlaps(services)
    assert not pods.overlaps(services)
    assert IPv4Address(PLAN.host) in nodes
    assert IPv4Address(PLAN.node(15)) in nodes
    assert IPv4Network(PLAN.pods_of(15)).subnet_of(pods)
    assert not IPv4Network(PLAN.pods_of(0)).overlaps(IPv4Network(PLAN.pods_of(1)))
    assert IPv4Address(PLAN.api_service) == services[1]


def test_clusters_of_one_machine_share_no_name() -> None:
    plans = [network.Plan(base, number) for number, base in enumerate(network.CANDIDATES[:2])]

    names = [
        {plan.bridge, *map(plan.link, range(3)), *plan.chains, replace(NODE, plan=plan).cgroup}
        for plan in plans
    ]
    folders = [{paths.state_dir(number), paths.cluster_dir(number) / "containerd"} for number in range(2)]

    assert names[0].isdisjoint(names[1])
    assert folders[0].isdisjoint(folders[1])


@pytest.mark.parametrize("named", ["-1", "4", "one", "0x1"])
def test_a_cluster_number_that_there_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("TANGRAM_CLUSTER", named)

    with pytest.raises(ClusterError, match="a number from 0 to 3"):
        paths.cluster_number()


def test_other_machines_do_not_reach_the_api_server() -> None:
    rules = [rule for chain, rule in network.chain_rules(PLAN, 16443) if chain == "TANGRAM0-INPUT"]

    assert rules == [
        "-i tangram0 -s 10.213.0.0/16 -p tcp --dport 16443 -j ACCEPT",
        "! -i lo -p tcp --dport 16443 -j REJECT",
    ]


def test_the_api_server_authorizes_nodes_and_is_found_on_loopback() -> None:
    at = Endpoints(1, 2, 3, 4, 5, advertise=PLAN.host, bind="0.0.0.0", service_cidr=PLAN.services)

    line = flags.apiserver(AUTHORITY, at)

    assert "--authorization-mode=Node,RBAC" in line
    assert "--enable-admission-plugins=NodeRestriction" in line
    assert "--advertise-address=10.213.0.1" in line
    assert "--endpoint-reconciler-type=lease" in line
    assert "--kubelet-preferred-address-types=InternalIP" in line
    assert at.url == "https://127.0.0.1:3"


def test_containerd_restricts_oom_scores_exactly_where_the_capability_lacks() -> None:
    for restrict in (True, False):
        text = nodeconfig.containerd_config(
            NODE, cni_bin=Path("/cni"), runc=Path("/runc"), restrict_oom=restrict
        )
        cri = tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]
        assert cri["restrict_oom_score_adj"] is restrict
        assert cri["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == "/runc"


def test_the_capability_is_read_from_the_effective_set() -> None:
    assert nodeconfig.may_lower_oom_score("CapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n")
    assert not nodeconfig.may_lower_oom_score("CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n")


def test_the_kubelet_trusts_only_our_authority_and_asks_the_api_server() -> None:
    config = nodeconfig.kubelet_config(NODE, AUTHORITY)

    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authentication"]["x509"] == {"clientCAFile": "/state/pki/ca.crt"}
    assert config["authorization"] == {"mode": "Webhook"}
    assert config["clusterDNS"] == [NODE.address]
    assert config["cgroupRoot"] == "/tangram0/tangram-node"


def test_each_node_has_its_own_name_address_and_pods() -> None:
    second = replace(NODE, index=1)

    assert (NODE.name, second.name) == ("tangram-node", "tangram-node-2")
    assert NODE.address != second.address
    assert nodeconfig.cni_config(NODE)["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.213.16.0/24"}]]
    assert nodeconfig.cni_config(second)["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.213.17.0/24"}]]


def test_name_servers_on_loopback_are_not_offered_to_pods() -> None:
    text = "# stub\nnameserver 127.0.0.53\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver 192.0.2.53\n"

    assert nodeconfig.upstream_servers(text) == ["192.0.2.53"]
    assert "forward . 192.0.2.53" in nodeconfig.corefile(NODE, Path("/k"), ["192.0.2.53"])
    assert "forward" not in nodeconfig.corefile(NODE, Path("/k"), [])


def test_coredns_may_only_read_what_it_serves() -> None:
    roles = [item for item in bootstrap_rights()["items"] if item["kind"] == "ClusterRole"]

    assert [rule["verbs"] for role in roles for rule in role["rules"]] == [["list", "watch"]] * 2


def test_only_missing_libraries_join_the_packages_to_fetch() -> None:
    depends = "buildah\n  Depends: libgpgme11\nlibgpgme11\nlibc6\n<libvirtual>\nlibjs-d3\nsystemd\n|libor\n"

    assert packages.libraries_among(depends, {"libc6": True, "libgpgme11": False}) == ["libgpgme11"]


def test_programs_of_one_package_fetch_it_once() -> None:
    assert packages.packages_of(["ctr", "containerd", "promtool"]) == ["containerd", "prometheus"]


def test_a_machine_that_lacks_apt_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find", lambda _name: None)
    monkeypatch.setattr(packages.shutil, "which", lambda _name: None)

    with pytest.raises(ClusterError, match=r"missing: runc; this is neither Debian nor Ubuntu(.|\n)*runc"):
        packages.ensure_packages(["runc"])


def test_the_distribution_is_read_from_os_release() -> None:
    text = 'PRETTY_NAME="Ubuntu 24.04 LTS"\nID=ubuntu\nVERSION_CODENAME=noble\n'

    assert packages.parse_release(text) == packages.Release("ubuntu", "noble")


def test_proxy_and_kernel_settings_reach_the_build_and_nothing_else_of_the_environment_does() -> None:
    recipe = images.RECIPES["engine"]
    environ = {"HTTPS_PROXY": "http://proxy:3128", "PIP_INDEX_URL": "https://index", "SECRET": "x"}
    environ |= {"KERNEL_ARCHITECTURES": "90 100"}

    line = images.build_arguments(recipe, "n:t", "base", Path("/repo"), environ)

    assert [word for word in line if word.startswith("--build-arg")] == [
        "--build-arg=BASE_IMAGE=base",
        "--build-arg=HTTPS_PROXY=http://proxy:3128",
        "--build-arg=PIP_INDEX_URL=https://index",
        "--build-arg=KERNEL_ARCHITECTURES=90 100",
    ]
    assert line[-1] == "/repo"


def test_the_base_image_named_by_the_user_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASE_IMAGE", "registry.example.com/python:3.12")

    assert baseimage.ensure_base_image() == "registry.example.com/python:3.12"


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        files = [(member.name, opened.extractfile(member)) for member in opened.getmembers()]
        return {name: content.read() for name, content in files if content}


def test_the_sandbox_image_is_a_valid_archive_that_never_changes_by_itself(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")

    first = oci.single_program_archive(program, "tangram.local/pause:1")

    assert first == oci.single_program_archive(program, "tangram.local/pause:1")
    files = members(first)
    index = json.loads(files["index.json"])["manifests"][0]
    assert index["annotations"]["io.containerd.image.name"] == "tangram.local/pause:1"
    manifest = json.loads(files["blobs/sha256/" + index["digest"].removeprefix("sha256:")])
    layer = files["blobs/sha256/" + manifest["layers"][0]["digest"].removeprefix("sha256:")]
    assert members(layer) == {"pause": b"\x7fELF"}
    assert len(layer) == manifest["layers"][0]["size"]


def test_an_image_leaves_a_layout_without_its_layers_and_the_layout_forgets_old_ones(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes) -> dict[str, object]:
        described = oci.descriptor(oci.CONFIG, content)
        (blobs / str(described["digest"]).removeprefix("sha256:")).write_bytes(content)
        return described

    manifest = put(json.dumps({"config": put(b"{}"), "layers": [put(b"torch"), put(b"code")]}).encode())
    entry = {**manifest, "annotations": {"org.opencontainers.image.ref.name": "a/b:c"}}
    replaced = put(json.dumps({"config": put(b"{ }"), "layers": []}).encode())
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [replaced, entry]}))

    image = oci.find_in_layout(tmp_path, "a/b:c")

    assert [layer.size for layer in image.layers] == [5, 4]
    assert b"torch" not in image.archive
    with pytest.raises(KeyError):
        oci.find_in_layout(tmp_path, "a/b:other")
    put(b"layer of an earlier build")
    assert oci.prune_layout(tmp_path) == 3
    assert oci.find_in_layout(tmp_path, "a/b:c") == image


def test_a_layout_keeps_the_builds_of_a_repository_that_were_used_last(tmp_path: Path) -> None:
    names = ["host:5000/engine:1", "host:5000/engine:2", "host:5000/base:1", "host:5000/engine:3"]
    entries = [{"annotations": {"org.opencontainers.image.ref.name": name}} for name in names]
    (tmp_path / "index.json").write_text(json.dumps({"manifests": entries}))

    oci.retain(tmp_path, "host:5000/engine:1", 2)

    assert oci.named(tmp_path) == ["host:5000/base:1", "host:5000/engine:3", "host:5000/engine:1"]
    assert oci.named(tmp_path / "absent") == []


def test_a_layer_is_linked_into_containerds_store_once(tmp_path: Path) -> None:
    source, store = tmp_path / "layout", tmp_path / "store"
    (source / "blobs/sha256").mkdir(parents=True)
    (source / "blobs/sha256/abc").write_bytes(b"layer")
    (store / images.CONTAINERD_BLOBS).mkdir(parents=True)

    assert images._link_blob(source, store, "sha256:abc")
    assert not images._link_blob(source, store, "sha256:abc")
    assert (store / images.CONTAINERD_BLOBS / "abc").samefile(source / "blobs/sha256/abc")
