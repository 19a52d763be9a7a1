"""Fetch the files of a checkpoint into a directory that appears when all of them are there and verified.

Files come into a directory beside it, whose name has the revision, so that a fetch after a cut continues, and
one of another revision begins anew. A file gets its name there once its size and digest are those of the
listing. No memory is taken but that of a piece for each file that is being read.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tangram.sources.checkpoint.answers import Retries
from tangram.sources.checkpoint.errors import SourceError, SourceReason, changed, unreachable
from tangram.sources.checkpoint.files import RemoteCheckpoint, RemoteFile
from tangram.sources.progress import STALL_S, Progress
from tangram.sources.ranged_reads import files_of

WORKERS = 4  # files at once
_PIECE = 1 << 20  # bytes that are read at once from the disk
_PART = ".part"
_REPORT_S = 10.0  # between two lines about the progress
_END_S = 2.0  # for which a file that another one's fault ends is waited for


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch brought."""

    size: int  # bytes of all files
    seconds: float


def fetched_before(directory: Path) -> Fetched | None:
    """Return what an earlier fetch brought, None where none was made. It asks no source."""
    if not directory.is_dir():
        return None
    return Fetched(sum(path.stat().st_size for path in directory.iterdir()), 0.0)


def fetch(
    checkpoint: RemoteCheckpoint,
    directory: Path,
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    stall_s: float = STALL_S,
    size: int | None = None,
) -> Fetched:
    """Make `directory` hold the files of the checkpoint. Raises SourceError; then a later call continues.

    `report` gets a line about the progress now and then. `pause` waits before a read is repeated. `size`: sum
    of the files, where it is known.
    """
    staging = staging_of(directory, checkpoint.uri)
    files = files_of(checkpoint)
    progress = Progress(sum(file.size for file in files), clock, stall_s)
    if size not in (None, progress.total):
        text = f"{checkpoint.uri} has {progress.total} bytes, {size} when it was inspected"
        raise changed(f"{text}: set model.revision to what is to be served")
    check_space(staging, sum(file.size for file in files))
    stopped = threading.Event()
    transfer = _Transfer(checkpoint, staging, progress, pause, stopped)
    largest_first = sorted(files, key=lambda file: -file.size)
    with no_space(staging):
        tasks = [partial(transfer.bring, file) for file in largest_first]
        run_all(tasks, checkpoint.uri, progress, stopped, report)
        staging.rename(directory)
        sync_name(directory.parent)
    return Fetched(progress.total, progress.seconds)


def run_all(
    tasks: Sequence[Callable[[], None]],
    uri: str,
    progress: Progress,
    stopped: threading.Event,
    report: Callable[[str], None],
) -> None:
    """Run all tasks, WORKERS at once. Raises the first error, or that of a standstill.

    `stopped` is set when no task is to begin or go on.
    """
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="fetch")
    unfinished: set[Future[None]] = {pool.submit(task) for task in tasks}
    try:
        while unfinished:
            finished, unfinished = wait(unfinished, min(_REPORT_S, progress.stall_s / 4), FIRST_EXCEPTION)
            for future in finished:
                future.result()
            if progress.is_stalled():
                text = f"{uri}: no data for {progress.stall_s:.0f} s at {progress}"
                raise unreachable(f"{text}; the fetch begins again where it stopped")
            report(str(progress))
    finally:
        stopped.set()
        # The others end before another fetch begins. A read that hangs is left behind: the process ends.
        wait(unfinished, _END_S)
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def only_fetch_into(directory: Path) -> Iterator[None]:
    """Keep other processes from fetching into `directory`: pods on a claim, one of which may be ending.

    The lock ends with the process, and on NFS with the lease of its node. Raises SourceError.
    """
    path = directory.with_name(f".lock-of-{directory.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise _unusable(path.parent, "written", error) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise unreachable(f"another pod still fetches into {path.parent}; this one waits") from None
        except OSError as error:
            raise _unusable(path.parent, "locked", error) from None
        yield


def _unusable(volume: Path, done: str, error: OSError) -> SourceError:
    text = f"the volume of {volume} cannot be {done} by user {os.getuid()} ({error.strerror})"
    return SourceError(SourceReason.NO_SPACE, f"{text}: use another StorageClass, or correct this one")


@contextmanager
def no_space(directory: Path) -> Iterator[None]:
    """Turn errors of the disk of `directory` into SourceErrors."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _full(directory, "") from None


def _full(directory: Path, needs: str) -> SourceError:
    text = f"the volume of {directory.parent} is full{needs}: give it more space, or name a smaller model"
    return SourceError(SourceReason.NO_SPACE, text)


def staging_of(directory: Path, uri: str) -> Path:
    """Return the directory of unfinished files of `uri`, and remove those of other revisions."""
    mark = f".{directory.name}."
    staging = directory.with_name(mark + hashlib.sha256(uri.encode()).hexdigest()[:16])
    for other in directory.parent.glob(f"{mark}*"):
        if other != staging:
            shutil.rmtree(other)
    staging.mkdir(parents=True, exist_ok=True)
    return staging


def check_space(staging: Path, size: int) -> None:
    """Raise SourceError where the volume has no room for what `staging` lacks of `size` bytes."""
    missing = size - sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
    free = shutil.disk_usage(staging).free
    if missing > free:
        raise _full(staging, f": {missing / 1e9:.1f} GB are to come, {free / 1e9:.1f} GB are free")


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Files of a checkpoint on their way into the staging directory."""

    checkpoint: RemoteCheckpoint
    staging: Path
    progress: Progress
    pause: Callable[[float], None]
    stopped: threading.Event  # no file begins or goes on

    def bring(self, file: RemoteFile) -> None:
        """Make one file be there, verified. Raises SourceError."""
        path = self.staging / file.name
        if path.exists():  # verified before it got its name
            self.progress.add_present(file.size)
            return
        part = path.with_name(path.name + _PART)
        retries = Retries(self.pause, self.stopped.is_set)
        while True:
            size = _size(part)
            try:
                self._continue(file, part)
            except SourceError as error:
                retries.after(error, progressed=_size(part) > size)
            else:
                part.rename(path)
                return

    def _continue(self, file: RemoteFile, part: Path) -> None:
        """Read what the part lacks, and verify the whole. Raises SourceError."""
        hasher = file.digest.hasher(file.size) if file.digest is not None else None
        with part.open("a+b") as stream:
            self._reread(stream, hasher)
            position = stream.tell()
            for piece in self.checkpoint.read(file, position, file.size) if position < file.size else ():
                if self.stopped.is_set():
                    raise unreachable("another file failed")
                stream.write(piece)
                self.progress.add_fetched(len(piece))
                position += len(piece)
                if hasher is not None:
                    hasher.update(piece)
            stream.flush()
            os.fsync(stream.fileno())
        where = f"{self.checkpoint.uri}: {file.name}"
        if position < file.size:
            raise unreachable(
                f"{where} was cut after {position} of {file.size} bytes; the fetch goes on from there"
            )
        if position > file.size or (file.digest and hasher and hasher.hexdigest() != file.digest.value):
            part.unlink()
            self.progress.add_fetched(-position)
            raise changed(
                f"{where} is not what the listing has: the next fetch reads it anew; a mirror may be stale"
            )

    def _reread(self, stream: BinaryIO, hasher: "hashlib._Hash | None") -> None:
        stream.seek(0)
        while piece := stream.read(_PIECE):
            self.progress.add_present(len(piece))
            if hasher is not None:
                hasher.update(piece)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def sync_name(directory: Path) -> None:
    """Make the name that the directory just got last through a power cut."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
