"""The code blocks of a Markdown page."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = ("depthroute", "make", "pytest", "cp")
# Above a block: a shell block is run, a file is written with these settings over it, to take seconds instead of hours.
RUN, SMALLER = re.compile(r"<!-- run -->\s*\Z"), re.compile(r"<!-- smaller: (.+) -->\s*\Z")
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ITEM = re.compile(r"(\*|-|\d+\.) ")


class Block(NamedTuple):
    """`kind` is python, yaml, sh or text; `title` the file that a block is; `run`, `smaller` what its comment says."""

    kind: str
    text: str
    title: str = ""
    run: bool = False
    smaller: tuple[str, ...] = ()


def blocks(page: Path) -> list[Block]:
    """Every fenced and indented block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found: list[tuple[int, Block]] = []
    for fence in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', fence[2])
        above = text[: fence.start()]
        smaller = SMALLER.search(above)
        settings = tuple(smaller[1].split()) if smaller else ()
        block = Block(fence[1], fence[3], title[1] if title else "", bool(RUN.search(above)), settings)
        found.append((above.count("\n"), block))
    # A fence leaves its lines behind, so that those after it keep their numbers.
    prose = FENCE.sub(lambda fence: "." + "\n" * fence[0].count("\n"), text)
    found += [(line, Block(kind(block), block)) for line, block in indented(prose.splitlines())]
    return [block for _, block in sorted(found, key=lambda pair: pair[0])]


def indented(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Indented blocks with the number of their first line. What is indented below an item is its paragraph."""
    number, last = 0, ""
    while number < len(lines):
        start = number
        if lines[start].startswith("    ") and not ITEM.match(last):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number]):
                number += 1
            yield start, textwrap.dedent("\n".join(lines[start:number])).strip("\n") + "\n"
            continue
        if lines[start] and not lines[start].startswith(" "):
            last = lines[start]
        number += 1


def kind(text: str) -> str:
    """What an indented block is: none says."""
    first = text.splitlines()[0]
    if first.startswith(("import ", "from ")):
        return "python"
    if first.split()[0] in SHELL:
        return "sh"
    return "yaml" if re.match(r"(# \S+\.yaml$|\w+: )", first) else "text"


def commands(text: str, program: str) -> list[str]:
    """The lines of a shell block, or a yaml block's tail, that call the program last, without prompts and comments."""
    joined = text.replace("\\\n", " ")
    lines = [line.removeprefix("$ ").split("  #")[0].strip() for line in joined.splitlines()]
    return [line for line in lines if line.split(" | ")[-1].split(" ")[0] == program]
