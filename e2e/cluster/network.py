"""The cluster's own network: one bridge on the host, one network namespace per node behind it.

::

    host ── tangramN (X.Y.0.1) ── veth ── node i: eth0 (X.Y.0.10+i) ── tangram-cni ── pods X.Y.(16+i).0/24

N is the number of the cluster on the machine. kube-proxy, CNI and conntrack work inside the node's namespace:
their chains and links vanish with it. The host gets: the bridge, two routes, three chains, IPv4 forwarding.
``teardown`` takes back what belongs to one cluster, ``restore`` the rest once the last cluster has ended.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import packages
from e2e.cluster.base import ClusterError, run, write_atomically

MOST_NODES = 16
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
CANDIDATES = ("10.213.0.0/16", "10.87.0.0/16", "10.149.0.0/16", "172.29.0.0/16", "192.168.0.0/16")

BUILT_IN = {"filter": ("INPUT", "FORWARD", "OUTPUT")}
BUILT_IN |= {"nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING")}


@dataclass(frozen=True, slots=True)
class Plan:
    """All addresses of one cluster, cut out of one /16, and what it is called on the host."""

    base: str
    number: int = 0

    @property
    def bridge(self) -> str:
        return f"tangram{self.number}"

    def link(self, index: int) -> str:
        """The host's end of the veth pair of one node."""
        return f"{self.bridge}-n{index}"

    @property
    def chains(self) -> dict[str, tuple[str, str]]:
        """Our chains, each with its table and the built-in chain that jumps to it."""
        prefix = f"TANGRAM{self.number}"
        return {
            f"{prefix}-INPUT": ("filter", "INPUT"),
            f"{prefix}-FORWARD": ("filter", "FORWARD"),
            f"{prefix}-NAT": ("nat", "POSTROUTING"),
        }

    def _part(self, third: int, prefix: int) -> str:
        network = ipaddress.IPv4Network(self.base)
        return str(ipaddress.IPv4Network((int(network.network_address) + (third << 8), prefix)))

    def _address(self, third: int, fourth: int) -> str:
        return str(ipaddress.IPv4Network(self.base).network_address + (third << 8) + fourth)

    @property
    def nodes(self) -> str:
        return self._part(0, 24)

    @property
    def host(self) -> str:
        """The host's address on the bridge: the API server of everything inside nodes and pods."""
        return self._address(0, 1)

    @property
    def pods(self) -> str:
        return self._part(16, 20)

    @property
    def services(self) -> str:
        return self._part(240, 20)

    @property
    def api_service(self) -> str:
        return self._address(240, 1)

    def node(self, index: int) -> str:
        return self._address(0, 10 + index)

    def pods_of(self, index: int) -> str:
        """The pods of one node, of which there are ``MOST_NODES`` at most."""
        return self._part(16 + index, 24)


def choose(taken: Iterable[str], candidates: Iterable[str] = CANDIDATES, *, number: int = 0) -> Plan:
    """The first candidate that overlaps no network the machine already has a route to."""
    networks = [ipaddress.IPv4Network(network) for network in taken]
    for candidate in candidates:
        if not any(ipaddress.IPv4Network(candidate).overlaps(network) for network in networks):
            return Plan(candidate, number)
    raise ClusterError(
        f"every private network that the cluster could use is taken: {', '.join(candidates)}",
        "free one of them (ip -4 route)",
    )


def taken_networks(routes: str, *, bridge: str) -> list[str]:
    """Destinations out of ``ip -4 -json route``, without the default route and without our own bridge."""
    return [
        str(ipaddress.IPv4Network(route["dst"], strict=False))
        for route in json.loads(routes or "[]")
        if route.get("dst", "default") != "default" and route.get("dev") != bridge
    ]


def chain_rules(plan: Plan, api_port: int) -> list[tuple[str, str]]:
    """(chain, rule): what the host lets through, also under a firewall whose policy is to drop."""
    api = f"-p tcp --dport {api_port}"
    incoming, forwarded, translated = plan.chains
    return [
        (incoming, f"-i {plan.bridge} -s {plan.base} {api} -j ACCEPT"),
        # The API server listens on all addresses because it has two; other machines get no further than this.
        (incoming, f"! -i lo {api} -j REJECT"),
        (forwarded, f"-s {plan.base} -j ACCEPT"),
        (forwarded, f"-d {plan.base} -j ACCEPT"),
        (translated, f"-s {plan.nodes} ! -d {plan.base} -j MASQUERADE"),
    ]


