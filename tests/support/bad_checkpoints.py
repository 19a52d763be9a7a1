"""Hand-made bad checkpoints: each a change of a good one, with the reason it must be refused for."""

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Header = dict[str, Any]
NORM = "model.norm.weight"


def read_parts(file: Path) -> tuple[Header, bytes]:
    """Header and data of a safetensors file."""
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_parts(file: Path, header: Header | bytes, data: bytes, *, length: int | None = None) -> None:
    """The inverse; `length` lies about the header's length."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)


@dataclass(frozen=True)
class Bad:
    """`spoil` changes a good checkpoint directory; the refusal's message contains `says`."""

    spoil: Callable[[Path], object]
    says: str
    reason: str = "InvalidCheckpoint"


def _config(**changes: Any) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        path = directory / "config.json"
        config = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in config.items() if value != "DROP"}))

    return spoil


def _header(change: Callable[[Header], object]) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        path = directory / "model.safetensors"
        header, data = read_parts(path)
        change(header)
        write_parts(path, header, data)

    return spoil


def _entry(name: str = NORM, **changes: Any) -> Callable[[Path], None]:
    return _header(lambda header: header[name].update(changes))


def _weights(change: Callable[[Path], object]) -> Callable[[Path], None]:
    return lambda directory: change(directory / "model.safetensors")  # type: ignore[return-value]


def _text(name: str, text: str | bytes) -> Callable[[Path], object]:
    raw = text.encode() if isinstance(text, str) else text
    return lambda directory: (directory / name).write_bytes(raw)


def _twice(path: Path) -> None:
    header, data = read_parts(path)
    raw = json.dumps(header)[:-1] + f', "{NORM}": {json.dumps(header[NORM])}' + "}"
    write_parts(path, raw.encode(), data)


def _many_twice(path: Path) -> None:
    """A search for the duplicate among these keys must not be quadratic."""
    keys = [f'"{i}":0' for i in range(200_000)]
    write_parts(path, ("{" + ",".join([*keys, keys[-1]]) + "}").encode(), b"")


def _shift(header: Header) -> None:
    """The last tensor begins four bytes early: it overlaps, and its size stays right."""
    last = max((name for name in header if name != "__metadata__"), key=lambda n: header[n]["data_offsets"])
    header[last]["data_offsets"] = [value - 4 for value in header[last]["data_offsets"]]


def _hole(path: Path) -> None:
    header, data = read_parts(path)
    for name, entry in header.items():
        if name != "__metadata__":
            entry["data_offsets"] = [value + 8 for value in entry["data_offsets"]]
    write_parts(path, header, bytes(8) + data)


def _link_out(directory: Path) -> None:
    outside = directory.parent / f"{directory.name}-outside.safetensors"
    (directory / "model.safetensors").rename(outside)
    (directory / "model.safetensors").symlink_to(outside)


def _fifo(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    os.mkfifo(directory / "model.safetensors")


def _sharded(weight_map: Any) -> Callable[[Path], None]:
    """A checkpoint of one shard; `weight_map` gets the tensors' names and returns the map."""

    def spoil(directory: Path) -> None:
        header, _ = read_parts(directory / "model.safetensors")
        (directory / "model.safetensors").rename(directory / "a.safetensors")
        names = [name for name in header if name != "__metadata__"]
        index = {"weight_map": weight_map(names)} if callable(weight_map) else weight_map
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))

    return spoil


def _two_shards_with_everything(directory: Path) -> None:
    raw = (directory / "model.safetensors").read_bytes()
    _sharded(lambda names: {n: ("a" if i % 2 else "b") + ".safetensors" for i, n in enumerate(names)})(
        directory
    )
    (directory / "b.safetensors").write_bytes(raw)


