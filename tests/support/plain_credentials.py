"""Credentials for a server of a test."""

from dataclasses import dataclass, field


@dataclass
class PlainCredentials:
    """The address and the tokens of a server; the second token is read after a 401."""

    server: str
    ca_path: str | None = None
    cert_path: str | None = None
    key_path: str | None = None
    insecure: bool = False
    tokens: list[str] = field(default_factory=lambda: ["old", "new"])

    def token(self, *, fresh: bool = False) -> str | None:
        """Return the token."""
        return self.tokens[1 if fresh else 0]