def ip(*words: str, check: bool = True) -> str:
    return run([packages.need("ip"), *words], timeout_s=20, check=check).stdout


def iptables(*words: str, check: bool = True) -> bool:
    command = [packages.need("iptables"), "--wait=5", *words]
    return run(command, timeout_s=20, check=check, env=packages.environment()).returncode == 0


def find_free(number: int) -> Plan:
    bridge = Plan(CANDIDATES[0], number).bridge
    return choose(taken_networks(ip("-4", "-json", "route"), bridge=bridge), number=number)


def reserve(plan: Plan) -> None:
    """Make the bridge with its address: from now on no other cluster finds these networks free."""
    ip("link", "add", plan.bridge, "type", "bridge", check=False)
    ip("address", "replace", f"{plan.host}/24", "dev", plan.bridge)
    ip("link", "set", plan.bridge, "up")


def set_up(plan: Plan, api_port: int, memory: Path) -> None:
    """Chains and forwarding. ``memory`` keeps what was there before the first cluster of this machine."""
    if not memory.exists():
        before = {"forwarding": FORWARDING.read_text(), "tables": [t for t in BUILT_IN if _has_table(t)]}
        write_atomically(memory, json.dumps(before))
    FORWARDING.write_text("1\n")
    _remove_chains(plan)
    for chain, (table, hook) in plan.chains.items():
        iptables("-t", table, "-N", chain)
        iptables("-t", table, "-I", hook, "1", "-j", chain)
    for chain, rule in chain_rules(plan, api_port):
        iptables("-t", plan.chains[chain][0], "-A", chain, *rule.split())


def connect_node(plan: Plan, index: int, pid: int) -> None:
    """Give the network namespace of ``pid`` its eth0, and the host the way to its pods (node 0: Services)."""
    link, address = plan.link(index), plan.node(index)
    ip("link", "delete", link, check=False)
    ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    ip("link", "set", link, "master", plan.bridge, "up")
    inside = [str(packages.need("nsenter")), f"--net=/proc/{pid}/ns/net", str(packages.need("ip"))]
    for words in (
        "link set lo up",
        f"address add {address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {plan.host}",
    ):
        run([*inside, *words.split()], timeout_s=20)
    ip("route", "replace", plan.pods_of(index), "via", address, "dev", plan.bridge)
    if index == 0:
        ip("route", "replace", plan.services, "via", address, "dev", plan.bridge)


def teardown(plan: Plan) -> None:
    """Take back the links and chains of one cluster; nothing else."""
    if packages.find("ip"):
        for name in _links():
            if name.startswith(plan.link(0)[:-1]):
                ip("link", "delete", name, check=False)
        ip("link", "delete", plan.bridge, check=False)
    if packages.find("iptables"):
        _remove_chains(plan)


def bridges() -> list[str]:
    """The bridges of all local clusters of this machine."""
    return [name for name in _links() if re.fullmatch(r"tangram\d+", name)] if packages.find("ip") else []


def _links() -> list[str]:
    return [str(link["ifname"]) for link in json.loads(ip("-json", "link") or "[]")]


def restore(memory: Path) -> None:
    """Give forwarding and tables back as they were before the first cluster of this machine."""
    if memory.exists():
        before = json.loads(memory.read_text())
        FORWARDING.write_text(before["forwarding"])
        _remove_tables([table for table in BUILT_IN if table not in before["tables"]])
        memory.unlink()


def _has_table(table: str) -> bool:
    """Asking iptables itself would make the table."""
    saved = packages.need("iptables").with_name("iptables-save")
    return bool(run([saved, "-t", table], timeout_s=20, env=packages.environment()).stdout.strip())


def _remove_tables(tables: list[str]) -> None:
    """Drop built-in chains that our first rule brought into being, unless somebody has used them since."""
    for table in tables:
        command = [packages.need("iptables"), "--wait=5", "-t", table]
        rules = run([*command, "-S"], timeout_s=20, check=False, env=packages.environment()).stdout.split(
            "\n"
        )
        if all(rule.endswith(" ACCEPT") and rule.startswith("-P ") for rule in rules if rule):
            for chain in BUILT_IN[table]:
                run([*command, "-X", chain], timeout_s=20, check=False, env=packages.environment())


def _remove_chains(plan: Plan) -> None:
    for chain, (table, hook) in plan.chains.items():
        for _ in range(4):  # one jump, more only after a crash between removing and adding
            if not iptables("-t", table, "-D", hook, "-j", chain, check=False):
                break
        if iptables("-t", table, "-F", chain, check=False):
            iptables("-t", table, "-X", chain)
