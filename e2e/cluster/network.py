"""The cluster's own network: one bridge on the host, one network namespace per node behind it.

::

    host ── tangram0 (X.Y.0.1) ── veth ── node i: eth0 (X.Y.0.10+i) ── tangram-cni ── pods X.Y.(16+i).0/24

kube-proxy, CNI and conntrack work inside the node's namespace, so their chains and links vanish with it. The
host gets: the bridge, two routes, three chains, and IPv4 forwarding (restored by ``teardown``).
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import packages
from e2e.cluster.base import ClusterError, run, write_atomically

BRIDGE = "tangram0"
MOST_NODES = 16
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
CANDIDATES = ("10.213.0.0/16", "10.87.0.0/16", "10.149.0.0/16", "172.29.0.0/16", "192.168.0.0/16")

# Our chains, and the built-in chain that jumps to each.
CHAINS = {"TANGRAM-INPUT": ("filter", "INPUT"), "TANGRAM-FORWARD": ("filter", "FORWARD")}
CHAINS |= {"TANGRAM-NAT": ("nat", "POSTROUTING")}
BUILT_IN = {"filter": ("INPUT", "FORWARD", "OUTPUT")}
BUILT_IN |= {"nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING")}


@dataclass(frozen=True, slots=True)
class Plan:
    """All addresses of one cluster, cut out of one /16."""

    base: str

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


def choose(taken: Iterable[str], candidates: Iterable[str] = CANDIDATES) -> Plan:
    """The first candidate that overlaps no network the machine already has a route to."""
    networks = [ipaddress.IPv4Network(network) for network in taken]
    for candidate in candidates:
        if not any(ipaddress.IPv4Network(candidate).overlaps(network) for network in networks):
            return Plan(candidate)
    raise ClusterError(
        f"every private network that the cluster could use is taken: {', '.join(candidates)}",
        "free one of them (ip -4 route)",
    )


def taken_networks(routes: str) -> list[str]:
    """Destinations out of ``ip -4 -json route``, without the default route and without our own bridge."""
    return [
        str(ipaddress.IPv4Network(route["dst"], strict=False))
        for route in json.loads(routes or "[]")
        if route.get("dst", "default") != "default" and route.get("dev") != BRIDGE
    ]


def chain_rules(plan: Plan, api_port: int) -> list[tuple[str, str]]:
    """(chain, rule): what the host lets through, also under a firewall whose policy is to drop."""
    api = f"-p tcp --dport {api_port}"
    return [
        ("TANGRAM-INPUT", f"-i {BRIDGE} -s {plan.base} {api} -j ACCEPT"),
        # The API server listens on all addresses because it has two; other machines get no further than this.
        ("TANGRAM-INPUT", f"! -i lo {api} -j REJECT"),
        ("TANGRAM-FORWARD", f"-s {plan.base} -j ACCEPT"),
        ("TANGRAM-FORWARD", f"-d {plan.base} -j ACCEPT"),
        ("TANGRAM-NAT", f"-s {plan.nodes} ! -d {plan.base} -j MASQUERADE"),
    ]


def ip(*words: str, check: bool = True) -> str:
    return run([packages.need("ip"), *words], timeout_s=20, check=check).stdout


def iptables(*words: str, check: bool = True) -> bool:
    command = [packages.need("iptables"), "--wait=5", *words]
    return run(command, timeout_s=20, check=check, env=packages.environment()).returncode == 0


def find_free() -> Plan:
    return choose(taken_networks(ip("-4", "-json", "route")))


def set_up(plan: Plan, api_port: int, memory: Path) -> None:
    """Bridge, chains and forwarding. ``memory`` keeps what was there before."""
    if not memory.exists():
        before = {"forwarding": FORWARDING.read_text(), "tables": [t for t in BUILT_IN if _has_table(t)]}
        write_atomically(memory, json.dumps(before))
    FORWARDING.write_text("1\n")
    ip("link", "add", BRIDGE, "type", "bridge", check=False)
    ip("address", "replace", f"{plan.host}/24", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")
    _remove_chains()
    for chain, (table, hook) in CHAINS.items():
        iptables("-t", table, "-N", chain)
        iptables("-t", table, "-I", hook, "1", "-j", chain)
    for chain, rule in chain_rules(plan, api_port):
        iptables("-t", CHAINS[chain][0], "-A", chain, *rule.split())


def connect_node(plan: Plan, index: int, pid: int) -> None:
    """Give the network namespace of ``pid`` its eth0, and the host the way to its pods (node 0: Services)."""
    link, address = f"tangram-n{index}", plan.node(index)
    ip("link", "delete", link, check=False)
    ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    ip("link", "set", link, "master", BRIDGE, "up")
    inside = [str(packages.need("nsenter")), f"--net=/proc/{pid}/ns/net", str(packages.need("ip"))]
    for words in (
        "link set lo up",
        f"address add {address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {plan.host}",
    ):
        run([*inside, *words.split()], timeout_s=20)
    ip("route", "replace", plan.pods_of(index), "via", address, "dev", BRIDGE)
    if index == 0:
        ip("route", "replace", plan.services, "via", address, "dev", BRIDGE)


def teardown(memory: Path) -> None:
    """Take back everything that ``set_up`` and ``connect_node`` did; nothing else."""
    if packages.find("ip"):
        for link in json.loads(ip("-json", "link") or "[]"):
            if link["ifname"].startswith("tangram-n"):
                ip("link", "delete", link["ifname"], check=False)
        ip("link", "delete", BRIDGE, check=False)
    if packages.find("iptables"):
        _remove_chains()
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


def _remove_chains() -> None:
    for chain, (table, hook) in CHAINS.items():
        for _ in range(4):  # one jump, more only after a crash between removing and adding
            if not iptables("-t", table, "-D", hook, "-j", chain, check=False):
                break
        if iptables("-t", table, "-F", chain, check=False):
            iptables("-t", table, "-X", chain)
