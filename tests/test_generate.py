"""Writing text: a cache changes nothing unless a scheme goes by the length, a seed repeats itself, an end is said."""

import pytest
import torch
from conftest import command

import generate
from data.tokenizer import Tokenizer
from runs.config import load_config
from training import checkpoint, run


def write(folder, capfd, *overrides: str) -> str:
    capfd.readouterr()
    assert command("generate", f"run={folder}", "prompt=shin", "tokens=20", *overrides) == 0
    return capfd.readouterr().out


@pytest.mark.parametrize("position", ["none", "sinusoidal", "rope", "alibi"])
def test_greedy_decoding_equals_full_passes_beyond_the_trained_context(smoke, position):
    folder = smoke(position)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    model = run.build_model(load_config(folder), tokenizer.vocab_size).eval()
    checkpoint.load_weights(model, checkpoint.find(folder, "last"))
    text = torch.tensor([tokenizer.encode("shin dare")])
    with torch.inference_mode():
        rule = {"tokens": 60, "temperature": 0.0, "top_k": None, "eos": -1}
        ids = generate.decode(model, text, generator=torch.Generator(), **rule)
        for i in ids:
            assert int(model(text)[0, -1].argmax()) == i
            text = torch.cat((text, torch.tensor([[i]])), dim=1)


GROWING = [
    "position.factor=3",
    "position.original_context=16",
    "model.n_layers=3",
]


@pytest.mark.parametrize(
    ("tokens", "said"), [(0, False), (1, False), (3, False), (4, True), (40, True)]
)
def test_decoding_that_differs_from_one_pass_says_so(smoke, capfd, tokens, said):
    folder = smoke("rope_dynamic", *GROWING)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    prompt = "shin dare shin dare shin dare"
    while len(tokenizer.encode(prompt)) > 14:
        prompt = prompt[:-1]
    assert len(tokenizer.encode(prompt)) == 14  # three more tokens are read after 16 in all
    capfd.readouterr()
    arguments = [f"run={folder}", f"prompt='{prompt}'", f"tokens={tokens}", "temperature=9"]
    assert command("generate", *arguments) == 0
    shown = capfd.readouterr()
    assert ("note: rope_dynamic turns a text by its length" in shown.err) is said
    assert "note" not in shown.out


@pytest.mark.parametrize("position", ["rope", "rope_dynamic"])
def test_decoding_that_equals_one_pass_says_nothing(smoke, capfd, position):
    folder = smoke(position, *(["model.n_layers=1"] if position == "rope_dynamic" else []))
    assert command("generate", f"run={folder}", "prompt=shin", "tokens=60") == 0
    assert "note" not in capfd.readouterr().err


def test_a_seed_repeats_itself(smoke, capfd):
    folder = smoke("rope")
    one = write(folder, capfd, "seed=1")
    assert one.startswith("shin") and write(folder, capfd, "seed=1") == one
    assert write(folder, capfd, "seed=2") != one
    assert write(folder, capfd, "seed=2", "temperature=0") == write(folder, capfd, "top_k=1")


def test_drawing_follows_temperature_and_top_k():
    logits = torch.tensor([0.0, 1.0, 2.0, -torch.inf])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.tensor([generate.pick(logits, 0.5, None, generator) for _ in range(4000)])
    shares = drawn.bincount(minlength=4) / 4000
    torch.testing.assert_close(shares, (logits / 0.5).softmax(0), atol=0.03, rtol=0)
    drawn = {generate.pick(logits, 1.0, 2, generator) for _ in range(200)}
    assert drawn == {1, 2}


def test_an_empty_prompt_starts_a_document(smoke, capfd):
    folder = smoke("rope")
    capfd.readouterr()
    assert command("generate", f"run={folder}", "tokens=20", "seed=3", "temperature=9") == 0
    assert len(capfd.readouterr().out) > 1


@pytest.mark.parametrize(
    ("override", "message"),
    [("temperature=-1", "temperature"), ("top_k=0", "top_k"), ("tokens=-1", "tokens=-1")],
)
def test_mistakes_stop_with_one_line(smoke, capfd, override, message):
    assert command("generate", f"run={smoke('rope')}", override) == 1
    said = capfd.readouterr().err
    assert message in said and "Traceback" not in said


def test_learned_positions_end_where_their_table_does(smoke, capfd):
    assert command("generate", f"run={smoke('learned')}", "prompt=shin", "tokens=100") == 1
    assert "learned positions end at 32" in capfd.readouterr().err


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8", "cp1252"])
def test_any_text_can_be_printed_and_none_commands_the_terminal(encoding):
    text = "tab\tline\nΔ 文 é \ud800 \x1b]0;title\x07 \r\x9b2J \u202e"
    shown = generate.printable(text, encoding)
    assert shown.encode(encoding) and shown.startswith("tab\tline\n")
    assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e"} & set(shown) and "\\x1b]0;title" in shown
    assert generate.printable("Δ 文 é", "utf-8") == "Δ 文 é"


@pytest.mark.parametrize(
    "prompt",
    ["To be, or not", "12e5", "true", "[x", "{a: 1}", 'he said: "hi"', "a=b", "it's\\", "0x1f"],
)
def test_a_prompt_is_taken_as_it_was_typed(smoke, capfd, prompt):
    assert command("generate", f"run={smoke('rope')}", f"prompt={prompt}", "tokens=0") == 0
    assert capfd.readouterr().out == prompt + "\n"
