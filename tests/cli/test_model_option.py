"""`--model`: a directory, a config.json, a name, or sizes alone."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.capacity.memory.footprint import footprint
from tangram.catalog import Architecture, InputError, known_models
from tangram.catalog.models.tensors import TensorKind
from tangram.cli.options.model import ModelOption, model_options, named_model, read_model
from tests.support.tiny_checkpoints import VARIANTS, write_tiny_checkpoint

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
LAYER_MATRICES = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (128, 256),
    "self_attn.v_proj": (128, 256),
    "self_attn.o_proj": (256, 256),
    "mlp.gate_proj": (512, 256),
    "mlp.up_proj": (512, 256),
    "mlp.down_proj": (256, 512),
}


def write_config(directory: Path, **changes: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps(LLAMA | changes), encoding="utf-8")
    return path


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], int]]) -> None:
    """(dtype, shape, bytes) of each: a header as the format describes it, and as many zero bytes."""
    header, at = {}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


def unquantised() -> dict[str, tuple[str, tuple[int, ...], int]]:
    """What is stored in 16 bits in every checkpoint of `LLAMA`."""
    found: dict[str, tuple[str, tuple[int, ...], int]] = {
        "model.embed_tokens.weight": ("BF16", (1000, 256), 512_000),
        "lm_head.weight": ("BF16", (1000, 256), 512_000),
        "model.norm.weight": ("BF16", (256,), 512),
    }
    for layer in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{layer}.{norm}.weight"] = ("BF16", (256,), 512)
    return found


def awq(rows: int, columns: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """AutoAWQ's layout: eight 4-bit weights in an int32, along the output features."""
    groups = columns // 128
    return {
        "qweight": ("I32", (columns, rows // 8), columns * rows // 8 * 4),
        "qzeros": ("I32", (groups, rows // 8), groups * rows // 8 * 4),
        "scales": ("F16", (groups, rows), groups * rows * 2),
    }


def gptq(rows: int, columns: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """GPTQModel's layout: eight 4-bit weights in an int32, along the input features."""
    groups = columns // 128
    return {
        "qweight": ("I32", (columns // 8, rows), columns // 8 * rows * 4),
        "qzeros": ("I32", (groups, rows // 8), groups * rows // 8 * 4),
        "scales": ("F16", (groups, rows), groups * rows * 2),
        "g_idx": ("I32", (columns,), columns * 4),
    }


def fp8_block(rows: int, columns: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
    blocks = -(-rows // 128), -(-columns // 128)
    return {
        "weight": ("F8_E4M3", (rows, columns), rows * columns),
        "weight_scale_inv": ("F32", blocks, blocks[0] * blocks[1] * 4),
    }


def fp8_channel(rows: int, columns: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
    return {
        "weight": ("F8_E4M3", (rows, columns), rows * columns),
        "weight_scale": ("F32", (rows, 1), rows * 4),
    }


def nvfp4(rows: int, columns: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """NVIDIA ModelOpt's layout."""
    return {
        "weight": ("U8", (rows, columns // 2), rows * columns // 2),
        "weight_scale": ("F8_E4M3", (rows, columns // 16), rows * columns // 16),
        "weight_scale_2": ("F32", (), 4),
        "input_scale": ("F32", (), 4),
    }


Layout = Callable[[int, int], dict[str, tuple[str, tuple[int, ...], int]]]
FORMATS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "int4": (awq, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}),
    "int4_gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 128}),
    "fp8_block": (fp8_block, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "fp8": (
        fp8_channel,
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
            },
            "ignore": ["lm_head"],
        },
    ),
    "nvfp4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
}


def quantised(layout: Layout) -> dict[str, tuple[str, tuple[int, ...], int]]:
    found = unquantised()
    for layer in range(2):
        for module, (rows, columns) in LAYER_MATRICES.items():
            for part, entry in layout(rows, columns).items():
                found[f"model.layers.{layer}.{module}.{part}"] = entry
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_a_quantised_checkpoint_has_the_bytes_that_its_format_says(form: str, tmp_path: Path):
    layout, config = FORMATS[form]
    write_config(tmp_path)
    by_formula = footprint(named_model(str(tmp_path)), form)
    write_config(tmp_path, quantization_config=config)
    tensors = quantised(layout)
    write_safetensors(tmp_path / "model.safetensors", tensors)

    found = named_model(str(tmp_path))

    assert found.precision == form
    assert found.stored_tensors is not None
    stored = footprint(found, form)
    assert stored.weight_bytes == sum(nbytes for _, _, nbytes in tensors.values())
    assert stored == by_formula
    with_formula = named_model(str(write_config(tmp_path / "alone", quantization_config=config)))
    # Scales and orders are shared as their matrix is, which is not exact: matters in a tiny model only.
    assert footprint(found, form, "bf16", 2).weight_bytes == pytest.approx(
        footprint(with_formula, form, "bf16", 2).weight_bytes, rel=1e-2
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shard", ["5GB", "100KB"])
def test_a_checkpoint_of_transformers_has_the_bytes_of_its_tensors(variant: str, shard: str, tmp_path: Path):
    import torch

    model = write_tiny_checkpoint(tmp_path, variant)
    model.to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size=shard)
    single = tmp_path / "model.safetensors"
    if shard == "100KB":
        single.unlink()  # of the first save
        assert (tmp_path / "model.safetensors.index.json").is_file()

    found = named_model(str(tmp_path))

    assert found.stored_tensors is not None
    assert found.parameters == sum(each.numel() for each in model.parameters())
    assert footprint(found, "bf16").weight_bytes == 2 * found.parameters
    assert sum(each.nbytes for each in found.stored_tensors) == 2 * found.parameters


def test_a_single_file_counts_alone_whatever_an_index_says(tmp_path: Path):
    """As for engines and fetches: it may be left of another export."""
    write_tiny_checkpoint(tmp_path, "llama")
    whole = named_model(str(tmp_path))
    index = {"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    assert named_model(str(tmp_path)) == whole


def test_the_stored_type_wins_over_the_one_that_the_config_claims(tmp_path: Path):
    write_tiny_checkpoint(tmp_path, "llama")  # fp32
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}), encoding="utf-8")

    found = named_model(str(tmp_path))

    assert found.dtype == "fp32"
    assert footprint(found, "fp32").weight_bytes == 4 * found.parameters
    assert footprint(found, "bf16").weight_bytes == 2 * found.parameters


def test_draft_layers_and_a_stored_copy_of_a_tied_head_are_not_loaded(tmp_path: Path):
    write_config(tmp_path, tie_word_embeddings=True)
    tensors = quantised(lambda rows, columns: {"weight": ("BF16", (rows, columns), rows * columns * 2)})
    wanted = sum(nbytes for _, _, nbytes in tensors.values()) - 512_000
    tensors["model.layers.2.eh_proj.weight"] = ("BF16", (256, 512), 262_144)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (32,), 128)
    write_safetensors(tmp_path / "model.safetensors", tensors)

    assert footprint(named_model(str(tmp_path)), "bf16").weight_bytes == wanted


def test_a_vision_tower_is_counted_where_it_is_stored(tmp_path: Path):
    text = {key: value for key, value in LLAMA.items() if key != "architectures"}
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 8},
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = quantised(lambda rows, columns: {"weight": ("BF16", (rows, columns), rows * columns * 2)})
    tensors = {f"language_model.{name}": entry for name, entry in tensors.items()} | {
        "vision_tower.patch_conv.weight": ("BF16", (8, 3, 14, 14), 9408)
    }
    write_safetensors(tmp_path / "model.safetensors", tensors)

    found = named_model(str(tmp_path))

    assert footprint(found, "bf16", "bf16", 2).weight_bytes == pytest.approx(
        footprint(found, "bf16").weight_bytes / 2, rel=0.02
    )
    assert footprint(found, "bf16").weight_bytes - footprint(found, "bf16").dense_read_bytes == 512_000 + 9408
    assert found.unverified == ()


def test_an_older_export_of_modelopt_tells_its_format_in_a_file_of_its_own(tmp_path: Path):
    write_config(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*self_attn*"]}})
    )

    found = named_model(str(tmp_path))

    assert found.precision == "nvfp4"
    assert found.unquantised == (TensorKind.ATTENTION,)


def bad_config_text(text: bytes) -> Callable[[Path], None]:
    return lambda directory: (directory / "config.json").write_bytes(text) and None


def bad_header(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = directory / "model.safetensors"
        content = path.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])

    return damage


def entry_of(header: dict[str, Any], **changes: Any) -> None:
    header["model.layers.1.self_attn.q_proj.weight"].update(changes)


def index(weight_map: Any) -> Callable[[Path], None]:
    """Put the tensors into a shard, and an index beside it."""

    def damage(directory: Path) -> None:
        (directory / "model.safetensors").rename(directory / "model-1.safetensors")
        text = json.dumps({"weight_map": weight_map})
        (directory / "model.safetensors.index.json").write_text(text)

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), "has no config.json"),
    "not JSON": (bad_config_text(b"{not json"), "config.json: is not JSON"),
    "a list": (bad_config_text(b"[]"), "config.json: is not a JSON object"),
    "not UTF-8": (bad_config_text(b"\xff\xfe\x00{"), "config.json: is not JSON"),
    "empty": (bad_config_text(b""), "config.json: is not JSON"),
    "nested": (bad_config_text(b'{"a":' + b"[" * 100_000), "config.json: is nested too deeply"),
    "a huge number": (bad_config_text(b'{"hidden_size": ' + b"9" * 5000 + b"}"), "config.json: is not JSON"),
    "NaN": (
        bad_config_text(json.dumps(LLAMA | {"hidden_size": float("nan")}).encode()),
        "hidden_size: is nan",
    ),
    "another model's config": (
        bad_config_text(json.dumps(LLAMA | {"intermediate_size": 768}).encode()),
        "mlp.gate_proj.weight has shape [512, 256]; config.json implies [768, 256]",
    ),
    "more layers than stored": (
        bad_config_text(json.dumps(LLAMA | {"num_hidden_layers": 3}).encode()),
        "is there 2 times; config.json implies 3",
    ),
    "a shape beyond its bytes": (
        bad_header(lambda h: entry_of(h, shape=[10**9, 10**9])),
        "model.layers.1.self_attn.q_proj.weight: shape: [1000000000, 1000000000] of BF16 needs",
    ),
    "a negative shape": (
        bad_header(lambda h: entry_of(h, shape=[-1, 256])),
        "shape: is [-1, 256], not a list",
    ),
    "offsets beyond the file": (
        bad_header(lambda h: entry_of(h, data_offsets=[0, 10**15])),
        "data_offsets: [0, 1000000000000000] do not lie within",
    ),
    "offsets backwards": (
        bad_header(lambda h: entry_of(h, data_offsets=[9, 3])),
        "data_offsets: [9, 3] do not",
    ),
    "no offsets": (
        bad_header(lambda h: entry_of(h, data_offsets=None)),
        "data_offsets: [] do not lie within",
    ),
    "an unknown type": (bad_header(lambda h: entry_of(h, dtype="F3")), "dtype: 'F3' is not a data type"),
    "a type that is a number": (bad_header(lambda h: entry_of(h, dtype=16)), "dtype: is 16, not a string"),
    "an entry that is a list": (
        bad_header(lambda h: h.update({"model.norm.weight": [1]})),
        "model.norm.weight: is [1], not an object",
    ),
    "no embedding": (
        bad_header(lambda h: h.pop("model.embed_tokens.weight")),
        "embed_tokens.weight is missing",
    ),
    "no tensors": (bad_header(lambda h: h.clear()), "the files hold no weights"),
    "a pointer of Git LFS": (
        lambda d: (d / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
        "is not a safetensors file (or a Git LFS pointer to one)",
    ),
    "an empty file": (lambda d: (d / "model.safetensors").write_bytes(b""), "is not a safetensors file"),
    "a directory for a file": (
        lambda d: ((d / "model.safetensors").unlink(), (d / "model.safetensors").mkdir()),
        "model.safetensors: Is a directory",
    ),
    "a missing shard": (
        index({"a": "model-00001-of-00002.safetensors"}),
        "weight_map: names model-00001-of-00002.safetensors, which is not there",
    ),
    "a tensor that its shard lacks": (
        index({"model.layers.0.x": "model-1.safetensors"}),
        "weight_map: model-1.safetensors holds no tensor 'model.layers.0.x'",
    ),
    "a shard elsewhere": (index({"a": "../../etc/passwd"}), "a: '../../etc/passwd' is not a file name"),
    "a shard without a name": (index({"a": ""}), "a: '' is not a file name"),
    "a shard that is a number": (index({"a": 3}), "a: is 3, not a string"),
    "an index of nothing": (index({}), "weight_map: is missing"),
    "an index that is a list": (index([]), "weight_map: is [], not an object"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_is_one_line_that_names_the_file(damage: str, tmp_path: Path):
    write_config(tmp_path)
    write_safetensors(
        tmp_path / "model.safetensors",
        quantised(lambda rows, columns: {"weight": ("BF16", (rows, columns), rows * columns * 2)}),
    )
    assert named_model(str(tmp_path)).stored_tensors
    change, message = DAMAGES[damage]
    change(tmp_path)

    with pytest.raises(InputError) as caught:
        named_model(str(tmp_path))

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_file_alone_is_enough(tmp_path: Path):
    found = named_model(str(write_config(tmp_path / "my-model")))

    assert found.name == "my-model"
    assert found.stored_tensors is None


@pytest.mark.parametrize(
    "name", ["lama-3.1-8b", "", "   ", "./nowhere", "x" * 10_000, "a\0b", "meta-llama/Llama-9-8B"]
)
def test_a_name_that_nobody_knows_is_one_line(name: str):
    with pytest.raises(InputError, match="neither a path that exists nor a well-known model") as caught:
        named_model(name)

    assert "\n" not in str(caught.value)


def test_a_misspelt_name_is_answered_with_similar_ones():
    with pytest.raises(InputError, match=r"similar: .*Llama-3.1-8B"):
        named_model("Lama-3.1-8b")


def test_every_known_model_is_read_by_its_name():
    for name in known_models():
        assert read_model(ModelOption(model=name)).name == name


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (ModelOption("Llama-3.1-8B", parameters="8e9"), "--parameters: contradicts --model"),
        (ModelOption("Llama-3.1-8B", layers=32), "--layers: contradicts --model"),
        (ModelOption("Llama-3.1-8B", kv_heads=8), "--kv-heads: contradicts --model"),
        (ModelOption(layers=32), "--parameters: is missing"),
        (ModelOption(parameters="many"), "--parameters: 'many' is not a number"),
        (ModelOption(parameters="nan"), "--parameters: 'nan' is not a number"),
        (ModelOption(parameters="1e400"), "--parameters: '1e400' is not a number"),
        (ModelOption(parameters=""), "--parameters: '' is not a number"),
        (ModelOption(parameters="-7B"), "--parameters: -7e+09 is not from"),
    ],
)
def test_contradictory_or_absurd_flags_are_refused(source: ModelOption, message: str):
    with pytest.raises(InputError) as caught:
        read_model(source)

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("written", ["70e9", "70B", "70_000_000_000", "0.07T", "70000m"])
def test_parameters_are_read_as_people_write_them(written: str):
    assert read_model(ModelOption(parameters=written, layers=80)).parameters == pytest.approx(70e9, rel=0.01)


def run(*args: str, required: bool) -> tuple[list[ModelOption | None], BaseException | None]:
    seen: list[ModelOption | None] = []

    @click.command()
    @model_options(required=required)
    @click.option("--other", default=1)
    def command(model: ModelOption | None, other: int) -> None:
        """Do something."""
        assert other == 1
        seen.append(model)

    return seen, CliRunner().invoke(command, args).exception


def test_the_options_reach_the_command_as_one_argument():
    assert run("--model", "x", required=True) == ([ModelOption(model="x")], None)
    assert run("--parameters", "7B", "--layers", "32", required=False)[0] == [
        ModelOption(parameters="7B", layers=32)
    ]


def test_no_model_is_none_or_an_error():
    assert run(required=False) == ([None], None)
    seen, error = run(required=True)
    assert not seen
    assert isinstance(error, InputError)
    assert error.field == "--model"


def test_a_model_is_what_its_architecture_says():
    found = named_model("meta-llama/Llama-3.1-8B")

    assert isinstance(found, Architecture)
    assert found.layers == 32


@settings(max_examples=150, deadline=None)
@given(
    file=st.sampled_from(["model.safetensors", "config.json"]),
    at=st.integers(0, 3000),
    noise=st.binary(min_size=1, max_size=6) | st.sampled_from([b"-", b"[", b'"', b"null", b"1e999", b"\n"]),
    insert=st.booleans(),
)
def test_any_bytes_on_disk_give_a_model_or_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, file: str, at: int, noise: bytes, insert: bool
):
    directory = tmp_path_factory.mktemp("noise")
    write_config(directory)
    write_safetensors(
        directory / "model.safetensors",
        quantised(lambda rows, columns: {"weight": ("BF16", (rows, columns), rows * columns * 2)}),
    )
    content = (directory / file).read_bytes()
    at %= min(len(content), 3000)
    (directory / file).write_bytes(content[:at] + noise + content[at + (0 if insert else len(noise)) :])
    try:
        found = named_model(str(directory))
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
        return
    finally:
        shutil.rmtree(directory)
    assert footprint(found, found.precision).weight_bytes > 0


def test_an_index_without_its_files_is_counted_from_the_config_and_marked(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = tmp_path / "model.safetensors.index.json"
    weight_map = {"model.embed_tokens.weight": "model-00001-of-00004.safetensors"}
    index.write_text(json.dumps({"metadata": {"total_size": 16060522496}, "weight_map": weight_map}))

    found = named_model(str(tmp_path))

    assert found.parameters == 8_030_261_248
    assert any("the files of the index are not there" in each for each in found.unverified)

    index.write_text(json.dumps({"metadata": {"total_size": 141_107_412_992}, "weight_map": weight_map}))
    with pytest.raises(InputError, match=r"is 141.1 GB; config.json implies 16.1"):
        named_model(str(tmp_path))


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("adapter_config.json", "it is a LoRA adapter"),
        ("model_index.json", "it is a diffusers pipeline"),
        ("llama-Q4_K_M.gguf", "GGUF files are not read"),
        ("readme.txt", "has no config.json"),
    ],
)
def test_what_is_no_checkpoint_is_called_by_its_name(tmp_path: Path, file: str, told: str) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(InputError, match=told):
        named_model(str(tmp_path))


def test_a_file_of_modelopt_beside_the_config_is_read_for_a_directory_and_for_a_file(tmp_path):
    path = write_config(tmp_path / "exported")
    quantization = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (tmp_path / "exported" / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))

    of_file, of_directory = named_model(str(path)), named_model(str(path.parent))

    assert of_file.quantization == "fp8"
    assert of_file.module_formats == of_directory.module_formats
