"""The tables and figures of a report on the disk, and the taking away of those that it no longer has.

report.json   {"files": {"tables/contrasts.tex": sha256}}: what the last report wrote, as it wrote it

Only a file that still is what a report wrote is taken away: one that a person made or edited stays.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from depthroute.errors import RunError
from depthroute.schema import Content
from depthroute.study.seal import write_file

RECORD = "report.json"
LEFT = "delete it, and files of earlier reports are left as they are"
FOLDERS = (Path("tables"), Path("figures"))


class Record(Content):
    files: dict[str, str]


def replace(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write `files`, named `tables/NAME` or `figures/NAME`; take away what an earlier report wrote beside them."""
    before = recorded(directory)
    for name, digest in before.items():
        path = directory / name
        if name not in files and path.is_file() and sha256(path.read_bytes()).hexdigest() == digest:
            path.unlink()
    record = {"files": {name: sha256(content).hexdigest() for name, content in files.items()}}
    write_file(directory / RECORD, json.dumps(record, indent=2).encode() + b"\n")
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        write_file(path, content)


def recorded(directory: Path) -> dict[str, str]:
    """sha256 by name of what the last report wrote; empty before the first. RunError if the record is damaged."""
    path = directory / RECORD
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        raise RunError(f"{path}: damaged; {LEFT}") from None
    problem = Record.misfit(record)
    if problem is None and any(Path(name).parent not in FOLDERS for name in record["files"]):
        problem = "names a file outside of tables/ and figures/"
    if problem is not None:
        raise RunError(f"{path}: {problem}; {LEFT}")
    return record["files"]
