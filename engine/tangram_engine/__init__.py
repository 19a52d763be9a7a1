"""Tangram's inference engine: a small, readable, operable OpenAI-compatible server."""

__version__ = "0.1.0"
