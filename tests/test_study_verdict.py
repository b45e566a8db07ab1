"""Every verdict, and that its words claim no more than the planned rule; the gap at equal tokens, FLOPs and time."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthroute.study.gaps import gap_curves
from depthroute.study.verdict import judged, nats

SMALL = (-0.0290, -0.0270, -0.0294, -0.0300, -0.0352)
Curve = Sequence[tuple[int, float, float]]


def run(arm: str, seed: int, curve: Curve, flops: float = 1.0) -> dict[str, Any]:
    """A run as results.json has it; the curve is of tokens, seconds and NLL."""
    tokens, seconds, nll = curve[-1]
    return {
        "arm": arm,
        "levels": {},
        "seed": seed,
        "replicate": 0,
        "directory": f"runs/{arm}/{seed}",
        "held_out": {"validation": {"nll": nll, "bits_per_byte": nll / 3, "tokens": 64}},
        "curve": [{"step": t, "tokens": t, "seconds": s, "held_out": {"validation": y}} for t, s, y in curve],
        "tokens": tokens,
        "seconds": seconds,
        "flops_per_token": flops,
        "data_digest": "da",
        "tokenizer_digest": "70",
        "flags": [],
    }


def contrast_of(arm: str, margin: float | None, primary: bool) -> dict[str, Any]:
    named = {"arm": arm, "against": "block", "levels": {}, "held_out": "validation"}
    return {**named, "primary": primary, "margin": margin}


def judge(
    differences: dict[str, Sequence[float]], margin: float | None = None, primary: bool = False
) -> list[dict[str, Any]]:
    """The contrasts of arms whose NLLs differ from 2 by `differences`, each against `block`."""
    seeds = range(len(next(iter(differences.values()))))
    arms = {"block": [0.0] * len(seeds), **differences}
    results = {
        "level": 0.05,
        "seeds": list(seeds),
        "runs": [run(arm, seed, [(64, 1.0, 2.0 + values[seed])]) for arm, values in arms.items() for seed in seeds],
        "contrasts": [contrast_of(arm, margin, primary) for arm in differences],
    }
    return judged(results)["contrasts"]


@pytest.mark.parametrize(
    ("differences", "margin", "verdict", "words"),
    [
        (
            SMALL,
            None,
            "lower",
            "rd has a lower NLL than block on validation: mean -0.0301, 95 % interval [-0.0339, -0.",
        ),
        (SMALL, 0.05, "lower", "the difference is inside the planned margin of 0.05 all the same"),
        ([-d for d in SMALL], 0.005, "higher", "rd has a higher NLL than block on validation: mean +0.0301"),
        (
            (0.0001, -0.0001, 0.0002, -0.0002, 0.0001),
            0.005,
            "equivalent",
            "no difference between rd and block on validation at the planned margin of 0.005: 90 % interval [",
        ),
        ((0.0001, -0.0001, 0.0002, -0.0002, 0.0001), None, "undecided", "effects above 0.0002 nats are excluded"),
        ((0.01, -0.012, 0.02, -0.015, 0.001), None, "undecided", "effects above 0.0191 nats are excluded"),
        ((0.01, -0.012, 0.02, -0.015, 0.001), 0.005, "undecided", "under-powered: 0.0"),
        ((0.01, -0.012, 0.02, -0.015, 0.001), 0.005, "undecided", "equivalence at the planned margin of 0.005 is not"),
        ((0.0,) * 5, 0.005, "identical", "all 5 differences are exactly zero, so nothing is tested"),
        ((0.5,) * 5, 0.005, "undecided", "the differences have no spread, so nothing can be tested"),
        ((0.5, 0.25), None, "undecided", "2 pairs"),
    ],
)
def test_each_verdict_has_its_rule_and_its_words(
    differences: Sequence[float], margin: float | None, verdict: str, words: str
) -> None:
    (contrast,) = judge({"rd": differences}, margin, primary=True)
    assert contrast["verdict"] == verdict
    assert words in contrast["words"]


@pytest.mark.parametrize(
    ("differences", "margin", "verdict", "words"),
    [
        (SMALL, None, "described", "rd against block on validation, described and not judged: mean -0.0301, 95 % int"),
        (SMALL, 0.05, "described", "described and not judged"),
        ((0.0001, -0.0001, 0.0002, -0.0002, 0.0001), 0.005, "equivalent", "no difference between rd and block"),
        ((0.01, -0.012, 0.02, -0.015, 0.001), 0.005, "described", "under-powered: 0.0"),
        ((0.5,) * 5, None, "described", "the differences have no spread"),
        ((0.0,) * 5, None, "identical", "rd and block are identical"),
    ],
)
def test_a_contrast_that_is_not_primary_is_described_and_claims_no_direction(
    differences: Sequence[float], margin: float | None, verdict: str, words: str
) -> None:
    (contrast,) = judge({"rd": differences}, margin)
    assert contrast["verdict"] == verdict
    assert words in contrast["words"]


def test_identical_arms_have_no_tests_and_take_part_in_holm_as_planned() -> None:
    rd, slr = judge({"rd": SMALL, "slr": (0.0,) * 5}, 0.005, primary=True)
    assert (slr["summary"], slr["equivalence"], slr["detectable"]) == (None, None, None)
    assert rd["summary"]["holm_p"] == pytest.approx(2 * rd["summary"]["t_p"])


def test_an_interval_that_excludes_zero_decides_nothing_where_holm_does_not_let_it() -> None:
    weak = (-0.012, -0.022, -0.001, -0.018, -0.009)
    (alone,) = judge({"rd": weak}, primary=True)
    assert alone["verdict"] == "lower"
    together = judge({"rd": weak, "slr": (0.3, -0.1, 0.2, -0.3, 0.1)}, primary=True)[0]
    assert together["summary"]["high"] < 0 < 0.05 < together["summary"]["holm_p"]
    assert together["verdict"] == "undecided"
    assert "but not after Holm's correction over the primary contrasts" in together["words"]


def test_what_is_inside_the_margin_is_undecided_where_its_interval_excludes_zero_and_holm_does_not_let_it_pass() -> (
    None
):
    weak = (-0.0012, -0.0022, -0.0001, -0.0018, -0.0009)
    rd, _ = judge({"rd": weak, "slr": (0.3, -0.1, 0.2, -0.3, 0.1)}, 0.005, primary=True)
    assert rd["equivalence"]["equivalent"]
    assert rd["summary"]["high"] < 0 < 0.05 < rd["summary"]["holm_p"]
    assert rd["verdict"] == "undecided"
    assert "no difference" not in rd["words"]
    assert "but not after Holm's correction over the primary contrasts" in rd["words"]
    assert "inside the planned margin of 0.005 all the same by two one-sided tests" in rd["words"]


def test_an_under_powered_contrast_names_what_it_could_have_detected() -> None:
    (contrast,) = judge({"rd": (0.01, -0.012, 0.02, -0.015, 0.001)}, 0.005, primary=True)
    assert contrast["under_powered"]
    assert contrast["detectable"] > 0.005
    assert f"under-powered: {nats(contrast['detectable'], sign=False)} nats would be found 4 times" in contrast["words"]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(-40, 40).map(lambda n: n / 4096), min_size=3, max_size=6),
    st.sampled_from([None, 0.002, 0.01, 0.1]),
    st.booleans(),
    st.booleans(),
)
def test_no_difference_and_direction_are_said_only_where_the_rule_passes(
    differences: list[float], margin: float | None, primary: bool, corrected: bool
) -> None:
    noisy = [(-1) ** index * 0.1 for index in range(len(differences))]
    contrast = judge({"rd": differences, **({"slr": noisy} if corrected else {})}, margin, primary)[0]
    words, summary, equivalence = contrast["words"], contrast["summary"], contrast["equivalence"]
    passed = equivalence is not None and equivalence["equivalent"]
    excluded = summary is not None and summary["t_p"] is not None and not summary["low"] <= 0 <= summary["high"]
    assert ("no difference" in words) == (passed and not excluded)
    claimed = primary and excluded and summary["holm_p"] < 0.05
    assert ("a lower NLL" in words) == (claimed and summary["mean"] < 0)
    assert ("a higher NLL" in words) == (claimed and summary["mean"] > 0)
    assert ("not after Holm" in words) == (primary and excluded and not claimed)


def test_small_numbers_are_not_shown_as_zero_and_zero_is() -> None:
    assert [nats(value) for value in (0.0, -0.0301, 0.00004712, -3.4e-9)] == ["0", "-0.0301", "+0.000047", "-3.4e-09"]
    assert nats(0.005, sign=False) == "0.0050"


START, SLOW, FAST = (0, 0.0, 9.0), (2.0, 4.0, 8.0), (1.0, 2.0, 4.0)


def curve(seconds: Sequence[float], losses: Sequence[float]) -> Curve:
    return [START, *zip((100, 200, 400), seconds, losses, strict=True)]


def gaps(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By axis."""
    entries = [run("rd", 1, **ours), run("block", 1, **theirs)]
    found = gap_curves(contrast_of("rd", None, False), entries, [1], 0.05)
    return {gap["axis"]: gap for gap in found}


