"""Figures 6.4 and B.7: the tangent kernel aligns with easy examples first, and the more so the deeper the network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tangentlab.experiments import Chapter, Cost, Lab, Picture, Results, experiment
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.alignment._groups import Kind, MixtureSetting, duration, half_rise, steepest
from tangentlab.figures.curves import Curves
from tangentlab.figures.style import GRAY, PALETTE, band, label, legend_outside, panels, step_axis

EASY, DIFFICULT = PALETTE[0], PALETTE[1]
KINDS: tuple[tuple[Kind, str], ...] = (("random labels", "random"), ("kmnist", "kmnist"))


_COMMON: dict[str, Any] = {
    "source": "digits",
    "easy": 150,
    "difficult": 60,
    "probe": 10,
    "batch": 20,
    "steps": 12,
    "ratio": 1.6,
}


@experiment
class EasyDifficult(MixtureSetting):
    """Alignment on easy and difficult groups of the training set."""

    name = "easy-difficult"
    title = "The kernel aligns with easy examples first"
    question = (
        "When some training examples are easy and some difficult, does the tangent kernel align with the labels of both "
        "alike? A network of six hidden layers learns 10,000 digits together with 1,000 difficult images: digits with random "
        "labels, or characters of another script. The alignment is measured on 100 of each, with the labels used in training."
    )
    chapter = Chapter.ALIGNMENT
    place = "§6.3.4, figure 6.4"
    claims = claims_of("easy-difficult")
    scales = {"smoke": {**_COMMON, "width": 12, "hidden": 2}, "paper": {"ratio": 1.15}}
    seeds = {"smoke": 1, "desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 6, "paper": 15}
    notes = {
        "desk": "as in the paper, with kernels at fewer steps. The paper does not tell the length of the training."
    }

    hidden: int = 6

    def cost(self) -> Cost:
        """One step per update, of both problems."""
        return Cost(2 * self.steps, 0.02, 700)

    def run(self, lab: Lab) -> None:
        """Both kinds of difficulty from the same initial network."""
        for kind, _ in KINDS:
            self.follow(lab, kind, self.mixture(lab, kind), self.hidden, kind=kind)

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """How high, how fast and how late the alignment of the groups rises."""
        found: dict[str, float | str] = {}
        for kind, tag in KINDS:
            rows = list(results.table("alignment", kind=kind, seed=seed).rows)
            best = {key: max(row[key] for row in rows) for key in ("easy", "difficult")}
            rise = {key: half_rise(rows, key, "easy") for key in ("easy", "difficult")}
            found[f"6.4-{tag}-higher"] = best["easy"] / best["difficult"]
            found[f"6.4-{tag}-faster"] = rise["difficult"] / rise["easy"]
            if kind == "kmnist":
                early = next(row["difficult"] for row in rows if row["step"] >= rise["easy"])
                found["6.4-kmnist-later"] = rows[-1]["difficult"] - early
        return found

    def draw(self, results: Results) -> Iterator[Picture]:
        """Both groups along the training; the ratio; the uncentred twin."""
        for suffix, name, title in (
            ("", "figure-6.4", "CKA"),
            ("_raw", "figure-6.4-uncentred", "alignment, not centred"),
        ):
            kinds = results.table("alignment").distinct("kind")
            figure, axes = panels(len(kinds), 2)
            for column, kind in enumerate(kinds):
                for key, color in (("easy", EASY), ("difficult", DIFFICULT)):
                    curves = results.curves("alignment", "step", key + suffix, kind=kind)
                    band(axes[0, column], curves, key, color=color)
                label(axes[0, column], "step", title, f"difficult: {kind}")
                band(axes[1, column], ratio_curves(results, suffix, kind=kind), color=PALETTE[2])
                axes[1, column].axhline(1, color=GRAY, linewidth=1, linestyle="--")
                label(axes[1, column], "step", "easy / difficult")
            for axis in axes.flat:
                step_axis(axis, self.steps)
            legend_outside(figure, axes[0, 0])
            yield Picture(
                name,
                figure,
                "Alignment of the tangent kernel with the labels of training, on equally many easy and difficult training "
                f"examples, along the training{', nothing centred' if suffix else ''}; below, the ratio of the two. Mean over "
                "seeds, all seeds as a band.",
            )


def ratio_curves(results: Results, suffix: str, **where: Any) -> Curves:
    """The alignment on easy over that on difficult examples, a curve per seed; `suffix` says which centring."""
    easy, difficult = (results.curves("alignment", "step", key + suffix, **where) for key in ("easy", "difficult"))
    return Curves(easy.x, easy.y / difficult.y)


@experiment
class DepthHierarchy(MixtureSetting):
    """The same hierarchy for networks of several depths."""

    name = "depth-hierarchy"
    title = "Deeper networks separate easy from difficult examples more"
    question = (
        "Does depth change how the kernel's alignment treats easy and difficult examples? Networks of 3 to 9 hidden layers "
        "with 60 units learn 10,000 digits together with 1,000 digits that carry random labels."
    )
    chapter = Chapter.ALIGNMENT
    place = "§6.3.5, B.3.3, figure B.7"
    claims = claims_of("depth-hierarchy")
    scales = {"smoke": {**_COMMON, "width": 12, "depths": (1, 3)}, "paper": {"ratio": 1.15}}
    seeds = {"smoke": 1, "desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 20, "paper": 60}
    notes = {
        "desk": "as in the paper, with kernels at fewer steps. The paper gives neither the depths nor the length of the "
        "training; here 3, 5, 7 and 9 hidden layers, and 6,000 steps, since nine layers have learned little after 2,000. "
        "Their ratio is still high at the end, so that how long it stays high is cut off.",
    }

    depths: tuple[int, ...] = (3, 5, 7, 9)
    width: int = 60
    steps: int = 6_000
    rate: float = 0.01

    def cost(self) -> Cost:
        """One step per update, of all depths."""
        return Cost(len(self.depths) * self.steps, 0.02, 700)

    def run(self, lab: Lab) -> None:
        """All depths on the same data."""
        parts = self.mixture(lab, "random labels")
        found = {
            depth: self.follow(lab, f"depth {depth}", parts, depth, (depth,), depth=depth) for depth in self.depths
        }
        shallow, deep = found[self.depths[0]], found[self.depths[-1]]
        lab.measure("B.7-later", half_rise(deep, "easy") / half_rise(shallow, "easy"))
        lab.measure("B.7-faster", steepest(deep, "easy") / max(steepest(shallow, "easy"), 1e-6))
        peaks = [max(row["ratio"] for row in rows) for rows in (deep, shallow)]
        lab.measure("B.7-ratio", peaks[0] / peaks[1])
        lab.measure("B.7-shorter", duration(deep, "ratio") / max(duration(shallow, "ratio"), 1.0))

    def draw(self, results: Results) -> Iterator[Picture]:
        """Seeds in columns and depths in rows, as in the paper; the uncentred twin."""
        yield self._drawn(results, "figure-b.7", "")
        yield self._drawn(results, "figure-b.7-uncentred", "_raw")

    def _drawn(self, results: Results, name: str, suffix: str) -> Picture:
        depths, seeds = results.table("alignment").distinct("depth"), results.seeds
        title_of = "alignment" if suffix else "CKA"
        figure, axes = panels(len(seeds) + 1, len(depths), width=2.5, height=1.9, sharex=True)
        for row, depth in enumerate(depths):
            for column, seed in enumerate(seeds):
                table = results.table("alignment", depth=depth, seed=seed)
                for key, color in (("easy", EASY), ("difficult", DIFFICULT)):
                    axes[row, column].plot(table["step"], table[key + suffix], color=color, label=key)
                axes[row, column].set_ylim(bottom=0)
                title = f"seed {seed}" if row == 0 else None
                label(axes[row, column], "step" if row == len(depths) - 1 else "", title_of, title)
            band(axes[row, -1], ratio_curves(results, suffix, depth=depth), color=PALETTE[2])
            named = "ratio" if row == 0 else None
            label(axes[row, -1], "step" if row == len(depths) - 1 else "", "easy / difficult", named)
            axes[row, 0].set_ylabel(f"{depth} hidden layers\n{title_of}")
        for axis in axes.flat:
            step_axis(axis, self.steps)
        legend_outside(figure, axes[0, 0])
        return Picture(
            name,
            figure,
            "Alignment of the tangent kernel with the labels of training on easy digits and on digits with random labels, for "
            f"networks of several depths (rows) and seeds (columns){', nothing centred' if suffix else ''}. Right: the ratio "
            "of the two, mean over seeds, all seeds as a band.",
        )
