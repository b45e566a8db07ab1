"""The report in a real browser: nothing in the console, every figure drawn, no text cut off, on a phone and a desk."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import CHROMIUM, Tab, browser
from reports import write as write_reported

from depthroute.report.page import read, write

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no `chromium` on this machine (Debian's package)")

# Figures and their parts without extent, and figures smaller than a reader can use.
UNDRAWN = """
[...document.querySelectorAll("figure svg")].flatMap(svg => {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll("path, use, text")].filter(mark => {
    const at = mark.getBoundingClientRect();
    return at.width + at.height > 0;
  });
  return box.width > 250 && box.height > 90 && marks.length > 20 ? [] : [svg.getAttribute("aria-labelledby")];
})
"""
# Text that ends outside of the window, or that its own box or figure cuts off; what scrolls by itself may be longer.
CLIPPED = """
(() => {
  const wide = document.documentElement.clientWidth, found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || parent.closest("title, desc, thead")) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const frame = parent.closest("svg, .scroll");
    const scrolls = frame && frame.matches(".scroll") && getComputedStyle(frame).overflowX === "auto";
    const bounds = frame && !scrolls ? frame.getBoundingClientRect() : {left: 0, right: wide};
    for (const box of range.getClientRects()) {
      const out = box.left < bounds.left - 1 || box.right > bounds.right + 1;
      if (out && !scrolls) found.push(`${text} ${box.left}..${box.right} of ${bounds.left}..${bounds.right}`);
    }
  }
  for (const box of document.querySelectorAll("body *")) {
    const style = getComputedStyle(box);
    const hides = style.overflowX !== "visible" && style.overflowX !== "auto" && !box.closest("svg, thead");
    if (hides && box.scrollWidth > box.clientWidth + 1) found.push(box.outerHTML.slice(0, 80));
  }
  return found;
})()
"""
# Labels of a figure that lie over one another.
OVERLAPPING = """
[...document.querySelectorAll("figure svg")].flatMap(svg => {
  const texts = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
  const shared = (a, b, from, to) => Math.min(a[to], b[to]) - Math.max(a[from], b[from]);
  return texts.flatMap(([one, a], i) => texts.slice(i + 1).filter(([, b]) =>
    shared(a, b, "left", "right") > 1.5 && shared(a, b, "top", "bottom") > 4
  ).map(([other]) => `${svg.getAttribute("aria-labelledby")}: ${one} / ${other}`));
})
"""
SMALLEST_TEXT = """
Math.min(...[...document.querySelectorAll("figure svg text")].map(text => {
  const scale = text.closest("svg").getBoundingClientRect().width / text.closest("svg").viewBox.baseVal.width;
  return parseFloat(getComputedStyle(text).fontSize) * scale;
}))
"""
COLOURS = """
["body", "h1", "figure svg text"].map(name => getComputedStyle(document.querySelector(name)))
  .map((style, index) => [style.backgroundColor, style.color, style.fill][index])
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_reported(tmp_path_factory.mktemp("browser") / "study")
    results, fixed = read(directory)
    return write(results, fixed, directory)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_whole_at_every_width_and_in_both_schemes(page: Path, tab: Tab, width: int, dark: bool) -> None:
    tab.complaints.clear()
    tab.requests.clear()
    tab.open(page, width, dark=dark)
    assert tab.evaluate("document.querySelectorAll('figure svg').length") >= 8
    assert tab.evaluate(UNDRAWN) == []
    assert tab.evaluate(CLIPPED) == []
    assert tab.evaluate(OVERLAPPING) == []
    assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert tab.evaluate(SMALLEST_TEXT) >= 9
    assert tab.complaints == []
    assert tab.requests == [page.as_uri()]


def test_dark_and_light_turn_text_and_figures_round(page: Path, tab: Tab) -> None:
    def brightness(colour: str) -> float:
        return sum(map(float, colour[colour.index("(") + 1 : -1].split(",")[:3])) / 3

    seen = {}
    for dark in (False, True):
        tab.open(page, 1400, dark=dark)
        seen[dark] = [brightness(colour) for colour in tab.evaluate(COLOURS)]
    ground, *inks = seen[False]
    assert all(ground - ink > 100 for ink in inks)
    ground, *inks = seen[True]
    assert all(ink - ground > 100 for ink in inks)


def test_the_checks_of_this_file_find_what_they_look_for(page: Path, tab: Tab, tmp_path: Path) -> None:
    """A page that is broken on purpose: an empty figure, a line that does not wrap, a script that fails."""
    broken = tmp_path / "broken.html"
    text = page.read_text().replace("</h1>", "</h1><p style='white-space:nowrap'>" + "far " * 300 + "</p>", 1)
    head, tail = text.split("<figure", 1)
    broken.write_text(f"{head}<figure><svg viewBox='0 0 9 9'></svg></figure><figure{tail}<script>no()</script>")
    tab.complaints.clear()
    tab.open(broken, 400)
    assert len(tab.evaluate(UNDRAWN)) == 1
    assert any(found.startswith("far far") for found in tab.evaluate(CLIPPED))
    assert tab.complaints
    tab.complaints.clear()


def test_paper_shows_the_whole_page_on_white_whatever_the_screen_prefers(page: Path, tab: Tab) -> None:
    tab.open(page, 1400, dark=True)
    assert tab.pdf().startswith(b"%PDF")
    tab.call("Emulation.setDeviceMetricsOverride", width=690, height=980, deviceScaleFactor=1, mobile=False)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    tab.call("Emulation.setEmulatedMedia", media="print", features=[scheme])
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(17, 24, 39)"
    assert tab.evaluate(UNDRAWN) == []
