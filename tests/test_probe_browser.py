"""The page of `inspect` in a real browser: whole, and every cell says its site, source and value."""

from pathlib import Path

import pytest
from chromium import CHROMIUM, browser
from networks import attnres, moved, tokens

from depthroute.probe import trace
from depthroute.probe.gradients import gradient_norms
from depthroute.probe.subject import Tokens
from depthroute.report import depth

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no `chromium` on this machine (Debian's package)")
ARMS = {"rd": attnres({"blocks": 3}, "value", "qk_v"), "full": attnres("full"), "prenorm": {"name": "additive"}}

HOVERS = """[...document.querySelectorAll("figure rect > title")].map(title => title.textContent)"""
# Cells that have an area, and whose title is the one that a pointer over their middle finds.
POINTED = """
[...document.querySelectorAll("figure rect > title")].filter(title => {
  const cell = title.parentElement;
  cell.scrollIntoView({block: "center"});
  const box = cell.getBoundingClientRect();
  const found = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  return box.width > 4 && box.height > 8 && found === cell;
}).length
"""
BESIDE = """
[...document.querySelectorAll("#maps .figures")].map(row =>
  [...row.querySelectorAll("figure")].map(figure => Math.round(figure.getBoundingClientRect().top)))
"""
SMALLEST_TEXT = """
Math.min(...[...document.querySelectorAll("figure svg text")].map(text => {
  const svg = text.closest("svg"), scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return parseFloat(getComputedStyle(text).fontSize) * scale;
}))
"""


def run(name, seed):
    model = moved(ARMS[name], seed)
    targets = tokens().roll(-1, 1)
    found = trace(model, tokens())
    gradients = gradient_norms(model, [Tokens(tokens(), targets, targets * 0)], lambda done: None)
    return {
        "run": f"runs/{name}/{seed}",
        "text": "validation",
        "nll": 3.0 + seed / 100,
        "final": {"validation": 3.0 + seed / 100},
        "added_percent": 0.1 * len(name),
        "summary": found.summary,
        "tables": {**found.tables, "gradients": gradients},
    }


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    groups = [{"label": name, "runs": [run(name, seed) for seed in (1, 2, 3)]} for name in ARMS]
    return depth.write({"groups": groups}, tmp_path_factory.mktemp("page"), "Depth reads of <a> & study")


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    groups = [{"label": f"rd {seed}", "runs": [run("rd", seed)]} for seed in (1, 2)]
    return depth.write({"groups": groups}, tmp_path_factory.mktemp("two"), "Two runs")


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_is_whole_and_asks_for_nothing(study, tab, width):
    tab.complaints.clear()
    tab.requests.clear()
    tab.open(study, width)
    assert tab.evaluate("document.querySelector('h1').textContent") == "Depth reads of <a> & study"
    assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert tab.evaluate(
        "[...document.querySelectorAll('figure svg')].every(s => s.getBoundingClientRect().height > 45)"
    )
    assert tab.evaluate(SMALLEST_TEXT) >= 9
    assert "prenorm: its residual exposes no depth weights" in tab.evaluate("document.body.innerText")
    assert tab.complaints == []
    assert tab.requests == [study.as_uri()]


def test_a_pointer_over_a_cell_finds_its_site_its_source_and_its_value(study, tab):
    tab.open(study, 1400)
    hovers = tab.evaluate(HOVERS)
    # rd reads 2 + 2 + 3 + 3 + 4 + 4 sources (twice at attention sites 2 and 4), full 2 + ... + 7.
    assert len(hovers) == (2 + 2 * 2 + 3 + 2 * 3 + 4 + 4) + 27
    assert any(words.startswith("attention 1, block 1: 0.") and "over 3 runs" in words for words in hovers)
    assert any(words.startswith("readout, mlp 2: 0.") for words in hovers)
    assert any(words.startswith("mlp 0, live sum: 0.") for words in hovers)
    assert tab.evaluate(POINTED) == len(hovers)


def test_two_runs_stand_side_by_side(two, tab):
    tab.open(two, 1400)
    rows = tab.evaluate(BESIDE)
    assert len(rows) == 3
    assert all(len(tops) == 2 and tops[0] == tops[1] for tops in rows)
    assert any("5 to 95 % of tokens" in words for words in tab.evaluate(HOVERS))


def test_error_bars_are_the_t_interval_over_seeds_and_a_run_alone_has_none():
    assert depth.over_runs([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.4841377), abs=1e-6)
    assert depth.over_runs([1.0]) == (1.0, 0.0)


def test_a_live_sum_stands_in_the_column_of_its_block():
    sources = ("embedding", "block 1", "live sum", "attention 3", "mlp 4")
    assert [depth.short(source, column) for column, source in enumerate(sources)] == ["e", "1", "2", "a3", "m4"]
