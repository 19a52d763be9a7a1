"""Parameters outside the decoder: vision towers and their projectors.

Formulas count the classes of transformers 5 that each function names. A tower without a formula is marked.
"""

from tangram.catalog.reading.fields import Fields


def _encoder_layer(hidden: int, inner: int) -> int:
    """Four projections, two matrices of the MLP, two layer norms, all with biases."""
    matrices = 4 * hidden * hidden + 2 * hidden * inner
    return matrices + 4 * hidden + hidden + inner + 4 * hidden


def siglip(vision: Fields, text: Fields) -> int:
    """`SiglipVisionModel` and the projector of Gemma 3."""
    hidden, inner = vision.size("hidden_size", 768), vision.size("intermediate_size", 3072)
    patch, side = vision.size("patch_size", 16), vision.size("image_size", 224)
    patches = (side // patch) ** 2
    embeddings = hidden * (3 * patch * patch + 1 + patches)
    layers = vision.size("num_hidden_layers", 12, maximum=10_000) * _encoder_layer(hidden, inner)
    return embeddings + layers + 2 * hidden + hidden + hidden * text.size("hidden_size")


def pixtral(vision: Fields, text: Fields) -> int:
    """`PixtralVisionModel` and the projector of Mistral 3, which merges 2 x 2 patches."""
    hidden, inner = vision.size("hidden_size", 1024), vision.size("intermediate_size", 4096)
    patch, wide = vision.size("patch_size", 16), text.size("hidden_size")
    layer = 4 * hidden * hidden + 3 * hidden * inner + 2 * hidden
    layers = vision.size("num_hidden_layers", 24, maximum=10_000) * layer
    projector = hidden + 4 * hidden * hidden + hidden * wide + wide * wide
    return hidden * 3 * patch * patch + hidden + layers + projector


def llama4_vision(vision: Fields, text: Fields) -> int:
    """`Llama4VisionModel` with its adapter, and the projector."""
    hidden, inner = vision.size("hidden_size", 768), vision.size("intermediate_size", 5632)
    patch, side = vision.size("patch_size", 14), vision.size("image_size", 448)
    into, out = vision.size("projector_input_dim", 4096), vision.size("projector_output_dim", 4096)
    embeddings = hidden * (3 * patch * patch + 1 + (side // patch) ** 2 + 1)
    layers = vision.size("num_hidden_layers", 34, maximum=10_000) * _encoder_layer(hidden, inner)
    shuffled = int(hidden / vision.ratio("pixel_shuffle_ratio", 0.5) ** 2)
    adapter = shuffled * into + out * out
    projector = vision.size("vision_output_dim", 7680) * text.size("hidden_size")
    return embeddings + layers + 4 * hidden + adapter + projector


def qwen3_vision(vision: Fields, text: Fields) -> int:
    """`Qwen3VLVisionModel` and `Qwen3_5VisionModel`: one merger, and one per level of features."""
    hidden, inner = vision.size("hidden_size", 1152), vision.size("intermediate_size", 4304)
    patch, frames = vision.size("patch_size", 16), vision.size("temporal_patch_size", 2)
    merged = hidden * vision.size("spatial_merge_size", 2) ** 2
    wide = vision.size("out_hidden_size", text.size("hidden_size"))
    embeddings = hidden * (3 * frames * patch * patch + 1 + vision.size("num_position_embeddings", 2304))
    layers = vision.size("depth", 27, maximum=10_000) * _encoder_layer(hidden, inner)
    mlp = merged * merged + merged + merged * wide + wide
    levels = len(vision.sizes("deepstack_visual_indexes"))
    return embeddings + layers + mlp + 2 * hidden + levels * (mlp + 2 * merged)


def qwen2_5_vision(vision: Fields, text: Fields) -> int:
    """`Qwen2_5_VisionTransformer`: gated MLPs with biases, norms without."""
    hidden, inner = vision.size("hidden_size", 3584), vision.size("intermediate_size", 3420)
    patch, frames = vision.size("patch_size", 14), vision.size("temporal_patch_size", 2)
    merged = hidden * vision.size("spatial_merge_size", 2) ** 2
    wide = vision.size("out_hidden_size", text.size("hidden_size"))
    layer = 4 * hidden * hidden + 4 * hidden + 3 * hidden * inner + 2 * inner + hidden + 2 * hidden
    layers = vision.size("depth", 32, maximum=10_000) * layer
    merger = hidden + merged * merged + merged + merged * wide + wide
    return hidden * 3 * frames * patch * patch + layers + merger


def qwen2_vision(vision: Fields, _text: Fields) -> int:
    """`Qwen2VisionTransformerPretrainedModel`: `hidden_size` is the width of the decoder."""
    hidden, wide = vision.size("embed_dim", 1280), vision.size("hidden_size", 3584)
    inner = int(hidden * vision.ratio("mlp_ratio", 4))
    patch, frames = vision.size("patch_size", 14), vision.size("temporal_patch_size", 2)
    merged = hidden * vision.size("spatial_merge_size", 2) ** 2
    layers = vision.size("depth", 32, maximum=10_000) * _encoder_layer(hidden, inner)
    merger = 2 * hidden + merged * merged + merged + merged * wide + wide
    return hidden * 3 * frames * patch * patch + layers + merger


def gemma4_vision(vision: Fields, text: Fields) -> int:
    """`Gemma4VisionModel` and its projector: positions in two tables, gated MLPs."""
    hidden, inner = vision.size("hidden_size", 768), vision.size("intermediate_size", 3072)
    head, patch = vision.size("head_dim", 64), vision.size("patch_size", 16)
    queries = vision.size("num_attention_heads", 12) * head
    keys = vision.size("num_key_value_heads", 12) * head
    layer = 2 * hidden * queries + 2 * hidden * keys + 3 * hidden * inner + 4 * hidden + 2 * head
    layers = vision.size("num_hidden_layers", 16, maximum=10_000) * layer
    embeddings = hidden * (2 * vision.size("position_embedding_size", 10_240) + 3 * patch * patch)
    standard = 2 * hidden if vision.flag("standardize") else 0
    return embeddings + layers + standard + hidden * text.size("hidden_size")


def kimi_vision(vision: Fields, text: Fields) -> int:
    """`KimiK25VisionModel` and its projector, which merges 2 x 2 patches."""
    hidden, inner = vision.size("vt_hidden_size", 1152), vision.size("vt_intermediate_size", 4304)
    patch, wide = vision.size("patch_size", 14), text.size("hidden_size")
    grid = vision.size("init_pos_emb_height", 64) * vision.size("init_pos_emb_width", 64)
    layers = vision.size("vt_num_hidden_layers", 27, maximum=10_000) * _encoder_layer(hidden, inner)
    merged = 4 * hidden
    projector = 2 * hidden + merged * merged + merged + merged * wide + wide
    return hidden * (3 * patch * patch + 1 + grid) + layers + 2 * hidden + projector
