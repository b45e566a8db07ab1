"""The report of a study: report.html, one file that needs no network, with tables/ and figures/ beside it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from depthroute.report import figures, tables, written
from depthroute.report.figures import Figure
from depthroute.report.svg import COLOURS, standalone
from depthroute.report.tables import NONE, Table, minus, ordered
from depthroute.study.gaps import noise_floor
from depthroute.study.seal import read_results, write_file
from depthroute.study.table import amendment_lines, held_out_names, level_sets, repeat_words, tuning_warnings, when
from depthroute.study.verdict import at_levels, judged

PAGE = "report.html"
SYMBOLS = {
    "lower": "↓",
    "higher": "↑",
    "equivalent": "=",
    "undecided": "?",
    "described": "·",
    "identical": "≡",
    "incomplete": "…",
}
MIXED = ("device", "precision", "threads", "deterministic", "versions")
"""What should be the same for every run; `impl` may be crossed on purpose."""

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Section:
    """What is about one held-out set at one combination of levels."""

    title: str
    contrasts: list[Entry]
    seen: list[Figure]
    """Paired dots and curves."""
    gaps: list[Figure]


def read(directory: Path, include_flagged: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """results.json, judged with or without the flagged runs, and prereg.json of a study directory."""
    results, plan = read_results(directory)
    return judged(results, include_flagged), plan


def write(results: Entry, plan: Entry, directory: Path) -> Path:
    """Write the page, its tables and its figures into the study directory. Returns the path of the page."""
    named = Names()
    sections = list(sections_of(results, named))
    seeds = list(tables.seed_tables(results, named.numbered("seeds")))
    summaries = [
        tables.contrast_table(results, "contrasts"),
        tables.strength_table(results, "strength"),
        tables.equal_table(results, "equal-budgets"),
        tables.crossing_table(results, "crossings"),
        tables.parity_table(results, "parity"),
    ]
    summaries = [table for table in summaries if table.rows]
    noise, tuning = tables.noise_table(results, "noise"), tables.tuning_table(results, "tuning")
    html = render(results, plan, sections, summaries, seeds, noise, tuning)
    drawn = [figure for section in sections for figure in (*section.seen, *section.gaps)]
    files = {f"figures/{figure.name}.svg": standalone(figure.svg) for figure in drawn}
    files |= {f"tables/{name}": text for name, text in tables.data_files(results).items()}
    files |= {f"tables/{table.name}.tex": table.latex() for table in (*summaries, *seeds, noise, tuning) if table.rows}
    written.replace(directory, {name: text.encode() for name, text in files.items()})
    write_file(directory / PAGE, html.encode())
    return directory / PAGE


def render(
    results: Entry,
    plan: Entry,
    sections: Sequence[Section],
    summaries: Sequence[Table],
    seeds: Sequence[Table],
    noise: Table,
    tuning: Table,
) -> str:
    environment = Environment(
        loader=PackageLoader("depthroute.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["minus"] = minus
    return environment.get_template("report.html.j2").render(
        results=results,
        plan=plan,
        facts=facts(results),
        symbols=SYMBOLS,
        warnings=list(warnings(results)),
        summaries=summaries,
        seeds=seeds,
        noise=noise,
        tuning=tuning,
        sections=sections,
        provenance=provenance(results, plan),
        when=when,
        power=results["power"]["words"],
        colours=list(COLOURS.items()),
        svg=Markup,
        absent=NONE,
    )


def sections_of(results: Entry, named: "Names") -> Iterator[Section]:
    """Contrasts and figures by held-out set: paired dots, curves, and each contrast's gap along training."""
    for levels in level_sets(results):
        for held_out in held_out_names(results, levels):
            where = (held_out, *levels.values())
            found = [c for c in ordered(results) if (c["levels"], c["held_out"]) == (levels, held_out)]
            seen = [
                figures.paired_dots(results, levels, held_out, named("paired", *where)),
                figures.curves(results, levels, held_out, named("curves", *where)),
                figures.costs(results, levels, held_out, named("flops", *where)),
            ]
            gaps = [figures.gaps(results, c, named("gap", c["arm"], c["against"], *where)) for c in found]
            yield Section(f"{held_out}{at_levels(levels)}", found, list(filter(None, seen)), list(filter(None, gaps)))


