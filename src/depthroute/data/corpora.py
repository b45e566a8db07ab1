"""A corpus of any kind as one stream of documents."""

from collections.abc import Iterator
from pathlib import Path

from depthroute.data import documentation, files
from depthroute.data.config import FilesCorpus, HubCorpus
from depthroute.data.files import Document, encoded
from depthroute.errors import DataError
from depthroute.schema import nearest


def documents(corpus: str | FilesCorpus | HubCorpus, only_validation: bool = False) -> Iterator[Document]:
    """The documents, always in the same order. `only_validation` leaves out what is known to be for training."""
    if isinstance(corpus, FilesCorpus):
        yield from files.documents(corpus, only_validation)
    elif isinstance(corpus, HubCorpus):
        yield from hub_documents(corpus)
    else:
        yield from module_documents(corpus, only_validation)


def validation_fraction(corpus: str | FilesCorpus | HubCorpus) -> float:
    """The fraction that a document is held out by, where its hash decides."""
    return documentation.VALIDATION if isinstance(corpus, str) else corpus.validation


def shortest(corpus: str | FilesCorpus | HubCorpus) -> int:
    """Documents with fewer bytes than this, not counting surrounding white space, are dropped."""
    return documentation.SHORTEST if corpus == "python-docs" else 1


def readable_name(corpus: str | FilesCorpus | HubCorpus) -> str:
    if isinstance(corpus, str):
        return corpus
    if isinstance(corpus, HubCorpus):
        return corpus.hub.rstrip("/").rsplit("/", 1)[-1]
    found = files.find(corpus)
    return found[0].path.stem if len(found) == 1 else found[0].path.parents[found[0].name.count("/")].name


def fingerprint(corpus: str | FilesCorpus | HubCorpus) -> dict[str, object]:
    """What identifies a corpus; it names no absolute path.

    Local files, local folders and the installed modules are identified by their contents, so that equal fingerprints
    mean equal documents. A set on the hub is identified by its name, subset, split and revision, which mean equal
    documents only where the revision is a commit.
    """
    if isinstance(corpus, FilesCorpus):
        return files.fingerprint(corpus)
    if isinstance(corpus, HubCorpus):
        given: dict[str, object] = corpus.model_dump(mode="json")
        folder = Path(corpus.hub)
        if folder.is_dir():
            given["hub"] = files.contents(folder)
        return given
    return {"name": corpus, "modules": documentation.fingerprint()}


def module_documents(name: str, only_validation: bool) -> Iterator[Document]:
    for module in documentation.modules():
        side = documentation.is_validation(module.name)
        if only_validation and not side:
            continue
        texts = documentation.documentation(module) if name == "python-docs" else [documentation.source(module)]
        for text in texts:
            yield Document((encoded(text, f"{module.path}: a string"),), side)


def hub_documents(corpus: HubCorpus) -> Iterator[Document]:
    """The first rows of a streamed data set. Whatever the `datasets` library raises becomes one line."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(f"hub '{corpus.hub}': reading it needs datasets: pip install 'depthroute[hf]'") from None
    count = 0
    try:
        stream = datasets.load_dataset(
            corpus.hub, corpus.subset, split=corpus.split, revision=corpus.revision, streaming=True
        )
        for count, row in enumerate(stream.take(corpus.documents), start=1):
            if corpus.field not in row:
                raise DataError(f"hub '{corpus.hub}': no field '{corpus.field}' {nearest(corpus.field, sorted(row))}")
            yield Document((encoded(row[corpus.field], f"hub '{corpus.hub}': row {count}: `{corpus.field}`"),), None)
    except DataError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [""]
        raise DataError(f"hub '{corpus.hub}': {type(error).__name__}: {lines[0]}") from None
    if count < corpus.documents:
        raise DataError(f"hub '{corpus.hub}': has {count} documents, `documents` asks for {corpus.documents}")
