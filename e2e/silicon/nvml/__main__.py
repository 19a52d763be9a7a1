"""`python -m e2e.silicon.nvml`: `serve` is a node's driver; `lgip`, `lgipp`, `lgi` as of `nvidia-smi mig`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path

from e2e.silicon.board import BoardError, load_machine
from e2e.silicon.catalog import DEFAULT_CATALOG, load_board
from e2e.silicon.nvml import listings
from e2e.silicon.nvml.codes import CallFailed
from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.daemon import NvmlDaemon, read_state
from e2e.silicon.nvml.state import SILICON_LATENCIES, NvmlState, from_json, node_state

LISTINGS = {"lgip": listings.profiles, "lgipp": listings.placements, "lgi": listings.instances}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(prog="nvml", description=__doc__)
    commands = arguments.add_subparsers(dest="command", required=True)
    for name in LISTINGS:
        listing = commands.add_parser(name)
        listing.add_argument(
            "source", type=Path, help="a board file, a file of a daemon, or a daemon's socket"
        )
        listing.add_argument("--catalog", type=Path, default=DEFAULT_CATALOG, help="folder with gpus.yaml")
    reset = commands.add_parser("reset", help="as nvidia-smi --gpu-reset")
    reset.add_argument("socket", type=Path)
    reset.add_argument("uuid")
    serve = commands.add_parser("serve")
    serve.add_argument("--board", type=Path, help="which GPUs the node has, where --file does not exist yet")
    serve.add_argument("--node", default="node", help="this node's name; UUIDs derive from it")
    serve.add_argument("--socket", type=Path, required=True)
    serve.add_argument("--file", type=Path, required=True, help="where the state is kept")
    serve.add_argument("--catalog", type=Path, default=DEFAULT_CATALOG, help="folder with gpus.yaml")
    serve.add_argument("--self-resets", action="store_true", help="Ampere: set the MIG mode as on bare metal")
    serve.add_argument("--silicon-latencies", action="store_true", help="take as long as real GPUs")
    return arguments


def state_of(source: Path, catalog: Path = DEFAULT_CATALOG) -> NvmlState:
    """Return the state that a socket, a file of a daemon or a board file has.

    Raises:
        BoardError: the board file is wrong.
        OSError: there is no such file, or no daemon answers.
    """
    if source.is_socket():
        with Admin(source) as admin:
            raw = admin.state()
        raw.pop("holders")
        return from_json(raw, load_board(raw["board"]["sku"], raw["board"]["name"], catalog))
    if source.suffix == ".json":
        return read_state(source, None, "node", catalog)
    return node_state(load_machine(source, "node", catalog), "node")


async def _serve(args: argparse.Namespace) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    initial = read_state(args.file, args.board, args.node, args.catalog)
    if args.silicon_latencies:
        initial = replace(initial, latencies=tuple(sorted(SILICON_LATENCIES.items())))
    if args.self_resets:
        initial = replace(initial, self_resets=True)
    await NvmlDaemon(initial, args.file).serve(args.socket, stop)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; 2 means that a file is wrong, 1 that the driver refuses."""
    args = parser().parse_args(argv)
    try:
        if args.command == "serve":
            asyncio.run(_serve(args))
        elif args.command == "reset":
            with Admin(args.socket) as admin:
                admin.reset(args.uuid)
        else:
            print(LISTINGS[args.command](state_of(args.source, args.catalog)))
    except (BoardError, OSError) as wrong:
        print(wrong, file=sys.stderr)
        return 2
    except CallFailed as refused:
        print(refused, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
