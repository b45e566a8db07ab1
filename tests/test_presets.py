"""The papers' systems: their published counts, and what equal seeds share."""

import itertools
import json

import pytest
import torch
from networks import attnres, config, describe

from depthroute import presets, residuals
from depthroute.errors import ConfigError
from depthroute.model.count import parameters
from depthroute.model.transformer import ModelConfig, Transformer
from depthroute.residuals.attnres.sources import Blocks, BlockSublayers, Full, Layout


@pytest.mark.parametrize(
    ("residual", "count"),
    [
        ("prenorm", 513_648_640),
        ("attnres-full", 513_697_792),
        ({"preset": "attnres-block", "blocks": 4}, 513_697_792),
        ("attnres-block", 513_697_792),
        ({"preset": "attnres-block", "blocks": 16}, 513_697_792),
        ("slr-full", 513_651_712),
        ("slr-block", 513_651_712),
        ("plr-full", 516_632_064),
        ({"preset": "plr-block", "rank": 64}, 519_615_488),
        ("rd", 513_721_344),
        ("rd-qkv", 513_744_896),
        ("rd-slr", 513_653_184),
        ("rd-plr", 516_632_800),
    ],
    ids=str,
)
def test_the_low_rank_papers_model_has_its_published_parameters(residual, count):
    assert parameters(presets.expand_model({"size": "lr-0.5b", "residual": residual})).total == count


def test_the_low_rank_papers_model_has_its_published_body():
    assert parameters(presets.expand_model({"size": "lr-0.5b", "residual": "prenorm"})).non_embedding == 308_281_344


def test_every_size_says_whose_choice_it_is():
    assert presets.NOTES.keys() == presets.SIZES.keys()


@pytest.mark.parametrize(("size", "published"), [("rd-s", 120e6), ("rd-m", 343e6)])
@pytest.mark.parametrize("residual", ["prenorm", "rd"])
def test_chosen_shapes_land_within_one_percent_of_the_published_count(size, published, residual):
    counted = parameters(presets.expand_model({"size": size, "residual": residual}))
    assert counted.total == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("sources", "reads"), [(Full(), 1224), (Blocks(blocks=4), 168), (Blocks(blocks=8), 264), (Blocks(blocks=16), 456)]
)
def test_twenty_four_layers_read_the_published_number_of_sources(sources, reads):
    assert sum(len(visible) for visible in Layout(sources, 24).counts[1:]) == reads


def test_blocks_end_where_the_low_rank_paper_ends_them():
    assert Blocks(blocks=4).ends(24) == [12, 24, 36, 48]
    assert Blocks(blocks=8).ends(24) == [6, 12, 18, 24, 30, 36, 42, 48]
    assert Blocks(blocks=16).ends(24) == list(range(3, 49, 3))
    assert Blocks(blocks=5).ends(24) == [10, 20, 29, 39, 48]
    assert Blocks(blocks=4).ends(5) == [3, 5, 8, 10]
    assert [len(visible) for visible in Layout(Blocks(blocks=4), 5).counts] == [1, 2, 2, 2, 3, 3, 4, 4, 4, 5, 5]
    assert BlockSublayers(block_sublayers=12).ends(93 // 2 + 1)[-2:] == [84, 94]


def built(name: str, seed: int) -> dict[str, torch.Tensor]:
    preset = presets.PRESETS[name]
    options = {"rank": 6} if preset.rank else {}
    raw = {"vocab": 40, "width": 16, "layers": 3, "heads": 2, "hidden": 24, "residual": {"preset": name, **options}}
    return Transformer(ModelConfig.parse(presets.expand_model(raw))).initialise(seed).state_dict()


def test_every_pair_of_presets_shares_every_common_weight_for_equal_seeds_only():
    equal = {name: built(name, seed=1) for name in presets.PRESETS}
    other = {name: built(name, seed=2) for name in presets.PRESETS}
    pairs = list(itertools.combinations(presets.PRESETS, 2))
    assert len(pairs) == 14 * 13 / 2
    for first, second in pairs:
        common = equal[first].keys() & equal[second].keys()
        assert {"embed_tokens.weight", "lm_head.weight", "layers.2.mlp.down_proj.weight"} <= common
        for name in common:
            rows = min(len(equal[first][name]), len(equal[second][name]))
            assert torch.equal(equal[first][name][:rows], equal[second][name][:rows]), (first, second, name)
            if name.endswith(("proj.weight", "tokens.weight", "head.weight")):
                assert not torch.equal(equal[first][name][:rows], other[second][name][:rows]), (first, second, name)


def test_a_tied_model_shares_its_embedding_with_the_untied_one():
    untied, tied = (Transformer(config(attnres(), tied=tied)).initialise(3).state_dict() for tied in (False, True))
    assert tied.keys() == untied.keys() - {"lm_head.weight"}
    assert all(torch.equal(tied[name], untied[name]) for name in tied)


def test_key_rows_of_a_fused_projection_are_drawn_apart_from_its_value_rows():
    plr = built("plr-block", seed=1)["layers.0.self_attn.o_proj.weight"]
    assert plr.shape == (16 + 6, 16)
    assert not torch.equal(plr[:6], plr[16:])


def test_a_weight_does_not_depend_on_the_default_device_or_the_global_generator():
    torch.manual_seed(99)
    first = built("rd-plr", seed=1)
    torch.rand(1000)
    second = built("rd-plr", seed=1)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_built_without_memory_reads_like_one_built_with_it(tied):
    subset = config(attnres("full", {"subset": {"rank": 3, "seed": 5}}), tied=tied)
    whole = Transformer(subset).initialise(0)
    ids = torch.arange(5).unsqueeze(0)
    with torch.device("meta"):
        drawn, loaded = Transformer(subset), Transformer(subset)
    drawn = drawn.to_empty(device="cpu").initialise(0)
    loaded = loaded.to_empty(device="cpu")
    loaded.load_state_dict(whole.state_dict())
    assert torch.equal(drawn(ids), whole(ids))
    assert torch.equal(loaded(ids), whole(ids))


def test_a_model_initialised_again_has_the_same_bits():
    model = Transformer(config(attnres("full", {"projected": 3}, "temperature", gain=True))).initialise(0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    model.initialise(0)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"residual": "atnres-block"}, "did you mean 'attnres-block'"),
        ({"residual": {"preset": "rd", "rank": 8}}, "'rd' has no rank"),
        ({"residual": {"preset": "attnres-full", "blocks": 8}}, "'attnres-full' has no blocks"),
        ({"size": "tinny", "residual": "rd"}, "did you mean 'tiny'"),
        ({"residual": {"preset": "rd", "blocks": 4, "sources": "full"}}, "blocks and sources both say"),
        ({"residual": {"preset": "slr-block", "rank": 8, "keys": "value"}}, "rank and keys both say"),
    ],
    ids=str,
)
def test_an_unknown_preset_or_option_is_named(raw, message):
    with pytest.raises(ConfigError, match=message):
        presets.expand_model(raw)


