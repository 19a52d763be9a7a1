"""The module that the image of SGLang starts."""
