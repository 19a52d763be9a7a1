"""Triton kernels, one file each: the kernel, its launcher, the same in plain torch, and what compiles it.

`language` is the only module that imports Triton; a file here imports without it. `tiles` holds tile sizes.
"""
