"""Model configurations as publishers write them.

In: `config.json`, or a well-known name. Out: an `Architecture`, or an error that names the key.
"""
