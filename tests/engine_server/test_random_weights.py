"""--load-format dummy serves without safetensors, and makes plain that the answers are noise."""

import shutil
from pathlib import Path
from typing import Any


def test_a_model_without_weights_is_served_and_says_so(
    start: Any, served_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "shapes"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(served_model / name, model)
    server = start("--load-format", "dummy", model=model)

    assert server.complete("the", max_tokens=1).status_code == 200
    (card,) = server.get("/v1/models").json()["data"]
    assert card["random_weights"] is True


def test_a_model_with_weights_does_not(start: Any) -> None:
    (card,) = start().get("/v1/models").json()["data"]
    assert "random_weights" not in card