def test_the_cheaper_arm_is_read_between_its_milestones_at_the_budget_of_the_dearer() -> None:
    dear = {"curve": curve(SLOW, (5.0, 4.0, 3.0)), "flops": 1.5}
    cheap = {"curve": curve(FAST, (6.0, 5.0, 2.0)), "flops": 1.0}
    found = gaps(dear, cheap)
    points = {axis: [(point["x"], point["mean"]) for point in gap["points"]] for axis, gap in found.items()}
    assert points["tokens"] == [(100, -1.0), (200, -1.0), (400, 1.0)]
    # At 150 FLOPs block lies half way from 6 to 5, at 300 half way from 5 to 2; 600 lies beyond its end.
    assert points["flops"] == [(150.0, -0.5), (300.0, 0.5)]
    assert points["seconds"] == [(2.0, 0.0), (4.0, 2.0)]
    assert [(gap["interpolated"], gap["left_out"], gap["end"]) for gap in found.values()] == [
        (None, 0, 400),
        ("block", 1, 600.0),
        ("block", 1, 8.0),
    ]
    mirrored = gaps(cheap, dear)
    for axis, gap in mirrored.items():
        assert [(point["x"], -point["mean"]) for point in gap["points"]] == points[axis]
        assert gap["interpolated"] == (None if axis == "tokens" else "rd")