@pytest.mark.parametrize(
    ("residual", "message"),
    [
        ({"name": "atnres"}, "did you mean 'attnres'"),
        ({"sources": "full"}, "give a mapping with a name"),
        (attnres({"block_size": 4}), "is none of the choices"),
        (attnres({"blocks": 0}), "greater than 0"),
        (attnres("blocks"), "write 'blocks' as {blocks: ...}"),
        (attnres({"full": 3}), "write 'full' as full"),
        (attnres({"blocks": 2, "block_layers": 2}), "is none of the choices"),
        (attnres(keys={"slicd": 3}), "did you mean 'sliced'"),
        (attnres(keys={"subset": {"rank": 3}}), "subset.seed: missing"),
        (attnres(routes="q_v"), "routes"),
        (attnres(alpha=0.5), "every source is one output"),
        (attnres(eps=float("nan")), "eps"),
        (attnres() | {"gian": True}, "did you mean 'gain'"),
        ({"name": "additive", "keys": "value"}, "unknown key"),
    ],
    ids=describe,
)
def test_a_residual_that_means_nothing_is_one_line_that_says_why(residual, message):
    with pytest.raises(ConfigError, match=message) as raised:
        config(residual)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("residual", "changes", "message"),
    [
        (attnres(keys={"sliced": 9}), {}, "rank 9 is larger than the model's width 8"),
        (attnres(keys={"projected": 9}), {}, "rank 9 is larger"),
        (attnres(routes="qk_v"), {"layers": 1}, "need 2 layers"),
        (attnres(), {"vocab": None}, "vocab: not set"),
    ],
    ids=str,
)
def test_a_network_that_cannot_be_built_says_why(residual, changes, message):
    with pytest.raises(ConfigError, match=message):
        Transformer(config(residual, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "width 8 is not a multiple of heads 3"),
        ({"heads": 2, "kv_heads": 3}, "not a multiple of kv_heads"),
        ({"heads": 8}, "odd"),
        ({"widht": 8}, "did you mean 'width'"),
        ({"layers": 0}, "layers"),
    ],
    ids=str,
)
def test_a_shape_that_cannot_be_is_one_line_that_says_why(changes, message):
    with pytest.raises(ConfigError, match=message) as raised:
        config(attnres(), **changes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", list(presets.PRESETS))
def test_a_preset_survives_the_round_trip_through_plain_data(name):
    model = ModelConfig.parse(presets.expand_model({"size": "lr-0.5b", "residual": name}))
    assert ModelConfig.parse(json.loads(model.model_dump_json())) == model


def test_every_file_of_the_folder_is_a_residual_with_a_config_and_its_paper():
    assert residuals.names() == ["additive", "attnres"]
    for name in residuals.names():
        cls = residuals.config_class(name)
        assert cls().model_dump()["name"] == name
        assert "arXiv" in __import__(cls.__module__, fromlist=["Config"]).__doc__
