"""From logits to tokens. `params` is free of torch, so that the API process can use it."""