def _pickles_only(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


BAD: dict[str, Bad] = {
    # Files
    "no config": Bad(lambda d: (d / "config.json").unlink(), "config.json does not exist", "NotFound"),
    "no weights": Bad(lambda d: (d / "model.safetensors").unlink(), "neither model.safetensors", "NotFound"),
    "pickles only": Bad(_pickles_only, "pickled weights (pytorch_model.bin)"),
    "link out of the directory": Bad(_link_out, "symbolic link that leaves"),
    "config links out": Bad(
        lambda d: ((d / "config.json").unlink(), (d / "config.json").symlink_to("/etc/hostname")), "leaves"
    ),
    "dangling link": Bad(
        lambda d: ((d / "config.json").unlink(), (d / "config.json").symlink_to("x")), "not exist", "NotFound"
    ),
    "named pipe": Bad(_fifo, "not a regular file"),
    "directory instead of weights": Bad(
        lambda d: ((d / "model.safetensors").unlink(), (d / "model.safetensors").mkdir()),
        "not a regular file",
    ),
    # config.json
    "config is no JSON": Bad(_text("config.json", "{"), "not valid JSON"),
    "config is a list": Bad(_text("config.json", "[]"), "must hold a JSON object"),
    "config is not UTF-8": Bad(_text("config.json", b'{"a": "\xff"}'), "not valid JSON"),
    "config has a key twice": Bad(_text("config.json", '{"a": 1, "a": 2}'), "appears twice"),
    "config has NaN": Bad(_text("config.json", '{"rms_norm_eps": NaN}'), "not valid JSON"),
    "config is too deep": Bad(_text("config.json", "[" * 100_000), "nested too deeply"),
    "config is too large": Bad(_text("config.json", " " * (1 << 20) + "{}"), "at most 1048576"),
    "unknown architecture": Bad(
        _config(architectures=["BloomForCausalLM"]), "BloomForCausalLM", "UnknownArchitecture"
    ),
    "no architecture": Bad(_config(architectures="DROP"), "exactly one class", "UnknownArchitecture"),
    "two architectures": Bad(
        _config(architectures=["LlamaForCausalLM"] * 2), "exactly one class", "UnknownArchitecture"
    ),
    "architecture is no string": Bad(_config(architectures=[1]), "exactly one class", "UnknownArchitecture"),
    "hidden size missing": Bad(_config(hidden_size="DROP"), "hidden_size: is missing"),
    "hidden size zero": Bad(_config(hidden_size=0), "hidden_size: Expected `int` >= 1"),
    "layers are true": Bad(_config(num_hidden_layers=True), "num_hidden_layers: Expected `int`, got `bool`"),
    "heads as text": Bad(_config(num_attention_heads="4"), "num_attention_heads: Expected `int`, got `str`"),
    "kv heads do not divide": Bad(_config(num_key_value_heads=3), "does not divide"),
    "odd head size": Bad(_config(head_dim=7), "head_dim: must be even"),
    "huge vocabulary": Bad(_config(vocab_size=1 << 60), "vocab_size: Expected `int` <= 16777216"),
    "vocabulary of other size": Bad(_config(vocab_size=321), "model.embed_tokens.weight has shape"),
    "negative eps": Bad(_config(rms_norm_eps=-1), "rms_norm_eps: Expected `float` >= 1e-12"),
    "other activation": Bad(_config(hidden_act="gelu"), "hidden_act"),
    "attention bias": Bad(_config(attention_bias=True), "attention_bias"),
    "mlp bias": Bad(_config(mlp_bias=True), "mlp_bias"),
    "quantized": Bad(_config(quantization_config={"bits": 4}), "quantization_config"),
    "sliding window": Bad(_config(layer_types=["sliding_attention"] * 2), "layer_types"),
    "partial rotation": Bad(_config(partial_rotary_factor=0.5), "partial_rotary_factor"),
    "longrope": Bad(
        _config(rope_parameters={"rope_type": "longrope", "factor": 2.0}), "'longrope' is not implemented"
    ),
    "rope is a list": Bad(_config(rope_scaling=[]), "rope_scaling: must be an object"),
    "linear without factor": Bad(_config(rope_parameters={"rope_type": "linear"}), "factor: is missing"),
    "theta zero": Bad(_config(rope_parameters={"rope_theta": 0}), "rope_theta: Expected `float` >= 0.001"),
    "eos is text": Bad(_config(eos_token_id="</s>"), "eos_token_id: Expected `int | array"),
    "config of a million digits": Bad(
        _text("config.json", '{"hidden_size": ' + "9" * 1_000_000 + "}"), "not valid JSON"
    ),
    "eps overflows": Bad(
        _text("config.json", '{"architectures": 1e999}'), "exactly one class", "UnknownArchitecture"
    ),
    "integer eps of a thousand digits": Bad(
        _config(rms_norm_eps=10**1000), "rms_norm_eps: Number out of range"
    ),
    "config is deep inside": Bad(
        _text("config.json", '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}"), "nested too deeply"
    ),
    # The safetensors file as a whole
    "empty file": Bad(_weights(lambda f: f.write_bytes(b"")), "is truncated"),
    "seven bytes": Bad(_weights(lambda f: f.write_bytes(b"1234567")), "is truncated"),
    "huge header": Bad(
        _weights(lambda f: f.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")), "at most 16777216"
    ),
    "header longer than the file": Bad(
        _weights(lambda f: write_parts(f, b"{}", b"", length=1000)), "is truncated"
    ),
    "header is no JSON": Bad(_weights(lambda f: write_parts(f, b"{]", b"")), "not valid JSON"),
    "header is not UTF-8": Bad(_weights(lambda f: write_parts(f, b'{"\xff": 1}', b"")), "not valid JSON"),
    "header is a list": Bad(_weights(lambda f: write_parts(f, b"[]", b"")), "must hold a JSON object"),
    "header is too deep": Bad(
        _weights(lambda f: write_parts(f, b'{"a":' * 100_000, b"")), "nested too deeply"
    ),
    "truncated data": Bad(_weights(lambda f: f.write_bytes(f.read_bytes()[:-100])), "is truncated"),
    "bytes at the end": Bad(
        _weights(lambda f: f.write_bytes(f.read_bytes() + b"\0")), "after its last tensor"
    ),
    "hole at the start": Bad(_weights(_hole), "leaves a hole"),
    "a tensor twice": Bad(_weights(_twice), "appears twice"),
    "many tensors and one twice": Bad(_weights(_many_twice), "appears twice"),
    "metadata is a list": Bad(_header(lambda h: h.update(__metadata__=[])), "__metadata__"),
    "metadata with a number": Bad(_header(lambda h: h.update(__metadata__={"a": 1})), "__metadata__"),
    # One tensor
    "entry is a number": Bad(_header(lambda h: h.update({NORM: 1})), f"{NORM}': Expected `object`"),
    "entry with a stranger": Bad(_entry(code="os.system"), "unknown field `code`"),
    "unknown dtype": Bad(_entry(dtype="F12"), "unknown dtype"),
    "dtype is a list": Bad(_entry(dtype=["F32"]), "dtype: Expected `str`"),
    "integer weights": Bad(_entry(dtype="I32"), "only BF16, F16, F32"),
    "dtype of other size": Bad(_entry(dtype="F16"), "needs 64"),
    "negative dimension": Bad(_entry(shape=[-32]), "shape.0: Expected `int` >= 0"),
    "dimension is true": Bad(_entry(shape=[True]), "shape.0: Expected `int`, got `bool`"),
    "dimension is a float": Bad(_entry(shape=[32.0]), "shape.0: Expected `int`, got `float`"),
    "shape product overflows": Bad(_entry(shape=[1 << 62, 1 << 62]), "needs"),
    "too many dimensions": Bad(_entry(shape=[1] * 9), "of length <= 8"),
    "shape of other size": Bad(_entry(shape=[33]), "needs 132"),
    "other shape of the same size": Bad(_entry(shape=[16, 2]), "has shape [16, 2]"),
    "offsets are three": Bad(_entry(data_offsets=[0, 1, 2]), "data_offsets: Expected `array` of length 2"),
    "offsets run backwards": Bad(_entry(data_offsets=[8, 4]), "run backwards"),
    "offsets beyond the end": Bad(_entry(data_offsets=[1 << 40, (1 << 40) + 128]), "is truncated"),
    "offsets beyond 64 bits": Bad(_entry(data_offsets=[0, 1 << 70]), "data_offsets.1: Expected `int` <="),
    "overlap": Bad(_header(_shift), "overlaps"),
    "tensor missing": Bad(
        _header(lambda h: h.update({"model.other": h.pop(NORM)})), f"tensor {NORM} is missing"
    ),
    "layer surplus": Bad(_config(num_hidden_layers=1), "is not part of"),
    "layer missing": Bad(_config(num_hidden_layers=3), "model.layers.2.input_layernorm.weight is missing"),
    "head missing": Bad(_config(tie_word_embeddings=False), "lm_head.weight is missing"),
    # The index of shards
    "index without map": Bad(_sharded({}), "weight_map"),
    "index with an empty map": Bad(_sharded(lambda names: {}), "weight_map"),
    "index climbs out": Bad(_sharded(lambda names: dict.fromkeys(names, "../a.safetensors")), "beside it"),
    "index is absolute": Bad(_sharded(lambda names: dict.fromkeys(names, "/a.safetensors")), "beside it"),
    "index names a pickle": Bad(_sharded(lambda names: dict.fromkeys(names, "a.bin")), "beside it"),
    "index names a number": Bad(_sharded(lambda names: dict.fromkeys(names, 1)), "beside it"),
    "shard missing": Bad(
        _sharded(lambda names: dict.fromkeys(names, "b.safetensors")), "does not exist", "NotFound"
    ),
    "index forgets a tensor": Bad(
        _sharded(lambda names: dict.fromkeys(names[1:], "a.safetensors")), "does not list"
    ),
    "index invents a tensor": Bad(
        _sharded(lambda names: dict.fromkeys([*names, "ghost"], "a.safetensors")), "but it is not"
    ),
    "index climbs out by backslash": Bad(
        _sharded(lambda names: dict.fromkeys(names, "..\\a.safetensors")), "does not exist", "NotFound"
    ),
    "index names a directory": Bad(
        lambda d: (
            _sharded(lambda names: dict.fromkeys(names, "b.safetensors"))(d),
            (d / "b.safetensors").mkdir(),
        ),
        "not a regular file",
    ),
    "index links out": Bad(
        lambda d: (
            _sharded(lambda names: dict.fromkeys(names, "b.safetensors"))(d),
            (d / "b.safetensors").symlink_to("/etc/hostname"),
        ),
        "leaves",
    ),
    "index of too many shards": Bad(
        _sharded(lambda names: {f"t{i}": f"{i}.safetensors" for i in range(5000)}), "more than 4096 files"
    ),
    "index is too large": Bad(
        _sharded(lambda names: {"x" * (17 << 20): "a.safetensors"}), "at most 16777216"
    ),
    "tensor in two shards": Bad(_two_shards_with_everything, "is in both"),
}


def _tokenizer(**parts: Any) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        path = directory / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | parts))

    return spoil


def _long_token(directory: Path) -> None:
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["x" * 20_000] = 301
    path.write_text(json.dumps(tokenizer))


def _template(source: str) -> Callable[[Path], object]:
    return _text("chat_template.jinja", source)


def _precompiled(charsmap: str) -> dict[str, str]:
    return {"type": "Precompiled", "precompiled_charsmap": charsmap}


def _template_processing(part: dict[str, Any]) -> dict[str, Any]:
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {"type": "TemplateProcessing", "single": [part], "pair": pair, "special_tokens": {}}


_GROW = {"type": "Replace", "pattern": {"String": "l"}, "content": "l" * 4000}
_STRIP = {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}

# What only loading and using tokenizer and chat template shows; `read_checkpoint` accepts all of these.
BAD_TEXT: dict[str, Bad] = {
    "no tokenizer": Bad(lambda d: (d / "tokenizer.json").unlink(), "does not exist", "NotFound"),
    "tokenizer is no JSON": Bad(_text("tokenizer.json", "{"), "cannot be loaded"),
    "tokenizer is too deep": Bad(_text("tokenizer.json", '{"model":' * 100_000), "cannot be loaded"),
    "tokenizer is not UTF-8": Bad(_text("tokenizer.json", b'{"\xff": 1}'), "cannot be loaded"),
    "tokenizer is too large": Bad(_text("tokenizer.json", " " * ((32 << 20) + 1)), "at most 33554432"),
    "tokenizer links out": Bad(
        lambda d: ((d / "tokenizer.json").unlink(), (d / "tokenizer.json").symlink_to("/etc/hostname")),
        "leaves",
    ),
    "panic while loading": Bad(_tokenizer(normalizer=_precompiled("AAAA")), "library panics"),
    "panic while encoding": Bad(_tokenizer(normalizer=_precompiled("BAAAAP////8=")), "library panics"),
    "panic for a special token": Bad(
        _tokenizer(post_processor=_template_processing({"SpecialToken": {"id": "z", "type_id": 0}})),
        "library panics",
    ),
    "panic while decoding": Bad(_tokenizer(decoder=_STRIP), "library panics"),
    "merges that end the process": Bad(
        _tokenizer(
            model={
                "type": "BPE",
                "vocab": {"a": 0, "é": 1, "aé": 2},
                "merges": ["a é"],
                "continuing_subword_prefix": "#",
            }
        ),
        "tokenizer.json",
    ),
    "normalizer that makes texts huge": Bad(
        _tokenizer(normalizer={"type": "Sequence", "normalizers": [_GROW] * 3}), "the tokenizer"
    ),
    "empty vocabulary": Bad(
        _tokenizer(model={"type": "BPE", "vocab": {}, "merges": []}, added_tokens=[]), "no vocabulary"
    ),
    "token of many characters": Bad(_long_token, "a token of 20000 characters"),
    "regular expression in the decoder": Bad(
        _tokenizer(decoder={"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": ""}),
        "is not supported",
    ),
    "decoder that makes texts longer": Bad(
        _tokenizer(decoder={"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"}),
        "is not supported",
    ),
    "decoder of a thousand steps": Bad(
        _tokenizer(decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}] * 1000}), "is not supported"
    ),
    "tokenizer_config is no JSON": Bad(_text("tokenizer_config.json", "{"), "not valid JSON"),
    "template is not UTF-8": Bad(_text("chat_template.jinja", b"\xff"), "not UTF-8"),
    "template is too large": Bad(_template("x" * ((256 << 10) + 1)), "at most 262144"),
    "template does not compile": Bad(_template("{% if %}"), "cannot be compiled"),
    "template takes too long": Bad(
        _template("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
        "the chat template takes longer than",
    ),
    "template takes too much memory": Bad(_template("{{ messages[0].content * 10 ** 10 }}"), "more memory"),
}
