"""How long replicas took to start, from the conditions of their pods."""

from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.snapshot.start_times import start_times
from tests.support import views


def started(seconds, restarts=0, number=0):
    """A pod that was ready so long after its creation."""
    raw = views.pod(DEPLOYMENT, "n1")
    raw["metadata"] |= {
        "name": f"p{number}",
        "uid": f"u{number}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    minutes, rest = divmod(seconds, 60)
    raw["status"] |= {
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "lastTransitionTime": f"2026-01-01T00:{minutes:02}:{rest:02}Z",
            }
        ],
        "containerStatuses": [{"name": "engine", "state": {"running": {}}, "restartCount": restarts}],
    }
    return raw


DAY = "2026-01-01"
CHAT = views.llm_deployment("chat")
(OWNER,) = parsed_intents(views.Fleet((CHAT,)).view(), lambda *_: None, "")
DEPLOYMENT = views.deployment(OWNER, replicas=10)


def times(*pods):
    view = views.Fleet((CHAT,), (views.node("n1", 10),), pods, deployments=(DEPLOYMENT,)).view()
    return list(start_times(view).values())


def test_nine_of_ten_replicas_took_at_most_as_long():
    assert times(*(started(30 + 10 * n, number=n) for n in range(10))) == [110.0]


def test_a_restarted_pod_and_one_that_is_not_ready_do_not_count():
    waiting = started(60, number=2)
    waiting["status"]["conditions"] = [{"type": "Ready", "status": "False"}]

    assert times(started(3000, restarts=2), started(70, number=1), waiting) == [70.0]


def test_nonsense_in_a_pod_is_no_start_time():
    odd = started(50)
    odd["metadata"]["creationTimestamp"] = "yesterday"

    assert times(odd) == []
