"""`depthroute export`: a run for other libraries, and back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from depthroute.cli.options import place

if TYPE_CHECKING:
    from depthroute.interop.card import Origin


def export(
    source: Annotated[Path, typer.Argument(help="Run directory, or with --to run a Hugging Face directory.")],
    target: Annotated[Path, typer.Argument(parser=place, metavar="DIR", help="Directory to write; it must be new.")],
    to: Annotated[Literal["hf", "run"], typer.Option("--to", help="hf: for Hugging Face. run: back to a run.")],
) -> None:
    """Write a finished run as a Hugging Face directory with its tokenizer and a model card, or such a one as a run."""
    from depthroute import runs
    from depthroute.errors import RunError

    if to == "hf":
        runs.check_run(source)  # what is no run is found before everything is imported
        from depthroute.interop.export import to_hf

        quiet()
        to_hf(source, target, origin(source))
        typer.echo(f"{target}: a Hugging Face model with its tokenizer; README.md says how to load it")
        return
    if not source.is_dir():
        raise RunError(f"{source}: no such directory")
    from depthroute.interop.export import to_run

    quiet()
    same = to_run(source, target)
    what = "the run that was exported" if same else "an imported model: its weights are of no run that is recorded here"
    typer.echo(f"{target}: {what}")


def quiet() -> None:
    """What transformers says beside our own lines is not for a person at the terminal."""
    from transformers import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def origin(run: Path) -> "Origin | None":
    """The study whose directory holds the run; None where there is none."""
    from depthroute.interop.card import Origin
    from depthroute.study import seal
    from depthroute.study.table import amendment_lines

    whole = run.resolve()
    study = next((parent for parent in whole.parents if (parent / seal.PREREG).is_file()), None)
    if study is None:
        return None
    plan, verdicts = seal.read_plan(study), []
    *arm, seed = whole.relative_to(study).parts[1:]
    if (study / seal.RESULTS).is_file():
        results, _ = seal.read_results(study)
        verdicts = [one["words"] for one in results["contrasts"] if arm[0] in (one["arm"], one["against"])]
        verdicts += amendment_lines(results)
    return Origin(plan["question"], " ".join(arm), seed, plan["date"], plan["digest"], verdicts)
