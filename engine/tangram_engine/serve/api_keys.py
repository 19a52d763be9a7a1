"""The API keys of `--api-key-file`: one a line, read again when the file changes."""

import hashlib
import hmac
import logging
import os
import re
import stat
import threading
from pathlib import Path

from tangram_engine.serve.metrics import EngineMetrics

logger = logging.getLogger(__name__)

CHECK_S = 1.0  # between two looks at the file
MAX_FILE_BYTES = 64 << 10
MAX_KEYS = 128
# Below 8 bytes a line is rather the rest of another format (a brace, a dash) than a secret.
_KEY = re.compile(rb"[\x21-\x7e\x80-\xff]{8,512}")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_Digests = frozenset[bytes]
_Version = tuple[int, int, int, int, int]  # device, inode, size, and both times of the last change


class APIKeyFileError(Exception):
    """The file gives no API keys. The message names the file and the line, never what stands there."""


class APIKeys:
    """The keys in force. `accepts` is for the event loop, `look` for a thread beside it.

    SHA-256 digests are kept, not the keys: no key can leave through a dump of memory, and a comparison takes
    the same time whatever the lengths are. Raises APIKeyFileError where the file gives no keys at first.
    """

    def __init__(self, path: Path, metrics: EngineMetrics) -> None:
        self._path = path
        self._metrics = metrics
        self._problem = ""
        self._version, self._digests = _read(path)
        self._stop = threading.Event()
        self._report()
        logger.info("%d API keys in force, from %s", len(self._digests), path)

    def accepts(self, key: bytes) -> bool:
        """Whether `key` is in force. It is compared with every key, each in constant time."""
        digest = hashlib.sha256(key).digest()
        return any([hmac.compare_digest(digest, expected) for expected in self._digests])  # noqa: C419

    def watch(self) -> None:
        """Look at the file every `CHECK_S` until `close`, in a thread: a file system may block for long."""
        threading.Thread(target=self._watch, name="api-keys", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()

    def look(self) -> None:
        """Read the file again if it is another one than was read last. What cannot be used changes nothing
        but the log and the metric: the keys that were good last stay in force.
        """
        try:
            if self._problem or _version(self._path.stat()) != self._version:
                self._read_again()
            problem = ""
        except OSError as error:
            problem = f"{self._path}: {error.strerror}"
        except APIKeyFileError as error:
            problem = str(error)
        if problem and problem != self._problem:
            logger.error("%s; the %d API keys read before stay in force", problem, len(self._digests))
        self._problem = problem
        self._report()

    def _read_again(self) -> None:
        version, digests = _read(self._path)
        added, removed = len(digests - self._digests), len(self._digests - digests)
        logger.info("%d API keys in force: %d added, %d removed", len(digests), added, removed)
        self._version, self._digests = version, digests

    def _report(self) -> None:
        self._metrics.api_keys.set(len(self._digests))
        self._metrics.api_key_file_refused.set(bool(self._problem))

    def _watch(self) -> None:
        while not self._stop.wait(CHECK_S):
            try:
                self.look()
            except Exception:  # the thread must go on: without it keys are never taken away
                logger.exception("looking at the API keys failed")


def _read(path: Path) -> tuple[_Version, _Digests]:
    """The file's version and the digests of its keys. Raises APIKeyFileError."""
    try:
        with open(path, "rb", opener=_open) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise APIKeyFileError(f"{path} is not a file")
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise APIKeyFileError(f"{path}: {error.strerror}") from error
    return _version(status), _digests(text, path)


def _open(path: str, flags: int) -> int:
    """A FIFO must not wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _version(status: os.stat_result) -> _Version:
    """What differs between two files, or two contents of one: the kubelet swaps a link for another file."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digests(text: bytes, path: Path) -> _Digests:
    """Blank lines and those that begin with # hold no key. Raises APIKeyFileError."""
    if len(text) > MAX_FILE_BYTES:
        raise APIKeyFileError(f"{path} is larger than {MAX_FILE_BYTES >> 10} KiB")
    keys = set()
    for number, line in enumerate(text.removeprefix(_BYTE_ORDER_MARK).splitlines(), 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if not _KEY.fullmatch(key):
            raise APIKeyFileError(
                f"{path}, line {number}: an API key is 8 to 512 bytes without blanks or control characters; "
                "a comment begins with # on a line of its own"
            )
        keys.add(hashlib.sha256(key).digest())
    if not keys:
        raise APIKeyFileError(f"{path} holds no API key: write one a line")
    if len(keys) > MAX_KEYS:
        raise APIKeyFileError(f"{path} holds {len(keys)} API keys, at most {MAX_KEYS} are taken")
    return frozenset(keys)
