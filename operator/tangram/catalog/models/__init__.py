"""Models as data.

In: safetensors headers or a size; `tangram.catalog.configs` reads config.json. Out: an `Architecture`.
"""
