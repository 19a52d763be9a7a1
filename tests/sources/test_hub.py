"""A hub as `huggingface_hub` sees it: revisions, listings, ranges, tokens, and everything that it refuses."""

import socket

import pytest

from tangram.sources.checkpoint.errors import SourceError, SourceReason
from tangram.sources.hub import open_hub
from tangram.sources.hub_errors import HubAccess
from tangram.sources.ranged_reads import read_range, read_whole
from tests.support.hub_server import Request

CONFIG = {"config.json": b'{"a": 1}', "model.safetensors": bytes(range(256)) * 40}


def refusal(call) -> SourceError:
    with pytest.raises(SourceError) as caught:
        call()
    assert "\n" not in caught.value.message
    return caught.value


def test_a_branch_is_pinned_to_the_commit_that_it_names(hub, opened):
    first = hub.repository().push(CONFIG)
    checkpoint = opened()
    hub.repository().push(CONFIG | {"config.json": b"{}"})
    assert checkpoint.uri == f"hf://org/model@{first}"
    assert read_whole(checkpoint, checkpoint.files["config.json"], 100) == b'{"a": 1}'
    assert opened(revision=first).revision == first != opened().revision


def test_files_in_folders_are_not_listed(opened):
    assert set(opened(CONFIG | {"onnx/model.safetensors": b"x"}).files) == set(CONFIG)


def test_a_range_is_all_that_is_asked_for(hub, opened):
    checkpoint = opened(CONFIG)
    assert read_range(checkpoint, checkpoint.files["model.safetensors"], 250, 260) == bytes(
        [*range(250, 256), 0, 1, 2, 3]
    )
    assert hub.bytes_asked() == 20  # of the hub, which redirects, and of the store


def test_a_server_without_ranges_is_read_from_its_beginning(hub, opened):
    hub.has_ranges = False
    checkpoint = opened(CONFIG)
    assert read_range(checkpoint, checkpoint.files["model.safetensors"], 250, 252) == b"\xfa\xfb"


def test_a_token_goes_to_the_hub_and_not_to_the_store(hub, opened):
    hub.tokens.add("hf_secret")
    hub.repository().is_private = True
    checkpoint = opened(CONFIG, token="hf_secret")
    read_range(checkpoint, checkpoint.files["model.safetensors"], 0, 8)
    assert {place for place, _, headers in hub.requests if "authorization" in headers} == {"hub"}
    assert "hf_secret" not in repr(checkpoint)


def test_a_token_of_the_machine_is_not_sent(hub, opened, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_this_machine")
    read_whole(opened(CONFIG), opened().files["config.json"], 100)
    assert not any("authorization" in headers for _, _, headers in hub.requests)


def gated(hub):
    hub.repository().is_gated = True


def private(hub):
    hub.repository().is_private = True


def absent(hub):
    hub.repositories.clear()


def answering(status, **headers):
    def always(hub):
        hub.faults.append(lambda request: request.answer(status, {}, **headers) or True)

    return always


def web_page(hub):
    hub.faults.append(lambda request: request.content(b"<html>", "text/html") or True)


@pytest.mark.parametrize(
    ("fault", "token", "reason", "words"),
    [
        (gated, None, SourceReason.ACCESS_DENIED, "accept its terms at http"),
        (private, None, SourceReason.NOT_FOUND, "for a private one, model.secretRef"),
        (
            private,
            "hf_other",
            SourceReason.ACCESS_DENIED,
            "the token of model.secretRef may not read it (401)",
        ),
        (absent, None, SourceReason.NOT_FOUND, "is not there or is private (401): check the name"),
        (absent, "hf_good", SourceReason.NOT_FOUND, "whether the token of model.secretRef may read it"),
        (answering(429, Retry_After="7"), None, SourceReason.UNREACHABLE, "a token in model.secretRef"),
        (answering(500), None, SourceReason.UNREACHABLE, "the hub answers 500"),
        (web_page, None, SourceReason.UNREACHABLE, "look for a proxy or a login page"),
        (answering(200), None, SourceReason.UNREACHABLE, "is not a hub's"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence_with_a_way_on(hub, opened, fault, token, reason, words):
    hub.tokens.add("hf_good")
    hub.repository().push(CONFIG)
    fault(hub)
    error = refusal(lambda: opened(token=token))
    assert error.reason == reason
    assert words in error.message
    assert error.is_transient == (reason == SourceReason.UNREACHABLE)
    assert token is None or token not in error.message


def test_a_limited_read_names_the_time_to_wait(hub, opened):
    answering(429, Retry_After="7")(hub)
    assert refusal(opened).retry_after_s == 7.0
    hub.faults.clear()
    answering(429, Retry_After="86400")(hub)
    assert refusal(opened).retry_after_s == 120.0


def test_a_revision_that_is_not_there_is_named(opened):
    opened(CONFIG)
    assert "org/model@v9: there is no such revision" in refusal(lambda: opened(revision="v9")).message


def test_a_hub_that_cannot_be_reached_is_named():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        error = refusal(lambda: open_hub("org/model", None, HubAccess(address)))
    assert error.is_transient
    assert "127.0.0.1 cannot be reached" in error.message


def test_a_silent_hub_is_given_up(hub, opened, monkeypatch):
    monkeypatch.setattr("tangram.sources.hub.TIMEOUT_S", 0.1)
    stop = []
    hub.faults.append(lambda request: stop.append(request) or request.rfile.read(1) == b"")
    assert refusal(opened).is_transient


def test_a_listing_without_end_is_cut(hub, opened, monkeypatch):
    monkeypatch.setattr("tangram.sources.hub.ANSWER_LIMIT", 1000)
    assert opened(CONFIG).files
    many = CONFIG | {f"{number}.json": b"" for number in range(100)}
    assert "127.0.0.1 answers with more than 1000 bytes" in refusal(lambda: opened(many)).message


def test_too_many_files_are_refused(opened, monkeypatch):
    monkeypatch.setattr("tangram.sources.hub._MOST_LISTED", 1)
    assert (
        "has more than 1 files: name a repository of one checkpoint"
        in refusal(lambda: opened(CONFIG)).message
    )


def test_a_web_page_in_place_of_a_file_is_no_file(hub, opened):
    checkpoint = opened(CONFIG)
    web_page(hub)
    error = refusal(lambda: read_whole(checkpoint, checkpoint.files["config.json"], 100))
    assert "127.0.0.1 answered with a web page in place of config.json" in error.message


def test_a_file_that_has_another_size_than_listed_has_changed(hub, opened):
    checkpoint = opened(CONFIG)

    def longer(request: Request) -> bool:
        if "resolve" in request.path:
            request.content(b"{}" * 100, "text/plain")
        return "resolve" in request.path

    hub.faults.append(longer)
    error = refusal(lambda: read_whole(checkpoint, checkpoint.files["config.json"], 100))
    assert error.reason == SourceReason.CHANGED


def test_a_small_file_is_verified(hub, opened):
    checkpoint = opened(CONFIG)
    hub.faults.append(lambda request: request.content(b'{"a": 2}', "text/plain") or True)
    error = refusal(lambda: read_whole(checkpoint, checkpoint.files["config.json"], 100))
    assert error.reason == SourceReason.CHANGED


def test_a_large_json_file_is_not_read(hub, opened):
    checkpoint = opened({"config.json": b" " * 101})
    assert (
        "at most 100 are read"
        in refusal(lambda: read_whole(checkpoint, checkpoint.files["config.json"], 100)).message
    )
