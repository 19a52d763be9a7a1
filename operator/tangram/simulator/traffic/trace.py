"""A trace: requests in the order of arrival, and the client that sent each."""

from collections.abc import Iterable
from dataclasses import dataclass

from tangram.capacity.load.traffic import SimulatedRequest


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests sorted by arrival. `clients` has the client of each request, or is empty: not recorded."""

    requests: tuple[SimulatedRequest, ...] = ()
    clients: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """The arrival of the last request."""
        return self.requests[-1].arrival_s if self.requests else 0.0

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
