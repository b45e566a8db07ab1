"""A run as a Hugging Face directory, and back.

    DIRECTORY/    config.json generation_config.json model.safetensors tokenizer files README.md (the model card)
    DIRECTORY/run/    config.yaml tokenizer.json manifest.json metrics.jsonl: the run's records, as they were

Back, a model whose weights are still those that the run's end recorded becomes that run again, without its checkpoints.
Any other model becomes a run that records nothing but its import.
"""

import json
import shutil
from importlib.metadata import version
from os import PathLike
from pathlib import Path

import torch
import transformers

from depthroute import runs
from depthroute.data import Tokenizer
from depthroute.errors import DepthrouteError, RunError
from depthroute.interop.card import Origin, card
from depthroute.interop.huggingface import DepthRouteForCausalLM
from depthroute.train.checkpoint import packed, weights
from depthroute.train.trained import load

RECORDS = (runs.CONFIG, runs.TOKENIZER, runs.MANIFEST, runs.METRICS)
KEPT = "run"


def to_hf(run: str | PathLike[str], directory: str | PathLike[str], origin: Origin | None = None) -> None:
    """Write a finished run as a Hugging Face directory. RunError if `directory` is there already."""
    run, directory = Path(run), Path(directory)
    check_free(directory)
    came_from = runs.manifest(run).get("imported")
    if came_from is not None:
        raise RunError(f"{run}: was imported from '{came_from}' and records no training; export that directory's run")
    model, tokenizer = load(run)
    wrapped = DepthRouteForCausalLM.of(model)
    wrapped.generation_config = transformers.GenerationConfig(
        eos_token_id=tokenizer.end, pad_token_id=tokenizer.end, do_sample=True
    )
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(run / runs.TOKENIZER),
        eos_token=tokenizer.end_token,
        pad_token=tokenizer.end_token,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
    aside = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        wrapped.save_pretrained(aside)
        theirs.save_pretrained(aside)
        (aside / "README.md").write_text(card(run, origin), encoding="utf-8")
        (aside / KEPT).mkdir()
        for name in RECORDS:
            shutil.copyfile(run / name, aside / KEPT / name)
        aside.rename(directory)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def to_run(directory: str | PathLike[str], run: str | PathLike[str]) -> bool:
    """Write a Hugging Face directory of ours as a run; whether it is the very run that was exported."""
    directory, run = Path(directory), Path(run)
    check_free(run)
    model = read(directory).model
    files = {
        "model.safetensors": packed(weights(model)),
        "config.json": json.dumps(model.config.model_dump(mode="json"), indent=2).encode() + b"\n",
    }
    aside = run.with_name(f".{run.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        runs.write_directory(aside / runs.MODEL, files)
        same = restore(directory / KEPT, aside)
        if not same:
            record_import(directory, aside, model)
        aside.rename(run)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return same


def read(directory: Path) -> DepthRouteForCausalLM:
    try:
        kind = json.loads((directory / "config.json").read_bytes())["model_type"]
    except (FileNotFoundError, NotADirectoryError):
        if (directory / runs.MANIFEST).is_file():
            raise RunError(f"{directory}: is a run already; --to run takes a Hugging Face directory") from None
        raise RunError(f"{directory}: no Hugging Face model (config.json is missing)") from None
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{directory / 'config.json'}: damaged, or not of a Hugging Face model") from None
    if kind != "depthroute":
        raise RunError(f"{directory}: a model of type '{kind}'; only depthroute models become runs")
    try:
        return DepthRouteForCausalLM.from_pretrained(directory, dtype="auto", local_files_only=True)
    except DepthrouteError:
        raise
    except Exception as error:  # whatever safetensors and transformers raise for files that are damaged or missing
        raise RunError(f"{directory}: cannot be read: {' '.join(str(error).split())}") from None


def restore(kept: Path, run: Path) -> bool:
    """Put the exported run's records back, if the weights in `run` are still those that its end recorded."""
    if not all((kept / name).is_file() for name in RECORDS):
        return False
    events = runs.metrics(kept)
    if not events or events[-1].get("model") != runs.model_sums(run):
        return False
    for name in RECORDS:
        shutil.copyfile(kept / name, run / name)
    return True


def record_import(directory: Path, run: Path, model: torch.nn.Module) -> None:
    """What a run directory needs, saying that nothing is known of the training."""
    path = directory / KEPT / runs.TOKENIZER
    path = path if path.is_file() else directory / "tokenizer.json"
    if not path.is_file():
        raise RunError(f"{path}: missing; save the tokenizer beside the model")
    tokenizer = Tokenizer(path.read_text(encoding="utf-8"), str(path))
    manifest = {
        "imported": str(directory.resolve().name),
        "tokenizer_digest": tokenizer.digest,
        "vocab": tokenizer.vocab,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "versions": {name: version(name) for name in ("torch", "transformers", "depthroute")},
    }
    runs.write_atomic(run / runs.TOKENIZER, tokenizer.json.encode())
    runs.write_atomic(run / runs.MANIFEST, json.dumps(manifest, indent=2).encode() + b"\n")
    writer = runs.MetricsWriter(run)
    writer.write("end", step=0, tokens=0, seconds=0.0, model=runs.model_sums(run))
    writer.sync()
    writer.close()


def check_free(directory: Path) -> None:
    if directory.exists():
        raise RunError(f"{directory}: exists already; choose another directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
