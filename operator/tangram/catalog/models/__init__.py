"""Models as data.

In: `config.json`, safetensors headers, a well-known name or a size. Out: an `Architecture`.
"""
