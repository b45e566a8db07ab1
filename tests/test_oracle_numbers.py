"""The oracle hits the published numbers, and hand-counted sources."""

import math

import oracle
import pytest
import torch
from oracle_networks import attnres, tiny


def low_rank_paper_model(residual):
    sizes = {"vocab": 100277, "width": 1024, "layers": 24, "hidden": 2816}
    return tiny(residual, **sizes, heads=16, kv_heads=16, head_width=64, rope_theta=500000.0)


@pytest.mark.parametrize(
    ("query", "rank", "counts", "expected"),
    [
        ([0.5, -0.25, 0.0, 1.0], 4, [1, 1, 1], [1.824819, 2.182026, 2.539234, 2.757071]),
        ([0.5, 1.0], 2, [1, 1, 1], [1.637512, 1.950194, 2.262875, 2.182092]),
        ([0.5, -0.25, 0.0, 1.0], 4, [1, 3, 2], [2.526342, 2.400268, 2.274193, 1.985348]),
    ],
)
def test_the_three_worked_reads_of_section_7_are_hit_to_1e_6(query, rank, counts, expected):
    rows = [[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0], [-1.0, 0.0, 1.0, 0.0]]
    values = [torch.tensor(row, dtype=torch.float64) for row in rows]
    keys = [value[-rank:] for value in values]
    priors = [math.log(count) for count in counts]
    mixed = oracle.read(torch.tensor(query, dtype=torch.float64), keys, values, priors, 2**-23)
    assert (mixed - torch.tensor(expected, dtype=torch.float64)).abs().max() <= 1e-6


@pytest.mark.parametrize(
    ("residual", "expected"),
    [
        ({"name": "additive"}, 513_648_640),
        (attnres(), 513_697_792),
        (attnres({"blocks": 8}), 513_697_792),
        (attnres(keys={"sliced": 64}), 513_651_712),
        (attnres(keys={"projected": 32}), 516_632_064),
        (attnres(keys={"projected": 64}), 519_615_488),
        (attnres({"blocks": 8}, routes="qk_v"), 513_721_344),
        (attnres({"blocks": 8}, routes="placebo"), 513_721_344),
        (attnres({"blocks": 8}, routes="q_k_v"), 513_744_896),
        (attnres({"blocks": 8}, {"sliced": 64}, "qk_v"), 513_653_184),
        (attnres({"blocks": 8}, {"projected": 32}, "qk_v"), 516_632_800),
    ],
)
def test_parameter_counts_are_those_of_section_7(residual, expected):
    shapes = oracle.parameter_shapes(low_rank_paper_model(residual))
    assert sum(math.prod(shape) for shape in shapes.values()) == expected
    if residual["name"] == "additive":
        ends = ("embed_tokens.weight", "lm_head.weight")
        assert sum(math.prod(shape) for name, shape in shapes.items() if name not in ends) == 308_281_344


@pytest.mark.parametrize(
    ("sources", "expected"),
    [("full", 1224), ({"blocks": 4}, 168), ({"blocks": 8}, 264), ({"blocks": 16}, 456), ({"blocks": 48}, 1224)],
)
def test_the_sources_read_add_up_to_those_of_section_7(sources, expected):
    assert oracle.read_count(low_rank_paper_model(attnres(sources))) == expected


@pytest.mark.parametrize(
    ("residual", "expected"),
    [
        (attnres(), 0.8131),
        (attnres({"blocks": 8}), 0.1754),
        (attnres({"blocks": 16}), 0.3029),
        (attnres({"blocks": 8}, {"sliced": 64}), 0.0932),
        (attnres("full", {"sliced": 512}), 0.6099),
        (attnres({"blocks": 8}, {"projected": 32}), 1.0577),
        (attnres({"blocks": 8}, routes="qk_v"), 0.2571),
        (attnres({"blocks": 8}, routes="q_k_v"), 0.3388),
        (attnres({"blocks": 8}, {"sliced": 64}, "qk_v"), 0.1366),
        (attnres({"blocks": 8}, {"projected": 32}, "qk_v"), 1.0998),
    ],
)
def test_the_added_flops_follow_from_the_source_counts_to_the_digits_of_section_7(residual, expected):
    config = low_rank_paper_model(residual)
    width, hidden, layers, rank = config["width"], config["hidden"], config["layers"], oracle.key_rank(config)
    base = 2 * layers * (4 * width**2 + 3 * width * hidden)
    reads = 0
    for site, count in enumerate(oracle.source_counts(layers, residual["sources"])):
        reads += count * (2 * rank + 2 * width) * len(oracle.read_parameters(site, layers, residual["routes"]))
    projections = 0
    if oracle.is_projected(config):
        projections = 2 * layers * rank * (width + hidden) + 2 * rank * width
    assert round(100 * (reads + projections) / base, 4) == expected


@pytest.mark.parametrize(
    ("layers", "sources", "expected"),
    [
        (24, {"blocks": 4}, [12, 24, 36, 48]),
        (24, {"blocks": 8}, list(range(6, 49, 6))),
        (24, {"blocks": 16}, list(range(3, 49, 3))),
        (24, {"blocks": 5}, [10, 20, 29, 39, 48]),
        (5, {"blocks": 4}, [3, 5, 8, 10]),
        (5, {"blocks": 99}, list(range(1, 11))),
        (5, "full", list(range(1, 11))),
        (5, {"block_layers": 2}, [4, 8, 10]),
        (5, {"block_sublayers": 4}, [4, 8, 10]),
        (5, {"block_sublayers": 5}, [5, 10]),
        (5, {"block_layers": 9}, [10]),
        (24, {"block_layers": 12}, [24, 48]),
    ],
)
def test_blocks_end_where_section_2_says(layers, sources, expected):
    assert oracle.block_ends(layers, sources) == expected


def test_the_sources_of_five_layers_in_four_blocks_are_those_counted_by_hand():
    assert oracle.source_counts(5, {"blocks": 4}) == [1, 2, 2, 2, 3, 3, 4, 4, 4, 5, 5]
    assert oracle.sources_at(0, 5, {"blocks": 4}) == [[]]
    assert oracle.sources_at(3, 5, {"blocks": 4}) == [[], [0, 1, 2]]
    assert oracle.sources_at(6, 5, {"blocks": 4}) == [[], [0, 1, 2], [3, 4], [5]]
    assert oracle.sources_at(10, 5, {"blocks": 4}) == [[], [0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]


def test_full_shows_one_source_more_than_the_site_has_outputs():
    assert oracle.source_counts(24, "full") == list(range(1, 50))
