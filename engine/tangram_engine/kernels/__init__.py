"""Fused operations of a step: one file per Triton kernel, each beside its reference in plain torch."""
