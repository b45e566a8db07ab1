"""Every code block of the README and the pages of the site does what it says.

Python blocks run in the order of their page, in an empty folder and with the page's own names; a residual's file is
found as one. YAML is a run's or a study's configuration, or a part of a run's, and is written where its title says,
smaller where a comment says how. Shell lines that call `depthroute` are read by the command line itself; those of the
site are run.
"""

import importlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from commands import answer
from documents import PAGES, ROOT, Block, blocks, commands

from depthroute import config, residuals
from depthroute.cli import app
from depthroute.study.plan import Study, plan_runs

SHELLS = ("sh", "bash", "console")
RUN_ELSEWHERE = {"depthroute demo --quick": "test_demo.py"}


@pytest.mark.filterwarnings("default")  # of libraries that the pages use
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_does_what_it_says(page: Path, tmp_path: Path, monkeypatch, capsys, as_a_user):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    shutil.copytree(ROOT / "examples", "examples")
    names: dict[str, object] = {"__name__": f"page_{page.stem.replace('-', '_')}"}
    # Classes look up their own module, as dataclasses and NamedTuples do.
    for block in blocks(page):
        assert block.kind in ("python", "yaml", "text", *SHELLS), f"{page.name}: say what this is:\n{block.text}"
        if block.kind == "python":
            if block.title:
                add_residual(block, monkeypatch)
            exec(compile(block.text, f"{page.name}", "exec"), names)
        elif block.kind == "yaml":
            check_yaml(block)
        elif block.kind in SHELLS:
            lines = commands(block.text, "depthroute")
            assert len(lines) == block.text.count("depthroute "), f"{page.name}: not all is checked:\n{block.text}"
            for line in lines:
                parse(shlex.split(line.split(" | ")[-1])[1:])
                if block.run:
                    run(line, capsys)
                elif page.parent.name == "docs":
                    assert line in RUN_ELSEWHERE, f"{page.name}: is not run: {line}"


def run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    if " | " in line:
        *before, last = line.split(" | ")
        whole = " | ".join([*before, f"{sys.executable} -m {last}"])
        done = subprocess.run(whole, shell=True, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    else:
        found = answer(capsys, *shlex.split(line)[1:])
        assert found.code == 0, f"{line}\n{found.err}"


def add_residual(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file be found where residuals are."""
    Path("residuals").mkdir()
    path = Path("residuals", Path(block.title).name).absolute()
    path.write_text(block.text)
    monkeypatch.setattr(residuals, "__path__", [*residuals.__path__, str(path.parent)])
    module = f"{residuals.__name__}.{path.stem}"
    importlib.import_module(module)
    monkeypatch.delitem(sys.modules, module)


def check_yaml(block: Block) -> None:
    # The README shows a file and the commands that take it as one block.
    shown = "".join(line for line in block.text.splitlines(keepends=True) if not line.startswith("depthroute "))
    raw = yaml.safe_load(shown)
    if "arms" in raw:
        plan_runs(Study.parse(raw))
    elif "residual" in raw:
        config.from_dict({"model": {"size": "tiny", **raw}})
    else:
        config.from_dict(raw)
    if block.title:
        for setting in block.smaller:
            raw = config.apply_set(raw, setting)
        Path(block.title).write_text(yaml.safe_dump(raw, sort_keys=False) if block.smaller else shown)
    for line in commands(block.text, "depthroute"):
        parse(shlex.split(line)[1:])


def parse(words: list[str]) -> None:
    """Read the words of a command as the command line does, down to the last subcommand. Nothing is run."""
    command = typer.main.get_command(app)
    context = command.make_context("depthroute", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(rest), parent=context)


def test_a_wrong_option_in_a_page_would_be_found():
    with pytest.raises(typer.exceptions.TyperException):
        parse(["study", "plan", "mine.yaml", "--measurre"])
    with pytest.raises(typer.exceptions.TyperException):
        parse(["study", "plam", "mine.yaml"])


def test_what_a_page_does_not_run_another_test_runs():
    for line, file in RUN_ELSEWHERE.items():
        words = ", ".join(f'"{word}"' for word in shlex.split(line)[1:])
        assert f"depthroute({words}" in (ROOT / "tests" / file).read_text()


def test_every_page_is_in_the_sites_navigation():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def files(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        inner = entry if isinstance(entry, list) else list(entry.values())
        return [name for part in inner for name in files(part)]

    assert sorted(files(site["nav"])) == sorted(page.name for page in PAGES if page.parent.name == "docs")


def test_the_site_asks_nothing_of_another_machine():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert site["theme"]["font"] is False
    assert not {"extra_css", "extra_javascript", "repo_url"} & set(site)
