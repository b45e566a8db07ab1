"""The papers' systems by name, and model sizes by name: a name is a piece of configuration, nothing else."""

from typing import Any, NamedTuple

from depthroute.errors import ConfigError
from depthroute.schema import nearest

PARENT, LOW_RANK, ROLES = "arXiv 2603.15031", "arXiv 2607.09694", "arXiv 2608.01075"
NEW = "none yet"


class Preset(NamedTuple):
    paper: str
    """Where the system was published; `none yet` for combinations that we know of nowhere else."""
    parent: str | None
    differs: str
    """What it changes against its parent."""
    residual: dict[str, Any]
    """The config; `BLOCKS` and `RANK` stand where an option fills it in."""
    rank: int | None = None
    """The paper's rank, used unless another is given."""


BLOCKS, RANK = "BLOCKS", "RANK"
BESIDE_A_PRESET = ("blocks", "rank", "sources", "keys", "routes", "alpha", "beta", "gain", "eps")
BLOCKED: dict[str, Any] = {"name": "attnres", "sources": {"blocks": BLOCKS}}
FULL: dict[str, Any] = {"name": "attnres", "sources": "full"}
SLICED: dict[str, Any] = {"keys": {"sliced": RANK}}
PROJECTED: dict[str, Any] = {"keys": {"projected": RANK}}

PRESETS: dict[str, Preset] = {
    "prenorm": Preset("arXiv 2002.04745", None, "the running sum", {"name": "additive"}),
    "attnres-full": Preset(PARENT, "prenorm", "reads every earlier output", FULL),
    "attnres-block": Preset(PARENT, "attnres-full", "outputs are summed in blocks", BLOCKED),
    "slr-full": Preset(LOW_RANK, "attnres-full", "keys are the values' last coordinates", FULL | SLICED, 64),
    "slr-block": Preset(LOW_RANK, "attnres-block", "keys are the values' last coordinates", BLOCKED | SLICED, 64),
    "plr-full": Preset(LOW_RANK, "attnres-full", "keys are projected beside the values", FULL | PROJECTED, 32),
    "plr-block": Preset(LOW_RANK, "attnres-block", "keys are projected beside the values", BLOCKED | PROJECTED, 32),
    "rd": Preset(ROLES, "attnres-block", "values have a query of their own", BLOCKED | {"routes": "qk_v"}),
    "rd-tied": Preset(ROLES, "rd", "control: both routes share one query", BLOCKED | {"routes": "tied"}),
    "rd-average": Preset(ROLES, "rd", "control: the mean of both feeds all roles", BLOCKED | {"routes": "average"}),
    "rd-frozen-v": Preset(ROLES, "rd", "control: the value route stays uniform", BLOCKED | {"routes": "frozen_v"}),
    "rd-qkv": Preset(NEW, "rd", "one query a role, asked for by reviewers of rd", BLOCKED | {"routes": "q_k_v"}),
    "rd-slr": Preset(NEW, "rd", "sliced keys", BLOCKED | {"routes": "qk_v"} | SLICED, 64),
    "rd-plr": Preset(NEW, "rd", "projected keys", BLOCKED | {"routes": "qk_v"} | PROJECTED, 32),
}

SIZES: dict[str, dict[str, Any]] = {
    # Ours: a size to try things on two CPU cores. Embedding scale 1, where PreNorm is not handicapped.
    "tiny": {"width": 128, "layers": 4, "heads": 4, "hidden": 352, "rope_theta": 10000.0, "embedding_std": 1.0},
    "small": {"width": 256, "layers": 8, "heads": 4, "hidden": 704, "rope_theta": 10000.0, "embedding_std": 1.0},
    # The role-decoupled paper gives 120M and 343M parameters but no shapes: these are our choice, GPT-2's vocabulary.
    "rd-s": {
        "vocab": 50257, "width": 768, "layers": 12, "heads": 12, "hidden": 1920,
        "rope_theta": 10000.0, "norm_gain": True, "norm_eps": 1e-6, "qk_norm": False, "tied": True,
    },
    "rd-m": {
        "vocab": 50257, "width": 1024, "layers": 24, "heads": 16, "hidden": 2592,
        "rope_theta": 10000.0, "norm_gain": True, "norm_eps": 1e-6, "qk_norm": False, "tied": True,
    },
    # The low-rank paper's model, as published; its tokenizer is cl100k.
    "lr-0.5b": {"vocab": 100277, "width": 1024, "layers": 24, "heads": 16, "hidden": 2816},
}  # fmt: skip

NOTES = {
    "tiny": "our choice, to try things on two CPU cores",
    "small": "our choice, to try things on two CPU cores",
    "rd-s": "our choice of shape: the role-decoupled paper publishes about 120M parameters and no widths",
    "rd-m": "our choice of shape: the role-decoupled paper publishes about 343M parameters and no widths",
    "lr-0.5b": "the low-rank paper's model; its Muon (Polar Express, cautious decay) is another algorithm than ours",
}


def residual(name: object, blocks: int | None = None, rank: int | None = None) -> dict[str, Any]:
    """The residual config of a preset, as plain data. `blocks` is 8 and `rank` the paper's unless given."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"preset '{name}' does not exist {nearest(name, list(PRESETS))}")
    preset = PRESETS[name]
    if rank is not None and preset.rank is None:
        raise ConfigError(f"preset '{name}' has no rank: its keys are the whole values; take rank away")
    if blocks is not None and preset.residual.get("sources") != {"blocks": BLOCKS}:
        raise ConfigError(f"preset '{name}' has no blocks; take blocks away")
    options = {BLOCKS: 8 if blocks is None else blocks, RANK: preset.rank if rank is None else rank}

    def filled(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: filled(value) for key, value in part.items()}
        return options.get(part, part)

    return filled(preset.residual)


def size(name: object) -> dict[str, Any]:
    """The shape of a model size, as plain data without a residual."""
    if not isinstance(name, str) or name not in SIZES:
        raise ConfigError(f"size '{name}' does not exist {nearest(name, list(SIZES))}")
    return dict(SIZES[name])


def expand_model(raw: dict[str, Any]) -> dict[str, Any]:
    """A model section with `size` and `residual.preset` replaced by what they stand for; keys beside them win."""
    expanded = {key: value for key, value in raw.items() if key != "size"}
    if "size" in raw:
        expanded = size(raw["size"]) | expanded
    choice: Any = raw.get("residual")
    if isinstance(choice, str):
        choice = {"preset": choice}
    if isinstance(choice, dict) and "preset" in choice:
        unknown = next((key for key in choice if key not in ("preset", *BESIDE_A_PRESET)), None)
        if unknown is not None:
            hint = nearest(unknown, BESIDE_A_PRESET)
            raise ConfigError(f"model.residual.{unknown}: unknown key beside a preset {hint}")
        for option, field in (("blocks", "sources"), ("rank", "keys")):
            if option in choice and field in choice:
                raise ConfigError(f"model.residual: {option} and {field} both say what {field} are; give one")
        rest = {key: value for key, value in choice.items() if key not in ("preset", "blocks", "rank")}
        choice = residual(choice["preset"], choice.get("blocks"), choice.get("rank")) | rest
    return expanded if choice is None else expanded | {"residual": choice}