def test_arms_of_equal_cost_have_equal_gaps_at_equal_tokens_and_flops() -> None:
    arm = {"curve": curve(SLOW, (5.0, 4.0, 3.0)), "flops": 7.0}
    found = gaps(arm, {**arm, "curve": curve(SLOW, (5.5, 4.5, 3.5))})
    assert list(found) == ["tokens", "flops", "seconds"]
    assert all([point["mean"] for point in gap["points"]] == [-0.5, -0.5, -0.5] for gap in found.values())
    assert all(gap["interpolated"] is None and gap["left_out"] == 0 for gap in found.values())


def test_a_longer_run_of_the_cheaper_arm_reaches_the_whole_budget_of_the_dearer() -> None:
    dear = {"curve": curve(SLOW, (5.0, 4.0, 3.0)), "flops": 2.0}
    cheap = {"curve": [*curve(FAST, (6.0, 5.0, 4.0)), (800, 8.0, 2.5)], "flops": 1.0}
    found = gaps(dear, cheap)
    assert [(point["x"], point["mean"]) for point in found["flops"]["points"]][-1] == (800.0, 0.5)
    assert found["flops"]["left_out"] == 0
    assert [point["x"] for point in found["tokens"]["points"]] == [100, 200, 400]


def test_a_gap_has_its_interval_from_all_seeds_and_none_from_one() -> None:
    entries = [
        run(arm, seed, curve(SLOW, (5.0 + shift * seed, 4.0, 3.0)))
        for arm, shift in (("rd", 0.5), ("block", 0.0))
        for seed in (1, 2, 3)
    ]
    tokens = gap_curves(contrast_of("rd", None, False), entries, [1, 2, 3], 0.05)[0]
    first, last = tokens["points"][0], tokens["points"][-1]
    assert first["by_seed"] == {"1": 0.5, "2": 1.0, "3": 1.5}
    # Student's quantile for 2 degrees of freedom is 4.303, the standard error 0.5 / sqrt(3).
    assert (first["low"], first["high"]) == pytest.approx((1.0 - 1.2421, 1.0 + 1.2421), abs=1e-3)
    assert (last["mean"], last["low"], last["high"]) == (0.0, 0.0, 0.0)
    lone = gap_curves(contrast_of("rd", None, False), entries, [2], 0.05)[0]["points"][0]
    assert (lone["mean"], lone["low"], lone["high"]) == (1.0, None, None)
