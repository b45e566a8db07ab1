"""Heat maps of depth weights as SVG: a site a row, a source a column, its names and numbers under the pointer.

Drawn by hand and not by matplotlib: every cell carries a `<title>`, which any browser shows on hover without a script.
"""

from collections.abc import Mapping, Sequence
from html import escape

from depthroute.report.figures import WIDTH, Figure

LABELS, ROW, FOOT, LETTER = 76, 13, 48, 5.4
SCALE = (0.01, 0.05, 0.25, 1.0)


def heat_map(
    name: str,
    title: str,
    note: str,
    sites: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[tuple[int, int], tuple[float, str]],
) -> Figure:
    """`cells` hold, by row and column, a share between 0 (paper) and 1 (full colour) and the words of the hover.

    Colour grows with the square root: of many sources, each has a small share, and is to be seen.
    """
    across = (WIDTH - LABELS - 4) / len(columns)
    height = ROW * len(sites) + FOOT
    parts = [
        f'<text x="{LABELS - 6}" y="{ROW * row + 10}" text-anchor="end" font-size="9.5">{escape(site)}</text>'
        for row, site in enumerate(sites)
    ]
    for (row, column), (share, words) in cells.items():
        place = f'x="{LABELS + across * column:.2f}" y="{ROW * row}" width="{across:.2f}" height="{ROW}"'
        parts.append(f"<rect {place} {paint(share)}><title>{escape(words)}</title></rect>")
    # Only as many names under the columns as there is room for.
    every = max(1, -(-max(len(column) for column in columns) * LETTER // across))
    for column, label in enumerate(columns):
        if column % every == 0:
            at = LABELS + across * (column + 0.5)
            below = ROW * len(sites) + 12
            parts.append(f'<text x="{at:.2f}" y="{below}" text-anchor="middle" font-size="9.5">{escape(label)}</text>')
    frame = f'<rect x="{LABELS}" y="0" width="{WIDTH - LABELS - 4}" height="{ROW * len(sites)}" fill="none"'
    parts.append(f'{frame} stroke="var(--rule, #d5dae1)" pointer-events="none"/>')
    under = f"{LABELS + (WIDTH - LABELS) / 2:.0f}"
    axis = f'<text x="{under}" y="{height - 23}" text-anchor="middle" font-size="9.5">source</text>'
    for number, share in enumerate(SCALE):
        at, below = LABELS + 60 * number, height - 12
        parts.append(
            f'<rect x="{at}" y="{below}" width="14" height="10" stroke="var(--rule, #d5dae1)" {paint(share)}/>'
        )
        parts.append(f'<text x="{at + 18}" y="{below + 9}" font-size="9.5">{share:g}</text>')
    said = f'<title id="{name}-title">{escape(title)}</title>'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="{name}-title" fill="var(--muted, #6b7280)" '
        f"font-family=\"var(--sans, 'DejaVu Sans', sans-serif)\">{said}{''.join(parts)}{axis}</svg>"
    )
    return Figure(name, title, note, svg)


def paint(share: float) -> str:
    return f'fill="var(--series-1, #0072b2)" fill-opacity="{share**0.5:.3f}"'
