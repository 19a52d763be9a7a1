"""`python -m e2e.silicon`: `serve` dresses this node as a GPU node, `check` only looks a board file over."""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

from e2e.silicon.agent import PLUGIN_DIR, UNHEALTHY, Agent, Options
from e2e.silicon.board import BoardError
from e2e.silicon.catalog import DEFAULT_CATALOG
from e2e.silicon.node import Api, set_labels


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(prog="silicon", description=__doc__)
    commands = arguments.add_subparsers(dest="command", required=True)
    for name in ("serve", "check"):
        command = commands.add_parser(name)
        source = command.add_mutually_exclusive_group(required=True)
        source.add_argument("--board", type=Path, help="which GPUs this node pretends to have")
        source.add_argument("--nvml", type=Path, help="socket of the driver that this node pretends to have")
        command.add_argument("--node", default="node", help="this node's name; device ids derive from it")
        command.add_argument("--catalog", type=Path, default=DEFAULT_CATALOG, help="folder with gpus.yaml")
    serve = commands.choices["serve"]
    serve.add_argument("--plugin-dir", type=Path, default=PLUGIN_DIR, help="the kubelet's plugin folder")
    serve.add_argument("--unhealthy", type=Path, default=UNHEALTHY, help="file that names broken devices")
    serve.add_argument("--no-labels", action="store_true", help="leave the node's labels alone")
    return arguments


async def _serve(args: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    options = Options(args.board, args.node, args.plugin_dir, args.unhealthy, args.catalog, nvml=args.nvml)
    label = None
    if not args.no_labels:
        label = functools.partial(set_labels, Api.in_cluster(dict(os.environ)), args.node)
    agent = Agent(options, label)
    loop.add_signal_handler(signal.SIGHUP, agent.rescan)
    await agent.run(stop)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; 2 means that the board file is wrong."""
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        if args.command == "check":
            with closing(
                Options(args.board, args.node, catalog=args.catalog, nvml=args.nvml).source()
            ) as source:
                for resource, ids in source.machine.devices().items():
                    print(f"{resource}: {len(ids)}")
        else:
            asyncio.run(_serve(args))
    except BoardError as wrong:
        print(f"{args.board}: {wrong}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
