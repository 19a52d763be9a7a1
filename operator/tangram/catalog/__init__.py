"""Facts about GPUs, MIG profiles and well-known models, with a source per entry.

In: the YAML files of this folder. Out: frozen records, prices, and lookups by name or label.
"""

from tangram.catalog.configs.known_models import known_model, known_models
from tangram.catalog.load import CatalogError, load
from tangram.catalog.lookup import (
    find_gpu,
    gpu,
    match_device_name,
    match_product,
    profile,
    profile_of_resource,
    share,
    skus,
)
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.reading.errors import InputError
from tangram.catalog.records import GPU, Profile

__all__ = [
    "GPU",
    "Architecture",
    "CatalogError",
    "InputError",
    "Profile",
    "find_gpu",
    "gpu",
    "known_model",
    "known_models",
    "load",
    "match_device_name",
    "match_product",
    "profile",
    "profile_of_resource",
    "share",
    "skus",
]
