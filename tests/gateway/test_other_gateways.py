"""A gateway that has responses processed, as the Gateway API Inference Extension demands."""

import threading

from tests.support.front_door import FrontDoor, wait_until


def test_responses_pass_unchanged_and_requests_end_with_their_streams(bootstrap, tmp_path):
    for ours, theirs in (
        ("response_header_mode: SKIP", "response_header_mode: SEND"),
        ("response_body_mode: NONE", "response_body_mode: FULL_DUPLEX_STREAMED"),
        ("response_trailer_mode: SKIP", "response_trailer_mode: SEND"),
    ):
        assert bootstrap.count(ours) == 1
        bootstrap = bootstrap.replace(ours, theirs)
    with FrontDoor(bootstrap, tmp_path, "--ends-by=stream", "--max-streams=5") as door:
        (replica,) = door.serve("team-a", "chat", "only")
        replica.holds = True
        lines = []

        def read():
            body = {"model": "chat", "messages": [], "stream": True, "max_tokens": 25}
            with door.http.stream("POST", "/v1/chat/completions", json=body) as response:
                lines.extend(line for line in response.iter_lines() if line)

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: door.gauge("tangram_gateway_running_requests") == 1)
        assert door.gauge("tangram_gateway_body_bytes") == 0
        replica.holds = False
        reader.join()
        assert (len(lines), lines[-1]) == (26, "data: [DONE]")
        wait_until(lambda: door.gauge("tangram_gateway_running_requests") == 0)
        assert door.http.post("/v1/chat/completions", content=b"[" * 3_000_000).status_code == 400

        # Streams beyond the limit are refused: the others go on.
        responses = []
        threads = [threading.Thread(target=lambda: responses.append(door.ask("chat"))) for _ in range(7)]
        replica.holds = True
        for thread in threads:
            thread.start()
        wait_until(lambda: len(responses) >= 2)
        replica.holds = False
        for thread in threads:
            thread.join()
        refused = [response for response in responses if response.status_code != 200]
        assert len(responses) == 7
        assert 2 <= len(refused) <= 3  # Envoy's access log is a stream, too
        assert {response.json()["error"]["code"] for response in refused} == {"gateway_error"}
