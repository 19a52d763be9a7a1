"""Attention over the paged KV cache.

In: queries, keys and values of a step, and block tables. Out: what each token reads.

`reference` is plain torch and the interface; `paged` and `paged_prefill` are the same on a GPU.
"""
