"""``python3 -m e2e.cluster``: the cluster by hand."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from e2e.cluster import binaries, images, packages, paths, providers, release, sbom
from e2e.cluster.base import ClusterError, Progress


def progress() -> Progress:
    start = time.monotonic()
    return lambda message: print(f"{time.monotonic() - start:6.1f} s  {message}", file=sys.stderr, flush=True)


def up(options: argparse.Namespace, say: Progress) -> None:
    cluster = providers.select(options.provider, say).up(say)
    say(f"{cluster.provider}: {', '.join(cluster.nodes)} Ready; {cluster.description}")
    print(f"export KUBECONFIG={cluster.kubeconfig}")


def down(options: argparse.Namespace, say: Progress) -> None:
    """Without a named provider: whatever we may have started, never a cluster of the user's."""
    named = options.provider != providers.AUTO
    for provider in [providers.make(options.provider)] if named else providers.ours():
        provider.down(say)


def status(options: argparse.Namespace, say: Progress) -> None:
    shown = providers.select(options.provider, say).status()
    for part, state in shown.parts.items():
        print(f"{part:<26}{state}")
    if not shown.up:
        raise SystemExit(1)


def kubeconfig(options: argparse.Namespace, say: Progress) -> None:
    print(providers.select(options.provider, say).up(say).kubeconfig)


def fetch_binaries(options: argparse.Namespace, say: Progress) -> None:
    names = options.names or binaries.CLUSTER
    for name, path in binaries.ensure_binaries(names, say).items():
        print(f"{name:<26}{path}")


def fetch_packages(options: argparse.Namespace, say: Progress) -> None:
    packages.ensure_packages(packages.ALL, say)
    for name in packages.ALL:
        print(f"{name:<26}{packages.find(name)}")


def build_images(options: argparse.Namespace, say: Progress) -> None:
    builder = images.choose_builder("local" if options.load else "existing")
    provider = providers.select(options.provider, say) if options.load else None
    for target in options.names or images.PRODUCT:
        name = images.build_image(target, builder=builder, tag=options.tag, progress=say)
        if provider:
            provider.load_image(name, say)
        print(name)


def push_images(options: argparse.Namespace, say: Progress) -> None:
    targets = options.names or images.PRODUCT
    print(*release.push_all(targets, options.registry, tag=options.tag, progress=say), sep="\n")


def write_sboms(options: argparse.Namespace, say: Progress) -> None:
    targets = options.names or images.PRODUCT
    for path in sbom.write(targets, options.generator, Path("build/sbom"), tag=options.tag, progress=say):
        print(path)


def clean(options: argparse.Namespace, say: Progress) -> None:
    down(options, say)
    say(f"removing {paths.cache()}")
    shutil.rmtree(paths.cache(), ignore_errors=True)


VERBS: dict[str, Callable[[argparse.Namespace, Progress], None]] = {
    "up": up,
    "down": down,
    "status": status,
    "kubeconfig": kubeconfig,
    "binaries": fetch_binaries,
    "packages": fetch_packages,
    "images": build_images,
    "push": push_images,
    "sbom": write_sboms,
    "clean": clean,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python3 -m e2e.cluster", description="A real cluster on one machine."
    )
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument(
        "names", nargs="*", help="binaries: programs; images, push, sbom: targets of the Dockerfiles"
    )
    parser.add_argument("--provider", choices=providers.NAMES, default=providers.AUTO)
    parser.add_argument("--registry", help="push: where to, for example registry.example.com/team")
    parser.add_argument("--tag", default="dev", help="images, push, sbom: the tag (default: dev)")
    parser.add_argument("--generator", type=Path, default=Path("cyclonedx-py"), help="sbom: cyclonedx-py")
    parser.add_argument("--load", action="store_true", help="images: also load them into the cluster")
    options = parser.parse_args()
    if options.verb == "push" and not options.registry:
        parser.error("push needs --registry")
    try:
        VERBS[options.verb](options, progress())
    except ClusterError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
