"""The command line inside the test's own process: a second less than starting one, for every call."""

import io
import sys
from typing import NamedTuple

import pytest

from depthroute.cli import main


class Answer(NamedTuple):
    code: int
    out: str
    err: str


def answer(capsys: pytest.CaptureFixture[str], *arguments: object, stdin: str = "") -> Answer:
    """What `depthroute ARGUMENTS` prints, and its exit code."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["depthroute", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as stop:
            main()
    printed = capsys.readouterr()
    code = stop.value.code
    return Answer(code if isinstance(code, int) else 0, printed.out, printed.err)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that has to fail with exit code 2 and print nothing else."""
    found = answer(capsys, *arguments)
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1), found
    return found.err
