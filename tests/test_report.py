"""The report as files: what it says, in which order, and that odd words stay words."""

import csv
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fabricated import rewrite
from reports import ARMS, QUESTION, WHY, final, plan, prereg
from reports import write as write_reported

from depthroute.cli.report import report as command
from depthroute.report import figures
from depthroute.report.page import read, write
from depthroute.report.svg import COLOURS
from depthroute.report.tables import LATEX, Table, contrast_table, latex, minus
from depthroute.study.seal import sealed

LONG = ARMS[-1]


class Page(HTMLParser):
    """Text outside of style, tags in order, and every attribute that could fetch something."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags, self.links, self._style = "", [], [], False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._style = tag == "style"
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        self._style = False

    def handle_data(self, data):
        self.text += "" if self._style else data


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_reported(tmp_path_factory.mktemp("report") / "study")
    results, fixed = read(directory)
    write(results, fixed, directory)
    return directory


@pytest.fixture(scope="module")
def page(study: Path) -> Page:
    return Page((study / "report.html").read_text(encoding="utf-8"))


def test_the_question_and_the_verdict_come_before_tables_figures_and_provenance(page: Page) -> None:
    order = [
        QUESTION,
        "Verdict",
        "rd has a lower NLL than block on validation",
        "prenorm has a higher NLL than block on validation",
        "Before relying on this",
        "no difference between rd-frozen_v and block on validation at the planned margin of 0.005",
        "rd-average against block on validation, described and not judged",
        "slr and block are identical",
        "is incomplete",
        "Tables",
        "What the planned rule says",
        "Seed by seed",
        "Figures",
        "Paired differences on validation",
        "Provenance",
        prereg()["digest"],
    ]
    place = page.text.index(QUESTION, 1 + page.text.index(QUESTION))
    for part in order:
        assert part in page.text[place:], part
        place = page.text.index(part, place)


def test_the_page_says_what_a_reader_must_know_before_relying_on_it(page: Page) -> None:
    for words in (
        "1 planned run is not finished",
        f"Plan amended once; the last when 7 of 22 runs were finished: {WHY}.",
        "Warning: contrasts, crossings, margins, seeds or the level were changed after runs had finished",
        "2026-12-01 08:00, when 7 of 22 runs were finished",
        "Equivalence tests are not corrected for the number of contrasts",
        "A secondary contrast is called nothing but equivalent or identical",
        "a repeat differed by at most 0.0003",
        "With 3 pairs the exact sign-flip test cannot give a p below 0.25",
        "1 contrast is under-powered",
        "The best optimizer.queries lies on the edge of its tuning grid for block, prenorm, rd.",
        "Not tuned: rd-frozen_v, rd-average, slr",
        "The bootstrap intervals are descriptive only: at 3, 5 and 8 pairs the percentile one holds the true mean in "
        "about 75, 83 and 89 of 100 studies, the BCa one in 72, 85 and 88, the t interval in 95.",
        " cores",
        "TOST p",
        "Noise floor",
        "block, seed 1",
        WHY,
        "held_out.austen: 1 file, was 2",
        "torch 2.13.0",
        "With an SD of 0.01, 5 pairs detect a difference of 0.0166.",
        "Chosen on seeds 101, 102 at 300,000 tokens",
    ):
        assert words in page.text
    assert page.text.count("no difference") == page.text.count("no difference between rd-frozen_v")


def test_the_page_is_one_file_that_asks_for_nothing(page: Page) -> None:
    assert page.links
    assert all(link.startswith("#") for link in page.links)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert "b" not in page.tags[: page.tags.index("nav")]


def test_every_table_has_headers_and_every_figure_says_what_it_shows(study: Path, page: Page) -> None:
    html = (study / "report.html").read_text()
    assert page.tags.count("caption") == page.tags.count("table") >= 8
    assert len(re.findall(r'<th scope="col">', html)) >= 4 * page.tags.count("table")
    assert page.tags.count("svg") == page.tags.count("desc") == html.count('role="img"') >= 8
    assert "rd minus block: mean -0.0" in page.text


def test_no_two_elements_share_an_id_and_every_pointer_has_its_target(study: Path) -> None:
    html = (study / "report.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    pointers = re.findall(r'(?:href="#|url\(#)([^")]+)', html)
    pointers += " ".join(re.findall(r'aria-labelledby="([^"]+)"', html)).split()
    assert len(pointers) > 100
    assert set(pointers) <= set(ids)


def test_figures_stand_alone_and_take_the_page_s_colours_inside_it(study: Path) -> None:
    files = sorted((study / "figures").iterdir())
    assert {
        "paired-validation.svg",
        "curves-python_source.svg",
        "flops-validation.svg",
        "gap-rd-block-validation.svg",
    } <= {file.name for file in files}
    for file in files:
        text = file.read_text()
        root = ET.fromstring(text)
        assert float(root.attrib["width"]) > 300
        assert root.find("{http://www.w3.org/2000/svg}title").text
        assert "var(" not in text
        assert set(re.findall(r"#[0-9a-f]{6}\b", text)) <= set(COLOURS)
    html = (study / "report.html").read_text()
    used = set(re.findall(r"var\(--([a-z0-9-]+)", html))
    assert {"ink", "muted", "rule", "series-1"} <= used
    assert used <= set(re.findall(r"--([a-z0-9-]+):", html))
    assert set(re.findall(r"#[0-9a-f]{6}\b", html[html.index("<svg") :])) <= set(COLOURS)


def test_ticks_and_labels_are_shown_as_they_were_drawn(study: Path) -> None:
    """Shortening coordinates must leave the numbers of the axes alone."""
    shown = re.findall(r"<text[^>]*>([^<]*)</text>", (study / "figures/gap-rd-block-validation.svg").read_text())
    ticks = [float(text.replace("\N{MINUS SIGN}", "-")) for text in shown if re.fullmatch(r"\W?0\.\d+", text)]
    assert len(set(ticks)) >= 4
    assert any(abs(tick * 100 % 1) > 1e-9 for tick in ticks)


def test_milestones_far_apart_are_drawn_on_a_logarithmic_axis_with_plain_numbers(study: Path) -> None:
    results, _ = read(study)
    for run in results["runs"]:
        run["curve"][1]["tokens"] = 100
    drawn = figures.curves(results, {}, "validation", "far")
    assert drawn is not None
    shown = re.findall(r"<text[^>]*>([^<]*)</text>", drawn.svg)
    assert {"100", "1k", "10k"} <= set(shown)
    assert not any("$" in text for text in shown)


def test_the_csv_files_hold_every_number_at_full_precision(study: Path) -> None:
    def rows(name: str) -> list[dict[str, str]]:
        with (study / "tables" / name).open(newline="") as file:
            return list(csv.DictReader(file))

    found = {(r["arm"], r["seed"], r["replicate"], r["held_out"]): float(r["nll"]) for r in rows("runs.csv")}
    kept = [cell for cell in plan() if (cell.arm, cell.seed) != (LONG, 2)]
    assert len(found) == 2 * len(kept)
    for cell in kept:
        assert found[cell.arm, str(cell.seed), str(cell.replicate), "validation"] == final(cell, "validation")
    added = {row["arm"]: float(row["added_percent"]) for row in rows("runs.csv")}
    assert added["prenorm"] == 0 < added["block"] < added["rd"]
    contrasts = rows("contrasts.csv")
    assert [row["verdict"] for row in contrasts] == [
        *("lower", "higher", "equivalent", "described", "identical", "incomplete", "described")
    ]
    results = json.loads((study / "results.json").read_text())
    assert float(contrasts[0]["mean"]) == results["contrasts"][0]["summary"]["mean"]
    assert contrasts[4]["mean"] == ""
    planned, beside = 6 * 3 + 2, 6 * 3 + 2
    assert len(rows("differences.csv")) == planned + beside
    assert len(rows("curves.csv")) == 5 * len(found)
    assert {row["axis"] for row in rows("gaps.csv")} == {"tokens", "flops", "seconds"}


def test_latex_tables_have_as_many_cells_as_columns_and_only_escaped_words(study: Path) -> None:
    files = sorted((study / "tables").glob("*.tex"))
    assert len(files) >= 8
    for file in files:
        text = file.read_text()
        columns = len(re.search(r"\\begin\{tabular\}\{(\w+)\}", text)[1])
        lines = [line for line in text.splitlines() if line.endswith(r"\\")]
        assert lines
        for line in lines:
            assert len(re.split(r"(?<!\\)&", line)) == columns
        body = "\n".join(lines)
        assert not re.search(r"(?<!\\)[_%#]", body)
        assert body.isascii()
    assert r"rd-frozen\_v $-$ block" in (study / "tables/contrasts.tex").read_text()


def test_words_that_latex_would_obey_are_printed() -> None:
    assert latex(r"a_b & 50% $x$ #1 {y} ~ ^ \z <w>") == (
        r"a\_b \& 50\% \$x\$ \#1 \{y\} \textasciitilde{} \textasciicircum{} \textbackslash{}z "
        r"\textless{}w\textgreater{}"
    )
    assert latex("[-0.1, -2] a-b") == "[$-$0.1, $-$2] a-b"
    assert minus("seed -1 of 2026-11-30, 1e-05") == f"seed {chr(0x2212)}1 of 2026-11-30, 1e-05"
    table = Table("t", "two\nlines % here", ["a", "b"], [["1", "2"]])
    assert table.latex().splitlines()[0].startswith("% two lines % here;")
    assert LATEX


def test_odd_names_cannot_leave_their_folder_or_their_element(study: Path, tmp_path: Path) -> None:
    odd = '../../<script>alert("1")</script> id="x"'
    place = tmp_path / "odd"
    shutil.copytree(study, place, ignore=shutil.ignore_patterns("runs", "report.html"))
    text = (place / "results.json").read_text().replace('"rd"', json.dumps(odd))
    (place / "results.json").write_text(json.dumps(sealed(json.loads(text))))
    before = set(tmp_path.rglob("*"))
    results, fixed = read(place)
    page = Page(write(results, fixed, place).read_text())
    assert "script" not in page.tags
    assert odd in page.text
    made = set(tmp_path.rglob("*")) - before
    assert all(file.is_relative_to(place) for file in made)
    assert {file for file in before if not file.exists()} == {
        place / f"figures/gap-rd-{against}.svg" for against in ("block-validation", "prenorm-python_source")
    }
    assert any("script-alert" in file.name for file in made)
    for file in (place / "figures").iterdir():
        ET.fromstring(file.read_text())
    with (place / "tables/runs.csv").open(newline="") as file:
        assert odd in {row["arm"] for row in csv.DictReader(file)}


def test_the_command_says_the_verdict_and_where_the_page_is(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "study"
    shutil.copytree(study, place)
    (place / "report.html").unlink()

    def flag(results):
        flagged = next(run for run in results["runs"] if (run["arm"], run["seed"]) == ("rd", 2))
        flagged["flags"] = ["versions.torch is 2.12.0, planned 2.13.0"]

    rewrite(place / "results.json", flag)
    command(place, include_flagged=False)
    out = capsys.readouterr().out
    assert out.startswith("primary: rd against block on validation is incomplete: 2 of 3 planned pairs")
    assert (
        f"plan amended once; the last when 7 of 22 runs were finished: {WHY}\nwarning: contrasts, crossings, margins"
        in out
    )
    assert f"{place / 'report.html'}: open it in a browser" in out
    html = (place / "report.html").read_text()
    assert "1 run is flagged" in html
    assert "left out of every number" in html
    assert "versions.torch is 2.12.0" in html
    command(place, include_flagged=True)
    assert capsys.readouterr().out.startswith("primary: rd has a lower NLL than block on validation")
    assert "counted here all the same" in (place / "report.html").read_text()


def test_repeats_are_told_of_only_where_an_arm_of_the_contrast_was_repeated(study: Path) -> None:
    results, _ = read(study)
    told = {row[0]: row[5] for row in contrast_table(results, "contrasts").rows}
    assert told[f"rd {chr(0x2212)} block ★"] == "a repeat differed by at most 0.0003"
    assert told[f"rd {chr(0x2212)} prenorm"] == chr(0x2013)
    results["noise"][0]["difference"] = dict.fromkeys(results["noise"][0]["difference"], 0.0)
    rows = contrast_table(results, "contrasts").rows
    assert rows[0][5] == "a repeat gave the same bits"


def test_a_report_is_written_without_torch_and_to_the_same_bytes(study: Path) -> None:
    before = {file: file.read_bytes() for kind in ("*.html", "tables/*", "figures/*") for file in study.glob(kind)}
    code = (
        "import sys; from pathlib import Path; from depthroute.cli.report import report; "
        "report(Path(sys.argv[1])); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, str(study)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {file: file.read_bytes() for file in before} == before
