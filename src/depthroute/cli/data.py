"""`depthroute data`: encode a corpus, and list what is encoded."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from depthroute.cli.options import DataRoot, Json

if TYPE_CHECKING:
    from depthroute.data import DataConfig, Index

app = typer.Typer(help="Build data sets and list them.", no_args_is_help=True)


@app.command()
def build(
    config: Annotated[
        str, typer.Argument(help="YAML file of a run, or the name of a corpus: python-docs or python-source.")
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file, such as data.tokenizer.bpe=512."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="With a corpus name: byte, bpe:VOCABULARY or a tokenizer.json.", show_default="bpe:1024"),
    ] = None,
    data: DataRoot = Path("data"),
    as_json: Json = False,
) -> None:
    """Encode a corpus into token shards; at once where that has been done."""
    from depthroute.data import Dataset, build
    from depthroute.train.progress import TrainingProgress

    wanted = described(config, sets or [], tokenizer)
    with TrainingProgress(shown=True) as progress:
        directory = build(wanted, data, progress.building)
    show({directory: Dataset.open(directory).index}, as_json)


@app.command("list")
def list_built(data: DataRoot = Path("data"), as_json: Json = False) -> None:
    """List what is built. Only indexes are read: what uses a data set verifies its files."""
    from depthroute.data import INDEX, Index, read_index
    from depthroute.errors import DataError

    if not data.is_dir():
        raise DataError(f"{data}: no such directory: build something first, or name another one with --data")
    indexes: dict[Path, Index] = {}
    damaged: list[DataError] = []
    for path in sorted(data.glob(f"[!.]*/{INDEX}")):
        try:
            indexes[path.parent] = read_index(path.parent)
        except DataError as error:
            damaged.append(error)
    show(indexes, as_json)
    if damaged:
        raise damaged[0]


def described(config: str, sets: list[str], tokenizer: str | None) -> "DataConfig":
    """The data that the arguments of `build` ask for."""
    from depthroute.data import DataConfig
    from depthroute.errors import ConfigError

    if config.endswith((".yaml", ".yml")) or Path(config).is_file():
        if tokenizer is not None:
            raise ConfigError("--tokenizer goes with a corpus name; with a file use --set data.tokenizer=...")
        from depthroute.config import apply_set, read_yaml

        raw = read_yaml(Path(config))
        for setting in sets:
            raw = apply_set(raw, setting)
        if not isinstance(raw.get("data"), dict):
            raise ConfigError(f"{config}: has no `data:` section; the default is built by its name, python-docs")
        return DataConfig.parse(raw["data"], "data")
    if sets:
        raise ConfigError("--set goes with a file; with a corpus name use --tokenizer")
    return DataConfig.parse({"corpus": config, "tokenizer": tokenizer_of(tokenizer or "bpe:1024")})


def tokenizer_of(word: str) -> object:
    """`byte`, `bpe:VOCABULARY` or a path as a config writes it."""
    from depthroute.errors import ConfigError

    if word == "byte":
        return word
    kind, colon, vocabulary = word.partition(":")
    if kind != "bpe" or not colon:
        return {"file": word}
    if not vocabulary.isdecimal():
        raise ConfigError(f"--tokenizer {word}: write bpe:VOCABULARY with a whole number, such as bpe:1024")
    return {"bpe": int(vocabulary)}


def show(indexes: "dict[Path, Index]", as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "directory": str(directory),
                "vocab": index.tokenizer.vocab,
                "tokenizer_digest": index.tokenizer.digest,
                "parts": {
                    name: part.model_dump(include={"tokens", "bytes", "documents", "dropped"})
                    for name, part in index.parts.items()
                },
            }
            for directory, index in indexes.items()
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    # The directory stands outside the table, which would shorten it to fit the screen.
    for directory, index in indexes.items():
        typer.echo(directory)
        table = Table("part", "tokens", "bytes", "documents", "dropped")
        for name, part in index.parts.items():
            dropped = ", ".join(f"{count} {why}" for why, count in part.dropped.items() if count)
            table.add_row(name, f"{part.tokens:,}", f"{part.bytes:,}", f"{part.documents:,}", dropped)
        Console().print(table)
