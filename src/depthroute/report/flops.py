"""Loss against what the depth reads cost: an arm a mark, seeds as error bars."""

from collections.abc import Mapping, Sequence
from statistics import mean

from depthroute.report.figures import MARKERS, Figure, canvas, fitted, rendered


def loss_by_flops(
    name: str, title: str, points: Mapping[str, Sequence[tuple[float, float]]], colours: Mapping[str, str]
) -> Figure | None:
    """`points` hold, by arm, the added FLOPs in percent and the NLL of every run; None for less than two arms."""
    drawn = {arm: found for arm, found in points.items() if found}
    if len(drawn) < 2:
        return None
    with canvas(215 + 15 * -(-len(drawn) // 2)) as drawing:
        axes = drawing.subplots()
        for index, (arm, found) in enumerate(drawn.items()):
            at, losses = found[0][0], [nll for _, nll in found]
            marker = MARKERS[index % len(MARKERS)]
            axes.vlines([at], min(losses), max(losses), color=colours[arm], linewidth=1.4)
            label = fitted(arm, 24)
            axes.plot([at], [mean(losses)], color=colours[arm], marker=marker, linestyle="", label=label)
        axes.set_xlabel("added forward FLOPs, percent (papers' convention)")
        axes.set_ylabel("NLL, nats a token")
        drawing.legend(loc="outside lower left", ncols=2, handlelength=1.2, columnspacing=1.2)
        said = "; ".join(
            f"{arm} {found[0][0]:.3f} %, {mean(nll for _, nll in found):.4f}" for arm, found in drawn.items()
        )
        note = "A mark at the mean over an arm’s runs; the bar goes from the best to the worst."
        return Figure(name, title, note, rendered(drawing, name, title, said))
