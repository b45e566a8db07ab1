"""Text from a trained model: the engine on tokens, and the command as a person meets it."""

import itertools
import json
import shutil

import networks
import pytest
import torch
import training
from commands import answer, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from depthroute.data.tokenizer import Tokenizer, byte_json
from depthroute.errors import ArgumentError
from depthroute.model.generate import Sampling, choose, generate
from depthroute.train.trained import load

PROMPT = torch.tensor([1, 5, 2])
GREEDY = Sampling(temperature=0)
BYTES = Tokenizer(byte_json(), "bytes")


def model():
    return networks.moved(networks.attnres({"blocks": 4}, routes="qk_v"))


def uncached(network, prompt, tokens, sampling):
    """The same continuation from whole passes over everything so far."""
    generator, ids = torch.Generator().manual_seed(sampling.seed), prompt
    for _ in range(tokens):
        logits = network(ids[None])[0, -1]
        ids = torch.cat([ids, torch.tensor([choose(logits, sampling, generator)])])
    return ids[len(prompt) :].tolist()


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(0.7, 5, 0.9, seed=3)], ids=str)
def test_generation_equals_the_uncached_forward_token_by_token(sampling):
    network = model()
    with torch.no_grad():
        expected = uncached(network, PROMPT, 12, sampling)
    assert list(generate(network, PROMPT, 12, sampling)) == expected
    assert len(set(expected)) > 1


def test_the_coldest_draw_is_the_likeliest_token():
    network = model()
    assert list(generate(network, PROMPT, 8, Sampling(1e-5))) == list(generate(network, PROMPT, 8, GREEDY))


def test_generation_is_not_compiled(monkeypatch):
    network = networks.moved(networks.attnres({"blocks": 4}, routes="qk_v"), computed={"compile": True})
    monkeypatch.setattr(network, "compute", None)
    assert list(generate(network, PROMPT, 12, GREEDY)) == list(generate(model(), PROMPT, 12, GREEDY))


def test_draws_follow_the_cut_distribution():
    logits = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.1]))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.tensor([choose(logits, Sampling(1.0, 3, 0.75), generator) for _ in range(3000)])
    shares = torch.bincount(drawn, minlength=4) / 3000
    assert_close(shares, torch.tensor([2 / 3, 1 / 3, 0, 0]), rtol=0, atol=0.03)
    assert {choose(logits, Sampling(1.0, None, 0.01, 0), generator) for _ in range(20)} == {0}


