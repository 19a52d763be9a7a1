"""The model folder, loaded once; and the training code, which is a folder of scripts and not a package."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def folder() -> Path:
    return ROOT / "models" / "tangram-tiny"


@pytest.fixture(scope="session")
def tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="session")
def model(folder):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def held_out_text() -> str:
    return Path(__file__).with_name("heldout.txt").read_text("utf-8")


@pytest.fixture(scope="session")
def training_code() -> Iterator[dict[str, ModuleType]]:
    """The scripts of examples/train_tiny by name, taken out of `sys.modules` again afterwards."""
    names = ("data", "conversations", "vocabulary", "perplexity", "train")
    sys.path.insert(0, str(ROOT / "examples" / "train_tiny"))
    yield {name: importlib.import_module(name) for name in names}
    sys.path.pop(0)
    for name in names:
        del sys.modules[name]
