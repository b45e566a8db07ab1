"""`depthroute generate`: a trained model goes on with a text."""

import json
from pathlib import Path
from typing import Annotated

import typer

from depthroute.cli.options import Json


def generate(
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    prompt: Annotated[
        str | None, typer.Option(help="Text to go on from.", show_default="standard input, every byte of it")
    ] = None,
    tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Stop after so many tokens.")] = 200,
    temperature: Annotated[
        float, typer.Option(help="0 takes the likeliest token; 1 samples as the model predicts.")
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Choose among so many likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Choose among the likeliest tokens of this probability together.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling; the same seed writes the same text.")] = 0,
    as_json: Json = False,
) -> None:
    """Continue a text. Each token is printed as soon as it is chosen; the end-of-text token stops."""
    import sys
    import time

    from depthroute import runs
    from depthroute.errors import ArgumentError

    runs.check_run(run)  # what is no run is found before torch is imported
    given = prompt
    if given is None:
        if sys.stdin.isatty():
            raise ArgumentError("prompt: none given; use --prompt TEXT, or pipe a text into this command")
        try:
            given = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError:
            raise ArgumentError("prompt: standard input is not UTF-8 text") from None
    try:
        given.encode("utf-8")
    except UnicodeEncodeError:  # a byte of the command line that was none
        raise ArgumentError("prompt: is not UTF-8 text") from None
    if not given:
        raise ArgumentError("prompt: it is empty; give some text to go on from")

    import torch

    from depthroute.model.generate import Sampling
    from depthroute.model.generate import generate as continuation
    from depthroute.train.trained import configuration_of, load

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, tokenizer = load(run, device)
    ids = torch.tensor(tokenizer.encode(given), dtype=torch.long)
    chosen: list[int] = []
    ended = False

    def until_end():
        nonlocal ended
        sampling = Sampling(temperature, top_k, top_p, seed)
        for token in continuation(model, ids, tokens, sampling, tokenizer.vocab):
            if token == tokenizer.end:
                ended = True
                return
            chosen.append(token)
            yield token

    began = time.perf_counter()
    pieces: list[str] = []
    for piece in tokenizer.stream(ids.tolist(), until_end()):
        pieces.append(piece)
        if not as_json:
            sys.stdout.write(piece)
            sys.stdout.flush()
    rate = len(chosen) / (time.perf_counter() - began)
    stopped = "end of text" if ended else "max tokens"
    if as_json:
        found = {"prompt": given, "text": "".join(pieces), "tokens": len(chosen), "stopped": stopped}
        typer.echo(json.dumps(found | {"tokens_per_second": rate}, indent=2))
        return
    typer.echo()
    trained, note = configuration_of(run), ""
    if trained is not None and len(ids) + len(chosen) > trained.length:
        note = f"; it was trained on windows of {trained.length} tokens, what goes beyond is a guess"
    typer.echo(f"{len(chosen)} tokens, {rate:,.0f} a second, until {stopped}{note}", err=True)
