"""`depthroute eval`: what a trained model, or every model of a study, is worth on other texts and tasks."""

import json
from pathlib import Path
from typing import Annotated

import typer

from depthroute.cli.options import Json


def evaluate(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, or a study's.", show_default=False)
    ],
    # A shell expands `--text *.txt` to one option and further arguments.
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE...", help="Texts: .txt, .md, .jsonl or .parquet; files with one NAME are one domain."
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK", help="A task of lm-evaluation-harness, or its YAML file; several with commas."),
    ] = None,
    field: Annotated[str, typer.Option(help="Of JSONL and Parquet: where the text stands.")] = "text",
    shots: Annotated[
        int | None, typer.Option(min=0, help="Examples in a task's prompt.", show_default="the task's own")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many documents of a task.", show_default="all")
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a window.", show_default="the training's")
    ] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a trained model on texts (NLL, bits a byte, perplexity) or tasks; of a study every run, and in pairs."""
    from depthroute.errors import ConfigError
    from depthroute.evaluation import study
    from depthroute.evaluation.trained import is_study, opened
    from depthroute.train.progress import TrainingProgress

    if more and not text:
        raise ConfigError(f"{more[0]}: what is it? texts follow --text, tasks follow --tasks")
    if bool(text) == bool(tasks):
        raise ConfigError("give --text FILE... or --tasks TASK, one of both")
    if tasks:
        from depthroute.evaluation.harness import Tasks

        evaluator = Tasks([name for word in tasks for name in word.split(",")], shots, limit)
    else:
        from depthroute.evaluation.text import Texts, domains

        if shots is not None or limit is not None:
            raise ConfigError("--shots and --limit go with --tasks")
        evaluator = Texts(domains([*(text or []), *(more or [])], field))
    with TrainingProgress(shown=True) as progress:
        if is_study(directory):
            found = study.evaluate(directory, evaluator, progress.evaluating, progress.message, length)
            lines = study.lines(found)
        else:
            with opened(directory, length) as trained:
                found = trained.conditions | evaluator.evaluate(trained, progress.evaluating)
            lines = evaluator.table(found)
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines))
