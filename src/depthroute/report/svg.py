"""From matplotlib's SVG to one that is small, says what it shows, and takes its colours from the page around it."""

import re
from html import escape

COLOURS = {
    "#111827": "ink",
    "#6b7280": "muted",
    "#d5dae1": "rule",
    "#e6ebf2": "shade",
    "#0072b2": "series-1",
    "#c84e00": "series-2",
    "#00805d": "series-3",
    "#b0518a": "series-4",
    "#a87400": "series-5",
    "#2e91c9": "series-6",
    "#7a5cc0": "series-7",
}
"""Each colour that a figure may use, and the CSS variable that the page gives it in light and in dark."""
INK, MUTED, RULE, SHADE, *SERIES = COLOURS
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
TAG, NUMBER, COLOUR = re.compile(r"<[^>]+>"), re.compile(r"-?\d+\.\d{3,}"), re.compile("|".join(COLOURS))
POINTER = re.compile(r"(href=\"#|url\(#)([^\")]+)")


def finished(raw: str, name: str, title: str, description: str) -> str:
    """One `<svg>` element for a page. `name` is unlike that of any other figure there."""
    box = re.findall(r'viewBox="[^"]*"', raw)[0]
    body = raw[raw.index(">", raw.index("<svg")) + 1 :]
    body = re.sub(r"<(metadata|style)\b.*?</\1>", "", body, flags=re.DOTALL)
    used = {found for _, found in POINTER.findall(body)}
    body = TAG.sub(lambda tag: _compact(tag[0], name, used), body)
    said = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    attributes = f'{box} stroke-linejoin="round" role="img" aria-labelledby="{name}-title {name}-desc"'
    whole = f'<svg xmlns="{SVG}" xmlns:xlink="{XLINK}" {attributes}>{said}{body}'
    return re.sub(r"\n\s*", "\n", whole).strip()


def standalone(svg: str) -> str:
    """The same figure as a file of its own, for programs that know no CSS variables."""
    plain = re.sub(r"var\(--[a-z0-9-]+, ([^)]*)\)", r"\1", svg)
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', plain)[0]
    sized = plain.replace("<svg ", f'<svg width="{width}" height="{height}" ', 1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{sized}\n'


def _compact(tag: str, name: str, used: set[str]) -> str:
    """A tag with what it says and nothing else. Text between tags, such as the number at a tick, stays as it is."""
    tag = NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), tag)
    # Only ids that something points to stay, and no two figures of a page share one.
    tag = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", tag)
    tag = POINTER.sub(lambda found: f"{found[1]}{name}-{found[2]}", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", tag)
    tag = re.sub(r' d="([^"]*)"', lambda path: f' d="{" ".join(path[1].split())}"', tag)
    tag = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans, 'DejaVu Sans', sans-serif)", tag)
    return COLOUR.sub(lambda colour: f"var(--{COLOURS[colour[0]]}, {colour[0]})", tag)
