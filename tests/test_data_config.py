import pytest

from depthroute.data import BpeTokenizer, DataConfig, FilesCorpus, HubCorpus
from depthroute.errors import ConfigError


def test_the_default_is_the_installed_documentation_with_a_small_bpe() -> None:
    assert DataConfig.parse({}) == DataConfig(corpus="python-docs", tokenizer=BpeTokenizer(bpe=1024), held_out={})


def test_every_kind_of_corpus_survives_being_dumped_and_parsed() -> None:
    config = DataConfig.parse(
        {
            "corpus": {"files": ["a/*.txt"], "validation": 0.2},
            "tokenizer": {"file": "tokenizer.json", "end": "<eos>"},
            "held_out": {"web": {"hub": "some/set", "subset": "s", "documents": 10}, "source": "python-source"},
        }
    )
    assert isinstance(config.corpus, FilesCorpus)
    assert isinstance(config.held_out["web"], HubCorpus)
    assert DataConfig.parse(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"corpus": "python-doc"}, "data.corpus: unknown corpus 'python-doc' (did you mean 'python-docs'? choices:"),
        ({"corpus": {"files": ["a"], "fromat": "text"}}, "data.corpus: fromat: unknown key (did you mean 'format'?"),
        ({"corpus": {"files": []}}, "data.corpus: files: List should have at least 1 item"),
        ({"corpus": {"files": ["a"], "hub": "b"}}, "data.corpus: give a corpus name"),
        ({"corpus": {"hub": "b"}}, "data.corpus: documents: missing"),
        ({"corpus": 3}, "data.corpus: give a corpus name (python-docs, python-source), a mapping with `files`"),
        (
            {"corpus": {"files": ["a"], "validation": 1.5}},
            "data.corpus: validation: Input should be less than or equal",
        ),
        ({"corpus": {"files": ["a"], "format": "csv"}}, "data.corpus: format: Input should be 'text', 'jsonl' or"),
        ({"tokenizer": {"bpe": 256}}, "data.tokenizer: bpe: a vocabulary of 256 is too small: 256 bytes and the"),
        ({"tokenizer": "bites"}, "data.tokenizer: give `byte`, `{bpe: VOCABULARY}` or `{file: tokenizer.json}`"),
        ({"tokenizer": {"bpe": 512, "file": "x"}}, "data.tokenizer: give `byte`"),
        ({"tokenizer": {"bpe": 512, "vocab": 3}}, "data.tokenizer: vocab: unknown key (choices: bpe)"),
        ({"held_out": {"train": "python-docs"}}, "data.held_out: 'train' cannot name a held-out domain"),
        ({"held_out": {"../x": "python-docs"}}, "data.held_out: '../x' cannot name a held-out domain"),
        ({"held_out": {"x": "python-sauce"}}, "data.held_out.x: unknown corpus 'python-sauce' (did you mean"),
        ({"heldout": {}}, "data.heldout: unknown key (did you mean 'held_out'?"),
    ],
)
def test_a_wrong_key_or_value_is_one_clear_line(raw: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DataConfig.parse(raw, "data")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
