"""Checkpoints as untrusted input: safetensors only, a closed list of architectures, all checked first."""

from .errors import CheckpointError, RefusalReason
from .reader import read_checkpoint, read_other, read_shapes
from .spec import Checkpoint, DecoderSpec, OtherCheckpoint, RopeScaling, TensorEntry
from .tensors import EMBEDDING, HEAD, expected_shapes, projection_inputs

__all__ = [
    "EMBEDDING",
    "HEAD",
    "Checkpoint",
    "CheckpointError",
    "DecoderSpec",
    "OtherCheckpoint",
    "RefusalReason",
    "RopeScaling",
    "TensorEntry",
    "expected_shapes",
    "projection_inputs",
    "read_checkpoint",
    "read_other",
    "read_shapes",
]
