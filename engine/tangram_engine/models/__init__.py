"""One decoder for all supported families: what differs is data in the `DecoderSpec`."""

from tangram_engine.models.decoder import Decoder
from tangram_engine.models.dummy import dummy_source
from tangram_engine.models.quantized import quantized_on_load
from tangram_engine.models.weights import Weights, in_place, load_weights

__all__ = ["Decoder", "Weights", "dummy_source", "in_place", "load_weights", "quantized_on_load"]
