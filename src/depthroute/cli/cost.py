"""`depthroute cost`: what a model costs, and what its depth reads add."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthroute.cli.options import Json

if TYPE_CHECKING:
    from depthroute.data import BpeTokenizer, FileTokenizer
    from depthroute.model.transformer import ModelConfig

SIZE, LENGTH, PRECISION, STAGES = "lr-0.5b", 2048, "bf16", 4
BYTES = {"bf16": 2, "fp32": 4}


def cost(
    models: Annotated[
        list[str], typer.Argument(metavar="CONFIG|PRESET...", help="YAML files of runs, or names of presets.")
    ],
    size: Annotated[
        str | None, typer.Option(help="Of a preset: tiny, small, rd-s, rd-m or lr-0.5b.", show_default=SIZE)
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sequence.", show_default="a config's own, else 2048")
    ] = None,
    vocab: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the vocabulary, where the model names none.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of activations: bf16 or fp32.", show_default="a config's own, else bf16")
    ] = None,
    stages: Annotated[
        int | None,
        typer.Option(min=1, help="Of a pipeline, for what is sent between them.", show_default="4, or all layers"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count parameters, FLOPs, bytes and memory of models, the depth reads apart. Several give one table."""
    from depthroute.errors import ConfigError
    from depthroute.model.cost import cost as counted
    from depthroute.schema import nearest

    if precision not in (None, *BYTES):
        raise ConfigError(f"--precision: '{precision}' is unknown {nearest(precision, list(BYTES))}")
    found: dict[str, dict[str, Any]] = {}
    for name in models:
        config, own_length, own_precision = described(name, size, vocab)
        element, cut = BYTES[precision or own_precision], stages or min(STAGES, config.layers)
        found[name] = counted(config, length or own_length, element=element, stages=cut).plain()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    show(found)


def described(name: str, size: str | None, vocab: int | None) -> "tuple[ModelConfig, int, str]":
    """The model that an argument names, with a vocabulary, the length of its sequences and its precision."""
    from depthroute.config import load
    from depthroute.errors import ConfigError
    from depthroute.model.transformer import ModelConfig
    from depthroute.presets import PRESETS, expand_model
    from depthroute.schema import nearest

    if name.endswith((".yaml", ".yml")) or Path(name).is_file():
        if size is not None:
            raise ConfigError(f"--size goes with a preset; {name} says its own size")
        run = load(Path(name))
        model, length, precision, tokenizer = run.model, run.length, run.precision, run.data.tokenizer
    elif name in PRESETS:
        model = ModelConfig.parse(expand_model({"size": size or SIZE, "residual": name}), "model")
        length, precision, tokenizer = LENGTH, PRECISION, None
    else:
        raise ConfigError(f"'{name}' is no file and no preset {nearest(name, list(PRESETS))}")
    if model.vocab is not None and vocab is not None:
        raise ConfigError(f"--vocab: {name} has its own vocabulary of {model.vocab}; take --vocab away")
    known = model.vocab or vocab or vocabulary(tokenizer)
    if known is None:
        raise ConfigError(f"--vocab: size '{size}' names no vocabulary; say how large, such as --vocab 1024")
    return model.model_copy(update={"vocab": known}), length, precision


def vocabulary(tokenizer: "str | BpeTokenizer | FileTokenizer | None") -> int | None:
    """Tokens of the vocabulary that a tokenizer's config stands for; None without one."""
    from depthroute.data import BpeTokenizer
    from depthroute.data.tokenizer import make

    if tokenizer is None or isinstance(tokenizer, BpeTokenizer):
        return tokenizer and tokenizer.bpe
    return make(tokenizer, iter(())).vocab


def show(found: Mapping[str, Mapping[str, Any]]) -> None:
    """One table: of a few models every quantity, a model a column; of many the main ones, a model a row."""
    from depthroute.study.table import columns

    first = next(iter(found.values()))
    lengths, bytes_, stages = (joined(one[key] for one in found.values()) for key in ("length", "element", "stages"))
    typer.echo(f"a token of {lengths} in a causal sequence; coordinates of {bytes_} bytes; {stages} pipeline stages")
    if len(found) > 3:
        rows = {name: summary(one) for name, one in found.items()}
        lines = [["", *summary(first)], *([name, *row.values()] for name, row in rows.items())]
    else:
        rows = {name: quantities(one) for name, one in found.items()}
        labels = dict.fromkeys(label for row in rows.values() for label in row)
        lines = [["", *rows], *([label, *(row.get(label, "-") for row in rows.values())] for label in labels)]
    for line in columns(lines):
        typer.echo(line)


def joined(numbers: Iterable[int]) -> str:
    """The number of all models; where they differ, those of each in turn."""
    each = [f"{number:,}" for number in numbers]
    return each[0] if len(set(each)) == 1 else " / ".join(each)


def summary(one: Mapping[str, Any]) -> dict[str, str]:
    return {
        "parameters": f"{one['parameters']['total']:,}",
        "added %": f"{one['added_percent']:.4f}",
        "of all %": f"{one['added_percent_of_all']:.4f}",
        "read": f"{one['read_bytes']['direct']:,}",
        "two-phase": f"{one['read_bytes']['two_phase']:,}",
        "live": f"{one['source_bytes']:,}",
        "kept": f"{one['kept_bytes']['total']:,}",
        "sent": f"{one['sent_bytes']['extra']:,}",
    }


def quantities(one: Mapping[str, Any]) -> dict[str, str]:
    flops, kept = one["flops"], one["kept_bytes"]
    rows = {f"parameters, {part}": f"{number:,}" for part, number in one["parameters"].items() if number}
    rows |= {f"FLOPs, {part.replace('_', ' ')}": f"{number:,}" for part, number in flops.items()}
    rows |= {
        f"FLOPs, reads of route {route}": f"{cost['score'] + cost['mix']:,}" for route, cost in one["routes"].items()
    }
    return rows | {
        "added FLOPs, papers' convention": f"{one['added_percent']:.4f} %",
        "added FLOPs, attention and head too": f"{one['added_percent_of_all']:.4f} %",
        "bytes moved by reads, direct": f"{one['read_bytes']['direct']:,}",
        "bytes moved by reads, two-phase": f"{one['read_bytes']['two_phase']:,}",
        "bytes of live sources": f"{one['source_bytes']:,}",
        "bytes kept for backward": f"{kept['total']:,}",
        "  of which sources and mixtures": f"{kept['depth']:,}",
        "bytes sent between stages, extra": f"{one['sent_bytes']['extra']:,}",
    }
