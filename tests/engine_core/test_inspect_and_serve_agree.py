"""What `inspect` accepts, `serve` loads; what it refuses, `serve` refuses for the same reason."""

import json
import resource
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tangram_engine.__main__ import main
from tangram_engine.checkpoint import CheckpointError
from tangram_engine.config import EngineConfig
from tangram_engine.run import LLMEngine
from tangram_engine.serve.http.defaults import read_defaults
from tangram_engine.serve.text.tokenizer import load_tokenizer
from tests.support.bad_checkpoints import BAD, read_parts, write_parts
from tests.support.served_model import write_model

WEIGHTS = "model.safetensors"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
INV_FREQ = "model.layers.0.self_attn.rotary_emb.inv_freq"
HALVES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def tensors_of(directory):
    return load_file(directory / WEIGHTS)


def change_tensors(change):
    def mutate(directory):
        tensors = tensors_of(directory)
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / WEIGHTS)

    return mutate


def stored_as(*dtypes):
    """Values that every one of the dtypes holds exactly, stored in turn as each of them."""

    def change(tensors):
        for index, (name, tensor) in enumerate(tensors.items()):
            tensors[name] = tensor.to(torch.bfloat16).to(dtypes[index % len(dtypes)])

    return change_tensors(change)


def with_tensor(name, tensor):
    return change_tensors(lambda tensors: tensors.update({name: tensor}))


def sharded(names=HALVES, listed=lambda weight_map: None, stored=None):
    """Tensors by turns in the files of these names; `listed` changes the index, `stored` adds tensors."""

    def mutate(directory):
        tensors = tensors_of(directory) | (stored or {})
        (directory / WEIGHTS).unlink()
        weight_map = {name: names[index % len(names)] for index, name in enumerate(tensors)}
        for file in names:
            save_file(
                {name: tensors[name] for name, where in weight_map.items() if where == file}, directory / file
            )
        listed(weight_map)
        (directory / f"{WEIGHTS}.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": weight_map})
        )

    return mutate


def linked(directory):
    """As the cache of a hub has it, inside the directory: a link to a link to a file without a suffix."""
    (directory / "blobs").mkdir()
    for number, file in enumerate(sorted(directory.glob("model*.safetensors"))):
        file.rename(directory / "blobs" / f"{number:x}")
        (directory / f"{number}.link").symlink_to(Path("blobs") / f"{number:x}")
        file.symlink_to(f"{number}.link")


def both(*mutations):
    def mutate(directory):
        for one in mutations:
            one(directory)

    return mutate


def moved_behind_a_link(directory):
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to("elsewhere")


def linked_out(directory):
    shutil.move(directory / WEIGHTS, directory.parent / "outside")
    (directory / WEIGHTS).symlink_to(directory.parent / "outside")


def unaligned(directory):
    header, data = read_parts(directory / WEIGHTS)
    raw = json.dumps(header).encode()
    write_parts(directory / WEIGHTS, raw + b" " * (1 - len(raw) % 2), data)
    with (directory / WEIGHTS).open("rb") as file:
        assert struct.unpack("<Q", file.read(8))[0] % 2


def metadata(value):
    def mutate(directory):
        header, data = read_parts(directory / WEIGHTS)
        write_parts(directory / WEIGHTS, {**header, "__metadata__": value}, data)

    return mutate


