"""What the README shows is true of the code."""

import re
from pathlib import Path

import yaml

from depthroute.config import load
from depthroute.study.plan import plan_runs, read_study

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block_after(words: str) -> str:
    """The indented block that follows a heading."""
    lines = README.split(words, 1)[1].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("    "))
    block = []
    for line in lines[start:]:
        if line and not line.startswith("    "):
            break
        block.append(line[4:])
    return "\n".join(block)


def test_the_readmes_study_is_a_study(tmp_path):
    text = block_after("## Your own comparison").split("depthroute study plan")[0]
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert set(yaml.safe_load(text)) == {"question", "base", "arms", "seeds", "contrasts"}
    assert len(plan_runs(read_study(path))) == 3 * 6


def test_the_readmes_code_runs():
    names = {}
    exec(block_after("## In your own model"), names)
    assert names["mixed"].shape == (2, 2, 16, 64)


def test_every_link_of_the_readme_into_the_repository_leads_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("http")]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_example_is_a_configuration():
    examples = list((ROOT / "examples").glob("*.yaml"))
    assert examples
    for path in examples:
        assert load(path).tokens > 0
