"""Clients of others against the engine, each unchanged and in an environment of its own: `make clients`."""