def shards_that_are_one_file(directory):
    (directory / WEIGHTS).rename(directory / "a.safetensors")
    (directory / "b.safetensors").symlink_to("a.safetensors")
    names = read_parts(directory / "a.safetensors")[0].keys() - {"__metadata__"}
    index = {name: "ab"[number % 2] + ".safetensors" for number, name in enumerate(sorted(names))}
    (directory / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": index}))


def text_file(name, content):
    return lambda directory: (directory / name).write_text(content)


def beside_its_shards(directory):
    whole = (directory / WEIGHTS).read_bytes()
    sharded()(directory)
    (directory / HALVES[1]).unlink()
    (directory / WEIGHTS).write_bytes(whole)


INV = torch.ones(4)
SAME: dict[str, object] = {
    "a link inside": linked,
    "shards behind links": both(sharded(), linked),
    "shards of odd names": sharded((" .safetensors", "..safetensors", "é\\n%s.safetensors")),
    "the directory is a link": moved_behind_a_link,
    "a file beside an index of shards": beside_its_shards,
    "an unaligned header": unaligned,
    "metadata is null": metadata(None),
    "metadata with half of a surrogate pair": metadata({"a\ud800": "\udfff"}),
    "rotary buffers": with_tensor(INV_FREQ, INV),
    "rotary buffers of a dtype that no weight may have": with_tensor(INV_FREQ, INV.double()),
    "rotary buffers that the index lists": sharded(listed=lambda index: index.update({INV_FREQ: HALVES[0]})),
    "rotary buffers that the index omits": sharded(
        listed=lambda index: index.pop(INV_FREQ), stored={INV_FREQ: INV}
    ),
    "a tied head that the index lists": sharded(listed=lambda index: index.update({HEAD: HALVES[1]})),
    "a tied head with the embedding's values": change_tensors(
        lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()})
    ),
    "bfloat16": stored_as(torch.bfloat16),
    "float16": stored_as(torch.float16),
    "dtypes by turns": stored_as(torch.float32, torch.bfloat16, torch.float16),
}
OTHER_ANSWERS: dict[str, object] = {
    "a tied head of its own": with_tensor(
        HEAD, torch.randn(320, 32, generator=torch.Generator().manual_seed(1))
    ),
    "a tied head of its own, and of another dtype": with_tensor(
        HEAD, torch.randn(320, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    ),
}
REFUSED: dict[str, object] = {
    "a link that leaves the directory": linked_out,
    "a shard is missing": both(sharded(), lambda directory: (directory / HALVES[1]).unlink()),
    "shards that are one file": shards_that_are_one_file,
    "an index of a shard that has only what is not needed": sharded(
        listed=lambda index: index.update({HEAD: "model-3.safetensors"})
    ),
    "weights in float64": stored_as(torch.float64),
    "a tied head of other rows": with_tensor(HEAD, torch.ones(319, 32)),
    "a tied head in float64": with_tensor(HEAD, torch.ones(320, 32).double()),
    "an adapter": with_tensor("model.layers.0.self_attn.q_proj.lora_A.weight", torch.ones(2, 32)),
    "a bias that is not added": with_tensor("model.layers.0.self_attn.o_proj.bias", torch.zeros(32)),
    "end tokens that are no ids": text_file("generation_config.json", '{"eos_token_id": "</s>"}'),
    "a token of two ids": text_file("added_tokens.json", '{"<s>": 310}'),
    "a padding token that is a number": text_file("special_tokens_map.json", '{"pad_token": 0}'),
}


def inspected(directory, capsys):
    """Exit status, and the facts or the reason of the refusal."""
    status = main(["inspect", "--model", str(directory)])
    document = json.loads(capsys.readouterr().out)
    return status, document.get("facts") or document["error"]["message"]


def refused(directory, capsys):
    """The reason of the refusal. The status is 0 where another runtime may serve the checkpoint."""
    status = main(["inspect", "--model", str(directory)])
    document = json.loads(capsys.readouterr().out)
    assert "facts" not in document
    assert status == (0 if "other" in document else 3)
    message = document["error"]["message"].removesuffix("…")
    assert message
    return message


def served(directory):
    """All that `serve` reads of a checkpoint, by the same calls. Raises CheckpointError."""
    load_tokenizer(directory)
    read_defaults(directory, "auto")
    return LLMEngine(
        EngineConfig(directory, device="cpu", kv_cache_bytes=1 << 20, max_num_seqs=2, dtype="float32")
    )


def answers(directory, run, greedy):
    outputs = run(served(directory), [greedy("a", range(40, 60), 6)])
    return [(output.token, output.logprob) for output in outputs["a"]]


@pytest.fixture
def model(tmp_path):
    """Random weights that all dtypes of 16 bits hold exactly."""
    directory = write_model(tmp_path / "model")
    stored_as(torch.float32)(directory)
    return directory


@pytest.mark.parametrize("mutate", SAME.values(), ids=SAME)
def test_what_is_accepted_is_loaded_and_answers_alike(mutate, model, capsys, run, greedy):
    expected = answers(model, run, greedy)
    mutate(model)
    status, facts = inspected(model, capsys)
    assert (status, facts["tiedEmbeddings"] if not status else facts) == (0, True)
    assert answers(model, run, greedy) == expected


@pytest.mark.parametrize("mutate", OTHER_ANSWERS.values(), ids=OTHER_ANSWERS)
def test_what_is_accepted_with_other_values_is_loaded(mutate, model, capsys, run, greedy):
    expected = answers(model, run, greedy)
    mutate(model)
    assert inspected(model, capsys)[0] == 0
    assert answers(model, run, greedy) != expected


@pytest.mark.parametrize("mutate", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_not_loaded_for_the_same_reason(mutate, model, capsys):
    mutate(model)
    message = refused(model, capsys)
    with pytest.raises(CheckpointError) as caught:
        served(model)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_every_bad_checkpoint_is_refused_by_both(bad, model, capsys):
    bad.spoil(model)
    message = refused(model, capsys)
    with pytest.raises(CheckpointError) as caught:
        LLMEngine(EngineConfig(model, device="cpu"))
    assert caught.value.message.startswith(message)


def test_more_shards_than_a_process_may_open_are_loaded(model, capsys):
    names = tuple(f"{number}.safetensors" for number in range(20))
    sharded(names)(model)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(list(Path("/proc/self/fd").iterdir())) + 12
    status, _ = inspected(model, capsys)
    served(model)  # imports what it needs
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    try:
        served(model)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert status == 0
