"""Operator, node agent and engine write a bounded log, whatever makes them write, by the same module."""

import ast
import asyncio
import io
import json
import logging

import pytest

from benchmarks.structure import modules
from tangram.partition.agent import command as agent
from tangram.shell import logs
from tangram_http.log_limit import BURST, MOST_KINDS, MOST_LOGGERS, REPORT_S, LimitedLogHandler

LINES = 100_000


class Log:
    """A handler with a clock that a test sets, and what it has written."""

    def __init__(self, handler=LimitedLogHandler):
        self.now, self.stream = 0.0, io.StringIO()
        self.handler = handler(self.stream, clock=lambda: self.now)

    def write(self, message, *arguments, logger="tangram.x", level=logging.ERROR, **more):
        record = logging.getLogger(logger).makeRecord(logger, level, "f", 1, message, arguments, None, **more)
        self.handler.handle(record)

    @property
    def lines(self):
        return self.stream.getvalue().splitlines()


def test_a_hundred_thousand_lines_of_one_kind_leave_a_few_and_their_number():
    log = Log()
    for number in range(LINES):
        log.write("connection %d was lost", number)
        if number % 10_000 == 0:
            log.write("round %d", number, level=logging.INFO)
            log.write("connection %d was lost", number, logger="tangram.y")

    assert len([line for line in log.lines if line.startswith("connection")]) == BURST + LINES // 10_000
    assert len([line for line in log.lines if line.startswith("round")]) == LINES // 10_000

    log.now = REPORT_S
    log.write("ready")
    assert log.lines[-2:] == [
        f"{LINES - BURST} more of this kind were not written: connection %d was lost",
        "ready",
    ]


def test_a_flood_that_lasts_leaves_a_line_a_second_and_every_line_is_counted():
    log, seconds = Log(), 600
    for tenth in range(10 * seconds):
        log.now = tenth / 10
        for _ in range(10):
            log.write("no descriptors")
    log.handler.close()

    reports = [int(line.split()[0]) for line in log.lines if "more of this kind" in line]
    written = log.lines.count("no descriptors")
    assert written <= BURST + seconds
    assert len(reports) <= seconds / REPORT_S + 1
    assert written + sum(reports) == 100 * seconds


def test_after_a_pause_lines_are_written_again():
    log = Log()
    for _ in range(BURST + 1):
        log.write("lost")
    log.now = 2.0 * BURST
    log.write("lost")

    assert log.lines[-2:] == ["1 more of this kind were not written: lost", "lost"]


@pytest.mark.parametrize("same", ["task %d at 0x%x ended", "text %s%s"], ids=["numbers", "words"])
def test_texts_without_a_template_are_bounded_by_logger(same):
    log, words = Log(), "abcdefghij"
    for number in range(LINES // 10):
        word = "".join(words[int(digit)] for digit in str(number))
        log.write(same % ((number, number) if "%d" in same else (word, word)))

    kinds = 1 if "%d" in same else MOST_KINDS + 1
    assert sum(len(of_logger) for of_logger in log.handler._kinds.values()) <= kinds
    assert len(log.lines) <= BURST + MOST_KINDS


def test_loggers_are_bounded():
    log = Log()
    for number in range(10_000):
        log.write("lost", logger=f"logger.{number}")

    assert len(log.handler._kinds) <= MOST_LOGGERS + 1
    assert len(log.lines) <= MOST_LOGGERS + BURST


def test_a_kind_that_is_quiet_gives_its_place_to_a_new_one():
    log = Log()
    for number in range(MOST_KINDS):
        log.write(f"{'x' * number} old")
    log.now = 2.0 * BURST
    log.write("new %d", 1)

    assert list(log.handler._kinds["tangram.x"]) == [("tangram.x", logging.ERROR, "new %d")]


@pytest.fixture
def root():
    """The root logger, as it was afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("log_format", ["json", "plain"])
def test_what_asyncio_logs_is_bounded_too(root, log_format):
    logs.configure(log_format)
    (handler,) = root.handlers
    stream = io.StringIO()
    handler.setStream(stream)
    loop = asyncio.new_event_loop()
    for number in range(2 * BURST):
        error = OSError(24, "Too many open files")
        loop.call_exception_handler(
            {"message": "socket.accept() out of system resource", "exception": error, "socket": number}
        )
    loop.close()
    handler.close()

    last = stream.getvalue().splitlines()[-1]
    message = json.loads(last)["message"] if log_format == "json" else last.partition("asyncio: ")[2]
    assert stream.getvalue().count("socket.accept()") <= 2 * (BURST + 1)
    assert message.startswith(f"{BURST} more of this kind were not written: socket.accept()")


def test_each_process_logs_through_the_limit(root):
    agent._log_to_stderr()
    assert [type(handler) for handler in root.handlers] == [LimitedLogHandler]

    configured = [
        node
        for path in modules().values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("basicConfig", "StreamHandler")
    ]
    assert len(configured) == 5
    assert all("handlers" in {keyword.arg for keyword in call.keywords} for call in configured)
