"""Tangram: packs LLM inference onto GPUs and MIG slices at the least cost that meets its objectives."""

__version__ = "0.1.0"
