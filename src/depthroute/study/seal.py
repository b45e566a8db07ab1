"""Files of a study directory that carry a digest of their own content, so that an edit does not pass for a result.

Imports no torch: a report is written from these files alone.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from depthroute import runs
from depthroute.errors import RunError
from depthroute.study import formats

PREREG, PREREG_FORMAT = "prereg.json", 1
RESULTS, RESULTS_FORMAT = "results.json", 3
ANEW = "`depthroute study run` writes it anew"
Document = dict[str, Any]


def sealed(body: Mapping[str, Any]) -> Document:
    """The document as plain data, with the sha256 of all the rest as its `digest`."""
    plain = json.loads(json.dumps({key: value for key, value in body.items() if key != "digest"}, allow_nan=False))
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return {"format": plain["format"], "digest": hashlib.sha256(canonical.encode()).hexdigest(), **plain}


def read(
    path: Path, known: int, shape: type[formats.Sealed], missing: str, damaged: str, edited: str, outdated: str
) -> Document:
    """A sealed file of format `known` and this `shape`. RunError with the hint that fits if it is not as written."""
    try:
        written = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path}: missing; {missing}") from None
    except (ValueError, RecursionError):
        raise RunError(f"{path}: damaged; {damaged}") from None
    if not isinstance(written, dict) or not {"format", "digest"} <= written.keys():
        raise RunError(f"{path}: damaged; {damaged}")
    document = cast(Document, written)
    if document["format"] != known:
        raise RunError(f"{path}: has format {document['format']}, this version reads {known}; {outdated}")
    if not _intact(document):
        raise RunError(f"{path}: was edited after it was written (its digest does not match); {edited}")
    if problem := shape.misfit(document):
        raise RunError(f"{path}: {problem}; {damaged}")
    return document


def read_plan(directory: Path) -> Document:
    """prereg.json. RunError if there is no plan, or it was edited."""
    return read(
        directory / PREREG,
        PREREG_FORMAT,
        formats.Plan,
        missing="`depthroute study plan` writes it before the first run",
        damaged="restore the file, or start the study anew in another --dir",
        edited="restore it",
        outdated="choose another --dir",
    )


def read_results(directory: Path) -> tuple[Document, Document]:
    """results.json and the plan that it is of. RunError if either was edited, or the plan has changed since."""
    path = directory / RESULTS
    results = read(
        path,
        RESULTS_FORMAT,
        formats.Results,
        missing="`depthroute study run` writes it",
        damaged=ANEW,
        edited=ANEW,
        outdated=ANEW,
    )
    plan = read_plan(directory)
    if results["provenance"]["plan"] != plan["digest"]:
        raise RunError(f"{path}: is older than the plan in {PREREG}, which was amended or made anew since; {ANEW}")
    return results, plan


def write(path: Path, document: Mapping[str, Any]) -> None:
    write_file(path, json.dumps(document, indent=2, allow_nan=False).encode() + b"\n")


def write_file(path: Path, content: bytes) -> None:
    """Write aside and rename. RunError names the file where the disk is full or cannot be written."""
    try:
        runs.write_atomic(path, content)
    except OSError as error:
        # What the system says of a full disk names no file.
        raise RunError(f"{path}: cannot be written ({error.strerror or error}); mend it and go on") from error


def _intact(document: Document) -> bool:
    try:
        return sealed(document)["digest"] == document["digest"]
    except ValueError:  # a number that is not finite
        return False
