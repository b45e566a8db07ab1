"""The figures of a benchmark as lines for the eye."""

from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def text(found: Mapping[str, Rows]) -> str:
    return "\n\n".join(PARTS[name](rows) for name, rows in found.items() if rows)


def reads(rows: Rows) -> str:
    lines = [["case", "direction", "reader", "ms", "of copy", "x floor", "x faster than einsum", "saved MB"]]
    notes = []
    for row in rows:
        case = f"{row['width']} wide, {row['sources']} sources, {row['queries']} q, {row['dtype']}"
        if "absent" in row:
            notes.append(f"{row['reader']}: {row['absent']}")
            continue
        lines.append(
            [
                case,
                row["direction"],
                row["reader"],
                f"{row['milliseconds']:.2f}",
                f"{100 * row['of_copy_bandwidth']:.0f} %",
                interval(row["against_floor"]),
                interval(row["faster_than_einsum"]),
                f"{row['saved_bytes'] / 1e6:.2f}",
            ]
        )
    return "\n".join([columns(lines), *dict.fromkeys(notes)])


def blocks(rows: Rows) -> str:
    notes = [f"{row['reader']}: {row['absent']}" for row in rows if "absent" in row]
    lines = [["block", "direction", "reader", "schedule", "ms", "x floor", "x einsum", "x direct", "saved MB"]]
    for row in rows:
        if "absent" in row:
            continue
        lines.append(
            [
                f"{row['width']} wide, {row['sites']} sites over {row['sources']}, {row['dtype']}",
                row["direction"],
                row["reader"],
                row["schedule"],
                f"{row['milliseconds']:.2f}",
                interval(row["against_floor"]),
                interval(row["faster_than_einsum"]),
                interval(row["faster_than_direct"]),
                f"{row['saved_bytes'] / 1e6:.2f}",
            ]
        )
    return "\n".join([columns(lines), *dict.fromkeys(notes)])


def steps(rows: Rows) -> str:
    lines = [["preset", "impl", "reads", "ms", "time / prenorm", "saved / prenorm", "saved MB", "compile s"]]
    for row in rows:
        lines.append(
            [
                row["preset"],
                row["impl"],
                row["reads"],
                f"{row['milliseconds']:.0f}",
                interval(row["time_ratio"]),
                f"{row['saved_ratio']:.3f}",
                f"{row['saved_bytes'] / 1e6:.1f}",
                f"{row['compile_seconds']:.1f}",
            ]
        )
    return columns(lines)


def decoding(rows: Rows) -> str:
    ratios, growths = ["time / prenorm", "with key rows"], ["growth ms", "prenorm's", "attention's"]
    lines = [["preset", "impl", "after", "ms a token", *ratios, *growths]]
    for row in rows:
        lines.append(
            [
                row["preset"],
                row["impl"],
                str(row["context"]),
                f"{row['milliseconds']:.2f}",
                interval(row["time_ratio"]),
                "-" if row["reads_ratio"] == row["time_ratio"] else interval(row["reads_ratio"]),
                interval(row["growth_milliseconds"]),
                interval(row["prenorm_growth_milliseconds"]),
                interval(row["attention_growth_milliseconds"]),
            ]
        )
    return columns(lines)


PARTS = {"reads": reads, "blocks": blocks, "steps": steps, "decoding": decoding}


def interval(found: Sequence[float] | None) -> str:
    if found is None:
        return "-"
    value, low, high = found
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"


def columns(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
