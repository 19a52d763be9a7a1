"""One decoder for all supported families: what differs is data in the `ModelSpec`."""

from tangram_engine.models.decoder import Decoder
from tangram_engine.models.weights import Weights, load_weights

__all__ = ["Decoder", "Weights", "load_weights"]
