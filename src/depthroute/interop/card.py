"""The model card: what a model is, what it was trained on and how it was judged, from its run directory alone."""

from pathlib import Path
from typing import Any, NamedTuple

from depthroute import config as configuration
from depthroute import runs


class Origin(NamedTuple):
    """The study that a run belongs to."""

    question: str
    arm: str
    seed: str
    planned: str
    """When the study's plan was fixed."""
    digest: str
    """Of that plan."""
    verdicts: list[str]
    """What the study says of the arm, in its own words; empty while it has no results."""


HEAD = """---
library_name: depthroute
pipeline_tag: text-generation
tags: [depthroute, attention-residuals]
---

# {title}

A decoder-only Transformer of {parameters:,} parameters, trained with [depthroute](https://pypi.org/project/depthroute/).
{residual}

    pip install 'depthroute[hf]'

    import depthroute.interop.huggingface
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(DIRECTORY, dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(DIRECTORY)
    inputs = tokenizer("Once", return_tensors="pt")
    print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40)[0]))

Nothing here is executable: weights are safetensors, all else is JSON, YAML and text. `run/` holds the run's own
records, from which `depthroute export DIRECTORY --to run RUN` makes a run directory again.
"""


def card(run: Path, origin: Origin | None) -> str:
    """The text of README.md for the exported run."""
    manifest, trained = runs.manifest(run), configuration.load(run / runs.CONFIG)
    shape = trained.model
    residual = shape.residual.model_dump(mode="json")
    said = "It adds each layer's output to a running sum (PreNorm)."
    if residual["name"] != "additive":
        said = "Its sublayers read earlier depth through: `" + words(residual) + "`."
    title = f"{origin.arm}, seed {origin.seed}" if origin else run.resolve().name
    parts = [HEAD.format(title=title, parameters=manifest["parameters"], residual=said), training(trained, manifest)]
    parts.append(evaluation(run))
    if origin:
        parts.append(study(origin))
    return "\n".join(parts)


def training(trained: configuration.Config, manifest: dict[str, Any]) -> str:
    shape, corpus = trained.model, trained.data.corpus
    named = corpus if isinstance(corpus, str) else words(corpus.model_dump(mode="json", exclude_none=True))
    rows = {
        "shape": f"{shape.layers} layers, width {shape.width}, {shape.heads} heads of {shape.head_width}, "
        f"hidden {shape.hidden}, vocabulary {manifest['vocab']:,}",
        "corpus": named,
        "training": f"{trained.tokens:,} tokens, windows of {trained.length}, {trained.batch} a step, "
        f"seed {trained.seed}, {manifest['precision']}",
        "device": f"{manifest['device']}, depth reads by `{manifest['impl']}`",
        "versions": ", ".join(f"{name} {version}" for name, version in manifest["versions"].items()),
        "digests": "  ".join(f"{key} `{manifest[f'{key}_digest'][:16]}`" for key in ("config", "data", "tokenizer")),
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["## Training", "", "| | |", "| --- | --- |", *lines, ""])


def evaluation(run: Path) -> str:
    lines = [
        f"| {name} | {event['nll']:.4f} | {event['bits_per_byte']:.4f} | {event['tokens_evaluated']:,} |"
        for name, event in runs.final_evaluation(run).items()
    ]
    head = ["| held out | NLL, nats a token | bits a byte | tokens |", "| --- | --- | --- | --- |"]
    return "\n".join(["## Evaluation at the end of training", "", *head, *lines, ""])


def study(origin: Origin) -> str:
    verdicts = [f"* {line}" for line in origin.verdicts] or ["The study has no results yet."]
    lines = [
        "## The study that it belongs to",
        "",
        f"Question: {origin.question}",
        "",
        f"This is arm `{origin.arm}` at seed {origin.seed}. The plan was fixed on {origin.planned} UTC before the "
        f"first run (digest `{origin.digest[:16]}`). One run shows no difference between arms; what the study says of "
        "this arm:",
        "",
        *verdicts,
        "",
    ]
    return "\n".join(lines)


def words(data: Any) -> str:
    """Plain data in a line: `name: attnres, sources: {blocks: 4}`."""
    if not isinstance(data, dict):
        return str(data)
    return ", ".join(f"{key}: {{{words(v)}}}" if isinstance(v, dict) else f"{key}: {v}" for key, v in data.items())
