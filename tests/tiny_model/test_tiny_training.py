"""The training code: what is read, what is kept back, what is asked, and that learning learns."""

import random

import pytest
import torch


def test_about_one_module_in_twenty_is_held_out(training_code):
    make = training_code["data"].Document
    names = [f"package_{number // 7}.module_{number}" for number in range(4000)]

    share = sum(make(name, "").held_out for name in names) / len(names)

    assert 0.04 < share < 0.06


@pytest.mark.parametrize(
    ("name", "held_out"), [("logging", True), ("typing", True), ("shutil", False), ("os", False)]
)
def test_the_name_alone_decides_who_is_held_out(training_code, name, held_out):
    assert training_code["data"].Document(name, "any text").held_out is held_out


def test_source_gives_docstrings_signatures_and_prose_but_no_dead_code(training_code):
    data = training_code["data"]
    source = '''"""Module words."""
# This comment explains in prose why things are.

# x = compute(1, 2) + [3, 4][0] * {5: 6}[5]

# a[0] = (b[1] - c[2]) ** 2 / (d[3] + 1)
class A:
    """Class words."""

    def f(self, x=1):
        """Method words."""
        return x  # trailing remarks of six words are not kept
'''

    entries = [(e.name, e.kind, e.signature, e.doc) for e in data._source_entries("pkg", source)]
    comments = list(data._comments(source))

    assert entries == [
        ("pkg", "module", "", "Module words."),
        ("pkg.A", "class", "", "Class words."),
        ("pkg.A.f", "method", "(self, x=1)", "Method words."),
    ]
    assert comments == ["This comment explains in prose why things are."]


def test_a_comment_block_of_prose_is_kept_whole(training_code):
    source = "# Two lines of prose\n#  are joined into one.\nx = 1\n"

    assert list(training_code["data"]._comments(source)) == ["Two lines of prose\n are joined into one."]


def test_an_answer_is_the_first_paragraph_without_the_repeated_signature(training_code):
    make, answer = training_code["data"].Entry, training_code["conversations"].answer

    doc = "f(x) -> int\nCount the things\nthat x holds.\n\nMore."

    assert answer(make("m.f", "function", "(x)", doc)) == "Count the things that x holds."


def test_a_long_answer_is_cut_after_a_whole_sentence(training_code):
    make, conversations = training_code["data"].Entry, training_code["conversations"]

    text = conversations.answer(make("m.f", "function", "", "One short sentence here. " + "word " * 200))

    assert text == "One short sentence here."


def test_a_signature_alone_is_no_answer(training_code):
    make, answer = training_code["data"].Entry, training_code["conversations"].answer

    assert answer(make("m.f", "function", "", "chain(*iterables) --> chain object")) == ""


def test_chats_alternate_between_user_and_assistant_and_hide_private_names(training_code):
    data, conversations = training_code["data"], training_code["conversations"]
    names = ["m.f", "m._hidden", "m.Class.g"]
    entries = tuple(data.Entry(name, "function", "", f"Say what {name} does.") for name in names)

    chats = list(conversations.chats([data.Document("m", "", entries)], random.Random(0)))

    for chat in chats:
        roles = [turn["role"] for turn in chat if turn["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
    said = " ".join(turn["content"] for chat in chats for turn in chat)
    assert "m.Class.g does" in said
    assert "_hidden" not in said


def test_what_is_trained_on_is_framed_as_the_shipped_template_frames_it(training_code, tokenizer):
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]

    assert training_code["vocabulary"].render(chat) == tokenizer.apply_chat_template(chat, tokenize=False)


def test_batches_hold_equal_tokens_and_end_with_full_contexts(training_code):
    train = training_code["train"]
    stream = list(range(train.TOKENS_PER_STEP * 40 + 5))

    data = train.batches(stream)

    assert {batch[:, 1:].numel() for batch in data} == {train.TOKENS_PER_STEP}
    assert data[0].shape[1] == train.SHORT + 1
    assert data[-1].shape[1] == train.LONG + 1
    assert torch.equal(
        torch.cat([batch[:, :-1].flatten() for batch in data]),
        torch.arange(len(data) * train.TOKENS_PER_STEP),
    )


def test_a_few_steps_on_one_batch_lower_its_loss(training_code):
    train = training_code["train"]
    torch.manual_seed(0)
    batch = torch.randint(6, 4096, (2, 65))

    losses = [loss for _, loss in train.train(train.build_model(), [batch] * 8)]

    assert losses[-1] < losses[0] - 0.5


def test_blending_a_quarter_in_moves_each_weight_a_quarter_of_the_way(training_code):
    train = training_code["train"]
    model = train.build_model()
    trained = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    before = {name: torch.randn_like(weight) for name, weight in trained.items()}

    train.blend(model, before, 0.25)

    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.detach(), 0.75 * before[name] + 0.25 * trained[name])