@pytest.mark.parametrize(
    ("prompt", "tokens", "sampling", "message"),
    [
        (torch.tensor([], dtype=torch.long), 1, GREEDY, "prompt: it is empty"),
        (PROMPT[None], 1, GREEDY, r"prompt: torch.int64 of shape \[1, 3\]; give one row of token ids"),
        ([0.5], 1, GREEDY, r"prompt: torch.float32 of shape \[1\]; give one row"),
        ([1, 11], 1, GREEDY, "prompt: ids from 1 to 11; this model knows 11"),
        ([-1], 1, GREEDY, "prompt: ids from -1 to -1; this model knows 11"),
        ("abc", 1, GREEDY, r"prompt: 'abc'; give token ids, such as tokenizer.encode\(text\)"),
        (None, 1, GREEDY, "prompt: None; give token ids"),
        ([2**70], 1, GREEDY, "prompt: .*; give token ids"),
        (PROMPT, 1.5, GREEDY, "tokens: 1.5; give a whole number"),
        (PROMPT, 1, 0.8, r"sampling: 0.8; give a Sampling"),
        (PROMPT, 1, 0, r"sampling: 0; give a Sampling"),
        (PROMPT, 1, Sampling(1.0, 1.5), "top_k: 1.5; give a whole number"),
        (PROMPT, 1, Sampling("1"), "temperature: '1'; give a number"),
        (PROMPT, 1, Sampling(1e-45), "temperature: 1e-45; give 0 for the likeliest token, or a number from 1e-05"),
        (PROMPT, 0, GREEDY, "tokens: 0; ask for at least 1"),
        (PROMPT, 1, Sampling(-1.0), "temperature: -1.0; give 0"),
        (PROMPT, 1, Sampling(float("nan")), "temperature: nan; give 0"),
        (PROMPT, 1, Sampling(0, 3), "temperature: 0 takes the likeliest token; leave out top_k"),
        (PROMPT, 1, Sampling(1, 12), "top_k: 12 must lie between 1 and the vocabulary, 11"),
        (PROMPT, 1, Sampling(1, None, 0.0), "top_p: 0.0 must lie above 0"),
        (PROMPT, 1, Sampling(seed=2**64), r"seed: 18446744073709551616 must lie between 0 and 2\^64 - 1"),
        (PROMPT, 1, Sampling(seed=-1), "seed: -1 must lie between 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("as_a_user")
def test_what_cannot_be_generated_is_said_before_anything_is_computed(prompt, tokens, sampling, message):
    with pytest.raises(ArgumentError, match=message):
        generate(model(), prompt, tokens, sampling)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=6), st.lists(st.integers(0, 256), max_size=12))
def test_streamed_pieces_are_the_decoded_text_whole_characters_or_not(prompt, ids):
    before = BYTES.encode(prompt)
    assert prompt + "".join(BYTES.stream(before, ids)) == BYTES.decode([*before, *ids])


def test_a_streamed_character_comes_with_its_last_byte():
    seen = []

    def ids():
        for token in BYTES.encode("aé😀"):
            seen.append(token)
            yield token

    assert [(piece, len(seen)) for piece in BYTES.stream([], ids())] == [("a", 1), ("é", 3), ("😀", 7)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generate")
    training.write_texts(folder)
    training.trained(folder, "run")
    return folder


def test_the_command_streams_the_same_text_from_an_argument_and_from_standard_input(folder, capsys):
    options = ("--max-tokens", 20, "--seed", 1)
    given = answer(capsys, "generate", folder / "run", "--prompt", "the depth ", *options)
    piped = answer(capsys, "generate", folder / "run", "--json", *options, stdin="the depth ")
    assert given.code == piped.code == 0, given.err + piped.err
    told = json.loads(piped.out)
    assert (told["text"] + "\n", told["prompt"]) == (given.out, "the depth ")
    network, tokenizer = load(folder / "run")
    ids = generate(network, tokenizer.encode("the depth "), 20, Sampling(seed=1), tokenizer.vocab)
    expected = list(itertools.takewhile(lambda token: token != tokenizer.end, ids))
    assert (told["text"], told["tokens"]) == (tokenizer.decode(expected), len(expected))
    assert given.err.startswith(f"{len(expected)} tokens, ")
    assert given.err.endswith("; it was trained on windows of 16 tokens, what goes beyond is a guess\n")


@pytest.mark.usefixtures("as_a_user")
def test_what_cannot_be_continued_is_one_line(folder, capsys, tmp_path):
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "manifest.json").write_text((folder / "run/manifest.json").read_text())
    (unfinished / "metrics.jsonl").write_bytes(b"")
    (folder / "prereg.json").touch()
    for arguments, message in [
        ([folder / "run", "--prompt", ""], "prompt: it is empty; give some text"),
        ([folder / "run"], "prompt: it is empty; give some text"),
        ([folder / "nothing", "--prompt", "a"], "nothing/manifest.json: missing; "),
        ([folder, "--prompt", "a"], "is a study; name one of its runs"),
        ([unfinished, "--prompt", "a"], "has no final model yet"),
        ([unfinished / "manifest.json", "--prompt", "a"], "manifest.json: is a file; name the directory of a run"),
        ([folder / "run", "--prompt", "a", "--temperature", "0", "--top-k", "3"], "temperature: 0 takes the likeliest"),
        ([folder / "run", "--prompt", "a", "--seed", 2**64], "seed: 18446744073709551616 must lie between 0"),
        ([folder / "run", "--prompt", "a", "--max-tokens", 10**14], "cache: no memory for 100000000000000 tokens"),
        ([folder / "run", "--prompt", "a\udcff"], "prompt: is not UTF-8 text"),
    ]:
        assert message in refusal(capsys, "generate", *arguments)


def test_another_tokenizer_is_found_before_it_says_anything(folder, capsys, tmp_path):
    copied = shutil.copytree(folder / "run", tmp_path / "run")
    path = copied / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "</s>"))
    assert "not the tokenizer of this run" in refusal(capsys, "generate", copied, "--prompt", "a")
    path.unlink()
    assert "copy the tokenizer.json of the data set" in refusal(capsys, "generate", copied, "--prompt", "a")
