"""`python -m tangram.sources`, also installed as `tangram-fetch`."""

from tangram.sources.command import run

if __name__ == "__main__":
    run()
