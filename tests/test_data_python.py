import ast
import inspect
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from depthroute.data import DataConfig, Dataset, build
from depthroute.data import documentation as docs
from depthroute.data.corpora import documents
from depthroute.errors import DataError


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.open(build(DataConfig(), tmp_path_factory.mktemp("python")))


def module(folder: Path, source: str, name: str = "made.up") -> docs.Module:
    (folder / "made.py").write_text(source, encoding="utf-8")
    return docs.Module(name, folder / "made.py")


def test_the_embedded_corpus_is_a_few_megabytes_with_a_tenth_held_out(dataset: Dataset) -> None:
    train, validation = dataset.parts["train"], dataset.parts["validation"]
    assert 3e6 < train.bytes + validation.bytes < 8e6
    assert 0.05 < validation.bytes / train.bytes < 0.2
    assert (dataset.vocab, dataset.directory.name[:20]) == (1024, "python-docs-bpe1024-")
    dropped = dataset.index.parts["train"].dropped
    assert dropped["short"] > 0
    assert dropped["duplicates"] > 0
    text = dataset.tokenizer.decode(train.read(0, train.tokens).tolist())
    for known in ("Applies a linear transformation", "Return a new array of given shape", 'The "assert" statement'):
        assert known in text


def test_no_document_of_validation_occurs_in_training(dataset: Dataset) -> None:
    read: dict[str, list[bytes]] = {}
    for name in ("train", "validation"):
        part = dataset.parts[name]
        bounds = np.asarray(part.offsets).tolist()
        read[name] = [part.read(start, stop).tobytes() for start, stop in pairwise(bounds)]
    assert not set(read["train"]) & set(read["validation"])


def test_another_process_builds_the_same_bytes(dataset: Dataset, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "depthroute", "data", "build", "python-docs", "--data", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)
    assert row["parts"]["train"]["tokens"] == dataset.parts["train"].tokens
    assert Dataset.open(Path(row["directory"])).digest == dataset.digest


def test_a_module_lies_on_the_same_side_in_both_corpora() -> None:
    held_out = [name for name, _ in docs.modules() if docs.is_validation(name)]
    sources = list(documents("python-source", only_validation=True))
    assert len(sources) == len(held_out) > 50
    assert all(document.validation for document in sources)
    assert "torch.nn.modules.linear" not in held_out
    assert docs.is_validation("torch.functional")


def test_modules_are_named_as_they_are_imported() -> None:
    names = [name for name, _ in docs.modules()]
    assert names == sorted(set(names))
    assert {"json", "json.decoder", "numpy", "numpy.linalg._linalg", "torch", "torch.nn.functional", "re"} < set(names)
    assert not [name for name in names if ".tests." in f"{name}." or "-" in name]


def test_a_changed_character_of_a_module_changes_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs, "modules", lambda: [docs.Module("made.up", tmp_path / "made.py")])
    prints = set()
    for text in ("x = 1", "x = 2", "x = 1"):
        module(tmp_path, text)
        prints.add(docs.fingerprint())
    assert len(prints) == 2


def test_docstrings_are_those_that_python_would_show(tmp_path: Path) -> None:
    source = inspect.getsource(json.decoder)
    found = "\n".join(docs.documentation(module(tmp_path, source)))
    assert inspect.getdoc(json.JSONDecoder) in found
    assert f"JSONDecoder.decode(self, s, _w)\n\n{inspect.getdoc(json.JSONDecoder.decode)}" in found


def test_a_document_is_a_module_text_a_function_or_a_class_with_its_methods(tmp_path: Path) -> None:
    source = '''
"""Module."""
if True:
    def f(a, /, b, *rest, c=1, **others):
        """Function."""
def undocumented(): pass
class A:
    """Class."""
    async def g(self, *, d):
        """Method."""
    class B:
        def h(self): """Inner."""
'''
    assert list(docs.documentation(module(tmp_path, source.lstrip()))) == [
        "Module.",
        "f(a, b, *rest, c, **others)\n\nFunction.",
        "class A\n\nClass.\n\nA.g(self, *, d)\n\nMethod.\n\nA.B.h(self)\n\nInner.",
    ]


def test_attached_documentation_is_read_without_being_run(tmp_path: Path) -> None:
    source = '''
raise SystemExit
add_docstr(torch.acos, r"""
acos(input)

Arc of {input}.
""".format(**common))
_x = _add_docstr(y, "plain %s" % z)
add_newdoc("numpy", "array", """
    Makes one.
    """)
add_newdoc("numpy", "flat", ("base", "The base."))
add_newdoc("numpy", "flat", [("a", "First."), ("b", "Se" + "cond.")])
add_docstr(computed, build())
other("x", "not documentation")
'''
    assert list(docs.documentation(module(tmp_path, source))) == [
        "acos(input)\n\nArc of {input}.",
        "plain %s",
        "array\n\nMakes one.",
        "flat.base\n\nThe base.",
        "flat.a\n\nFirst.",
        "flat.b\n\nSecond.",
    ]


def test_reference_topics_are_documents(tmp_path: Path) -> None:
    found = list(docs.documentation(module(tmp_path, "topics = {'a': 'One.', 'b': 'Two' '.'}", docs.TOPICS)))
    assert found == ["One.", "Two."]


@pytest.mark.parametrize("content", [b"def f(:", b"x = 1\0", b"# coding: nonsense\n", b"\xff\xfe"])
def test_a_source_that_is_no_python_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "made.py").write_bytes(content)
    with pytest.raises(DataError, match=r"made.py: cannot be") as caught:
        list(docs.documentation(docs.Module("made.up", tmp_path / "made.py")))
    assert "\n" not in str(caught.value)


def test_literals_are_seen_through_formatting_only() -> None:
    def literal(text: str) -> str | None:
        return docs.literal(ast.parse(text, mode="eval").body)

    assert literal("'a' + x + 'b'") == "ab"
    assert literal("f'{a}'") is None
    assert literal("3") is None
