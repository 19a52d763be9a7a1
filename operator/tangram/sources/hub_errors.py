"""What a hub refuses, as one sentence with the way on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import httpx2
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RevisionNotFoundError,
)

from tangram.sources.checkpoint.errors import SourceError, SourceReason, changed, invalid, unreachable

ENDPOINT = "https://huggingface.co"
_MOST_RETRY_AFTER_S = 120.0
_IN_BETWEEN = "look for a proxy or a login page in between"


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Address of a hub, and a token of it, None for none."""

    endpoint: str = ENDPOINT
    token: str | None = field(default=None, repr=False)
    token_place: str = "model.secretRef"  # noqa: S105 - what people call the place that the token is from

    @contextmanager
    def explains(self, uri: str) -> Iterator[None]:
        """Turn the errors of the client about `uri` into SourceErrors."""
        host = httpx2.URL(self.endpoint).host
        try:
            yield
        except HfHubHTTPError as error:
            raise self._of_answer(error, uri) from None
        except HFValidationError as error:
            raise invalid(f"{uri}: {error}") from None
        except httpx2.HTTPError as error:
            cause = str(error) or type(error).__name__
            advice = "check the network, the proxy and the address of the hub"
            raise unreachable(f"{uri}: {host} cannot be reached ({cause}): {advice}") from None
        except (ValueError, KeyError, TypeError) as error:  # of the client, about JSON and its fields
            kind = type(error).__name__
            raise unreachable(f"{uri}: the answer of {host} is not a hub's ({kind}): {_IN_BETWEEN}") from None

    def _of_answer(self, error: HfHubHTTPError, uri: str) -> SourceError:
        status, headers = error.response.status_code, error.response.headers
        if status in (401, 403, 404):
            return self._refused(error, uri, status)
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            text = headers.get("Retry-After", "")
            after_s = min(float(text), _MOST_RETRY_AFTER_S) if text.isdigit() else 0.0
            advice = "" if self.token else f"; a token in {self.token_place} raises the limit"
            return unreachable(f"{uri}: the hub limits requests (429), which are repeated{advice}", after_s)
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return changed(f"{uri}: a file is shorter than it was listed: start again from a new revision")
        return unreachable(f"{uri}: the hub answers {status}; the request is repeated")

    def _refused(self, error: HfHubHTTPError, uri: str, status: int) -> SourceError:
        place = self.token_place
        if isinstance(error, GatedRepoError):
            page = f"{self.endpoint}/{uri.removeprefix('hf://').partition('@')[0]}"
            account = "the account of its token" if self.token else f"an account, and give {place} its token"
            return _denied(f"{uri} is gated: accept its terms at {page} with {account}")
        if isinstance(error, RevisionNotFoundError):
            return _absent(
                f"{uri}: there is no such revision: name a branch, tag or commit that the hub shows"
            )
        if isinstance(error, DisabledRepoError):
            return _absent(f"{uri} was disabled by the hub: name another model")
        if self.token and status != HTTPStatus.NOT_FOUND:
            return _denied(f"{uri}: the token of {place} may not read it ({status}): use one that may")
        advice = f"whether the token of {place} may read it" if self.token else f"for a private one, {place}"
        return _absent(f"{uri} is not there or is private ({status}): check the name and, {advice}")


def web_page(uri: str, host: str, name: str) -> SourceError:
    """Return the error of a web page in place of a file."""
    return unreachable(f"{uri}: {host} answered with a web page in place of {name}: {_IN_BETWEEN}")


def _denied(message: str) -> SourceError:
    return SourceError(SourceReason.ACCESS_DENIED, message)


def _absent(message: str) -> SourceError:
    return SourceError(SourceReason.NOT_FOUND, message)