class Names:
    """File names and element ids made of words that may hold anything, each given once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def __call__(self, *words: str) -> str:
        plain = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-.") or "x" for word in words)
        name = next(name for n in count(1) if (name := plain if n == 1 else f"{plain}-{n}") not in self._given)
        self._given.add(name)
        return name

    def numbered(self, word: str) -> Iterator[str]:
        return (self(word, str(number)) for number in count(1))


def facts(results: Entry) -> list[str]:
    """The study in numbers."""
    counted = [run for run in results["runs"] if run["replicate"] == 0]
    held_out = {name for run in counted for name in run["held_out"]}
    found = [f"{len(results['arms'])} arms", f"{len(results['seeds'])} seeds"]
    found += [f"{len(levels)} levels of {factor}" for factor, levels in results["cross"].items()]
    found += [f"{len(held_out)} held-out sets" if len(held_out) > 1 else "1 held-out set", f"{len(counted)} runs"]
    tokens = {run["tokens"] for run in counted}
    return found + ([f"{min(tokens):,} tokens each"] if len(tokens) == 1 else [])


def warnings(results: Entry) -> Iterator[str]:
    """What a reader must know before relying on a verdict."""
    if results["missing"]:
        yield f"{counted(len(results['missing']), 'planned run')} not finished; the study is incomplete."
    if results["flagged"]:
        what = "counted here all the same" if results["include_flagged"] else "left out of every number"
        flagged = counted(len(results["flagged"]), "run")
        yield f"{flagged} flagged, for not being as the plan says, and {what}: see Provenance."
    for line in amendment_lines(results):
        yield sentence(line)
    pairs = len(results["seeds"])
    if 2 / 2**pairs > results["level"]:
        yield (
            f"With {pairs} pairs the exact sign-flip test cannot give a p below {2 / 2**pairs:.4g}, "
            f"so it can never reach {results['level']:g}."
        )
    weak = [contrast for contrast in results["contrasts"] if contrast["under_powered"]]
    if weak:
        yield (
            f"{counted(len(weak), 'contrast')} under-powered: a difference as large as the planned margin would be "
            "missed more often than 1 time in 5."
        )
    for contrast in results["contrasts"]:
        floor, summary = noise_floor(results["noise"], contrast), contrast["summary"]
        if floor and summary is not None and abs(summary["mean"]) < floor and contrast["primary"]:
            yield (
                f"The mean difference of {contrast['arm']} and {contrast['against']} on {contrast['held_out']} is "
                f"smaller than what repeating a run changes: {repeat_words(floor)}."
            )
    yield from (sentence(words) for words in tuning_warnings(results))
    for key in MIXED:
        if len(results["provenance"][key]) > 1:
            yield f"The runs differ in {key}: {', '.join(map(str, results['provenance'][key]))}."


def sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def provenance(results: Entry, plan: Entry) -> list[tuple[str, str]]:
    """Name and value of what the numbers rest on."""
    found = results["provenance"]
    hours = found["training_seconds"] / 3600
    rows = [
        ("plan", f"{plan['digest']}, fixed {plan['date']} UTC"),
        ("decision rule", plan["decision_rule"]),
        ("metric", plan["metric"]),
        ("training time", f"{hours:.1f} hours in all" if hours >= 1 else f"{hours * 60:.1f} minutes in all"),
        ("machine", f"{found['machine']['system']}, {found['machine']['cores']} cores"),
    ]
    for key in ("device", "precision", "threads", "deterministic", "impl", "data_digest", "tokenizer_digest"):
        rows.append((key.replace("_", " "), ", ".join(map(str, found[key])).lower() or "no run yet"))
    for versions in found["versions"]:
        rows.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    return rows


def counted(number: int, noun: str) -> str:
    return f"1 {noun} is" if number == 1 else f"{number} {noun}s are"
