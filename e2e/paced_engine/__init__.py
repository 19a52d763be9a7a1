"""The engine with steps that last as long as those of a slower device, for benchmarks of what surrounds it.

An image of its own runs `python -m e2e.paced_engine` in place of `tangram_engine`. The image of the product
has none of this.
"""
