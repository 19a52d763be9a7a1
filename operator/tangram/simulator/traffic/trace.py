"""A trace: requests in the order of arrival, and the client that sent each."""

from collections.abc import Iterable
from dataclasses import dataclass

from tangram.capacity.load.traffic import SimulatedRequest
from tangram.fleet import Lengths
from tangram.fleet.lengths import MOST_P90


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests sorted by arrival. `clients` has the client of each request, or is empty: not recorded."""

    requests: tuple[SimulatedRequest, ...] = ()
    clients: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """The arrival of the last request."""
        return self.requests[-1].arrival_s if self.requests else 0.0

    @property
    def lengths(self) -> tuple[Lengths, Lengths]:
        """Lognormal lengths of prompts and of answers with the means and, as far as there is one, the P90 of
        these.
        """
        return (
            _lengths([request.input_tokens for request in self.requests]),
            _lengths([request.output_tokens for request in self.requests]),
        )

    def of_client(self, client: str) -> "Trace":
        """Return the requests of one client."""
        return self.chosen(place for place, sender in enumerate(self.clients) if sender == client)

    def chosen(self, places: Iterable[int]) -> "Trace":
        """Return the requests at these places, in the order given."""
        chosen = tuple(places)
        return Trace(
            tuple(self.requests[place] for place in chosen),
            tuple(self.clients[place] for place in chosen) if self.clients else (),
        )


def _lengths(tokens: list[int]) -> Lengths:
    mean, p90 = sum(tokens) / len(tokens), sorted(tokens)[int(0.9 * (len(tokens) - 1))]
    return Lengths(mean, min(max(p90, mean), MOST_P90 * mean))
