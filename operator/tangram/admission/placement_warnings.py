"""Where a reviewed LLMDeployment will run, at which price and latency; or why nothing serves it."""

from tangram.admission.review import Review, ReviewedFleet

NO_ANSWER = "no prediction in time: `kubectl describe` says in a moment where it runs and what it costs"


def placement_warnings(review: Review, fleet: ReviewedFleet) -> tuple[str, ...]:
    """Return sentences for kubectl, each of at most `LONGEST_WARNING` characters.

    One plan, about a second on 1,000 GPUs: for a worker process with a deadline. The caller says `NO_ANSWER`
    after it. Empty for kinds other than LLMDeployments and for an update that changes no placement.
    """
    return ()
