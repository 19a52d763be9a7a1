"""`tangram-fetch`: the init container of pods that read a checkpoint which is not in the cluster.

It reports one JSON document in its termination message: the pinned source, or an error as
`tangram-engine inspect` reports it. Exit status: 0; 1 a defect of this program; 2 usage; 3 refused;
4 a later try may succeed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tangram.api import ModelSource, model_source
from tangram.sources.checkpoint.errors import SourceError, SourceReason, unreachable
from tangram.sources.download import Fetched, fetch, fetched_before, only_fetch_into
from tangram.sources.image_fetch import fetch_image, write_headers
from tangram.sources.network import trust, use_proxy
from tangram.sources.oci.registry import ModelImage
from tangram.sources.open_source import SourceAddresses, open_source
from tangram.sources.sparse_copy import write_sparse_copy

SCHEMA = 1
EXIT_DEFECT, EXIT_USAGE, EXIT_REFUSED, EXIT_RETRY = 1, 2, 3, 4
_MESSAGE_LIMIT = 1000  # characters
_COMMANDS = ("headers", "fetch", "await")  # all but the tensors; everything; what another pod fetches
_AWAIT_S = 3600.0  # then the container begins again, and its pod shows why
_POLL_S = 2.0


def run() -> None:
    """Run one command as a process, which no read that hangs keeps."""
    status = main()
    sys.stdout.flush()
    os._exit(status)


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    options = _parser().parse_args(argv)
    document, status = _run(options)
    text = json.dumps(document, separators=(",", ":"))
    print(text, flush=True)  # noqa: T201
    if options.termination_log is not None:
        options.termination_log.write_text(text, encoding="ascii")
    return status


def _run(options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    try:
        _use_network(options)
        if options.command == "headers":
            return _read(options), 0
        if options.command == "await":
            return _document(options.uri.revision, _await(options.to).size, 0.0), 0
        with only_fetch_into(options.to):
            # Containers start again with the sandbox of their pod, and a hub may be down then.
            before = fetched_before(options.to)
            if before is not None:
                return _document(options.uri.revision, before.size, 0.0), 0
            return _read(options), 0
    except SourceError as error:
        return _refusal(error.reason, error.message), EXIT_RETRY if error.is_transient else EXIT_REFUSED
    except Exception as error:  # noqa: BLE001 - a defect of ours: the report must come all the same
        traceback.print_exc()
        return _refusal("InspectionFailed", f"{type(error).__name__}: {error}"), EXIT_DEFECT


def _use_network(options: argparse.Namespace) -> None:
    if options.proxy:
        use_proxy(options.proxy, options.no_proxy)
    if options.ca_bundle is not None:
        trust(options.ca_bundle, Path(tempfile.gettempdir()) / "ca-certificates.pem")


def _read(options: argparse.Namespace) -> dict[str, Any]:
    """Write what a source has; return the report. Raises SourceError."""
    checkpoint = open_source(options.uri, _addresses(options), options.secret, options.secret_name)
    if isinstance(checkpoint, ModelImage):
        size, seconds = _unpack(checkpoint, options)
        return _document(checkpoint.revision, size, seconds)
    if options.command == "headers":
        files = write_sparse_copy(checkpoint, options.to)
        return _document(checkpoint.revision, sum(file.size for file in files), 0.0)
    fetched = fetch(checkpoint, options.to, _log, size=options.size)
    return _document(checkpoint.revision, fetched.size, fetched.seconds)


def _await(directory: Path) -> Fetched:
    """Return what another pod fetched into `directory`, once it is there. Raises SourceError."""
    ends = time.monotonic() + _AWAIT_S
    while (fetched := fetched_before(directory)) is None:
        if time.monotonic() >= ends:
            text = f"the claim is not filled after {_AWAIT_S:.0f} s"
            raise unreachable(f"{text}: look at the Job that has the name of the claim")
        time.sleep(_POLL_S)
    return fetched


def _unpack(image: ModelImage, options: argparse.Namespace) -> tuple[int, float]:
    if options.command == "headers":
        return write_headers(image, options.to, _log).size, 0.0
    fetched = fetch_image(image, options.to, _log, size=options.size)
    return fetched.size, fetched.seconds


def _document(revision: str, size: int, seconds: float) -> dict[str, Any]:
    source = {"revision": revision, "size": size, "seconds": round(seconds, 1)}
    return {"schema": SCHEMA, "source": source}


def _refusal(reason: SourceReason | str, message: str) -> dict[str, Any]:
    """Return the error document; escaped, its message has four times as many bytes at most."""
    plain = message.encode("ascii", "replace").decode()
    return {"schema": SCHEMA, "error": {"reason": str(reason), "message": plain[:_MESSAGE_LIMIT]}}


def _log(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tangram-fetch", description="Fetch a checkpoint, or its headers.")
    parser.add_argument("command", choices=_COMMANDS, help="what to write")
    parser.add_argument(
        "--uri",
        required=True,
        type=_fetched_uri,
        help="hf://organisation/name[@revision], s3://bucket/prefix[@pin] or oci://registry/name[:tag|@digest]",
    )
    parser.add_argument("--to", required=True, type=Path, help="directory to make")
    parser.add_argument("--size", type=int, help="bytes that the inspection found: others are refused")
    parser.add_argument("--hub", default=SourceAddresses().hub, help="address of the hub or of a mirror")
    parser.add_argument("--s3", default="", help="address of the store; empty: AWS")
    parser.add_argument("--s3-region", default=SourceAddresses().s3_region, help="region of the store")
    parser.add_argument("--plain-http", action="append", default=[], help="registry (host:port) without TLS")
    parser.add_argument("--proxy", default="", help="address of an HTTP proxy")
    parser.add_argument("--no-proxy", default="", help="hosts and domains that are reached without it")
    parser.add_argument("--ca-bundle", type=Path, help="file with certificate authorities to trust, too")
    parser.add_argument("--secret", type=Path, help="directory with the keys of the Secret")
    parser.add_argument("--secret-name", default="", help="its name, for messages")
    parser.add_argument("--termination-log", type=Path, help="file for the report")
    return parser


def _addresses(options: argparse.Namespace) -> SourceAddresses:
    return SourceAddresses(options.hub, options.s3, options.s3_region, frozenset(options.plain_http))


def _fetched_uri(text: str) -> ModelSource:
    source = model_source(text)
    if not source.is_fetched:
        raise ValueError(f"{text} is not fetched")
    return source
