"""Theorem 3.3 on a trained network: how fast its exact Fourier transform falls, by direction."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tangentlab.data import disk
from tangentlab.experiments import Chapter, Cost, Experiment, Lab, Minibatches, Picture, Results, experiment, train
from tangentlab.experiments._claims import claims_of
from tangentlab.experiments.spectral._waves import Array, common_network, squared_error
from tangentlab.figures.style import GRAY, PALETTE, label, legend_below, panels
from tangentlab.spectral import NetworkTransform, Partition, decay_along, enumerate_regions, envelope_slope
from tangentlab.spectral.network_fourier import walls_of

BOX = ((-1.0, 1.0), (-1.0, 1.0))
KINDS = ("any direction", "normal of a wall")


@experiment
class DecayExponents(Experiment):
    """A training on the disk, all regions, and the transform along random directions and along normals of walls."""

    name = "decay-exponents"
    title = "The Fourier transform of a trained network falls like a power that the direction decides"
    question = (
        "The transform of a ReLU network falls like a power of the frequency: -(d + 1) in almost every direction, and only -2 "
        "along normals of the walls between its linear regions. Does a trained network keep to the theorem?"
    )
    chapter = Chapter.SPECTRAL
    place = "theorem 3.3"
    claims = claims_of("decay-exponents")
    scales = {"smoke": {"steps": 20, "width": 6, "directions": 2, "octaves": 4}, "paper": {}}
    seeds = {"desk": 3, "paper": 3}
    minutes = {"smoke": 0.1, "desk": 1, "paper": 1}
    notes = {"desk": "the paper proves it and measures nothing; network and data are ours."}

    width: int = 16
    layers: int = 3
    examples: int = 500
    steps: int = 1_000
    rate: float = 3e-3
    directions: int = 8
    low: float = 1e4
    high: float = 1e6
    octaves: int = 8

    def cost(self) -> Cost:
        """Steps of the training, and one per direction."""
        return Cost(self.steps + 2 * self.directions, 0.002, 400)

    def run(self, lab: Lab) -> None:
        """Train, enumerate, transform."""
        points, labels = disk(self.examples, lab.generator("data"))
        data = points, 2 * labels.float()[:, None] - 1
        model = common_network(lab, 2, self.width, self.layers)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.rate)
        train(model, Minibatches(data, None, lab.seed), squared_error, optimizer, self.steps, lab=lab)
        partition = enumerate_regions(model.double().eval(), BOX)
        lab.log("partition", regions=partition.n_regions)
        transform = NetworkTransform(partition, border=False)
        angles = np.pi * torch.rand(self.directions, generator=lab.generator("angles")).double().numpy()
        chosen = {KINDS[0]: np.c_[np.cos(angles), np.sin(angles)], KINDS[1]: self._normals(partition)}
        triples = [
            (kind, n, direction) for kind, directions in chosen.items() for n, direction in enumerate(directions)
        ]
        for kind, number, direction in lab.loop(triples, "directions"):
            told = decay_along(partition, direction)
            slope = envelope_slope(transform, direction, self.low, self.high, self.octaves)
            lab.log("decay", kind=kind, direction=direction.tolist(), exponent=told.exponent, slope=-slope)
            if number == 0:
                t = np.geomspace(1, self.high, 2_000)
                peaks = np.abs(transform(t[:, None] * direction)).reshape(40, -1).max(1)
                lab.log("curve", kind=kind, t=t.reshape(40, -1)[:, 25].tolist(), size=peaks.tolist())

    def _normals(self, partition: Partition) -> Array:
        """Unit normals of the walls with the largest jump times length, `(directions, 2)`."""
        walls = walls_of(partition)
        corners = partition.complex.corners[walls.parts.corners]
        lengths = np.bincount(walls.parts.owners, np.linalg.norm(corners[:, 1] - corners[:, 0], axis=1))
        weight = np.where(partition.complex.walls >= 0, np.abs(walls.jumps) * lengths, 0.0)
        return walls.normals[np.argsort(-weight)[: self.directions]]

    def measure(self, results: Results, seed: int) -> dict[str, float | str]:
        """All from the log."""
        found: dict[str, float | str] = {}
        for kind, name, power in zip(KINDS, ("any", "normal"), (3.0, 2.0), strict=True):
            table = results.table("decay", kind=kind, seed=seed)
            if not len(table):
                found |= dict.fromkeys((f"SB-11-{name}", f"SB-11-{name}-told"), "the run was cut short")
                continue
            found[f"SB-11-{name}"] = float(np.abs(table["slope"] - power).max())
            found[f"SB-11-{name}-told"] = float(np.abs(table["exponent"] - power).max())
        return found

    def draw(self, results: Results) -> Iterator[Picture]:
        """The transform along one direction of each kind, and all slopes."""
        figure, ((left, right),) = panels(2)
        seed = results.seeds[0]
        for kind, power, color in zip(KINDS, (3, 2), PALETTE, strict=False):
            for row in results.table("curve", kind=kind, seed=seed).rows:
                t, size = np.array(row["t"]), np.array(row["size"])
                left.loglog(t, size, ".-", color=color, markersize=3, linewidth=1, label=kind)
                left.loglog(t[20:], size[-1] * (t[20:] / t[-1]) ** -power, ":", color=GRAY)
            slopes = [row["slope"] for row in results.table("decay", kind=kind).rows]
            right.plot(slopes, np.linspace(0, 1, len(slopes)), "o", color=color, label=kind, alpha=0.7)
        for power in (2, 3):
            right.axvline(power, color=GRAY, linestyle=":")
        right.set_yticks([])
        label(left, "frequency", "largest magnitude around it", "along one direction each")
        label(right, "measured exponent", "directions and seeds", "all directions")
        legend_below(left, 2)
        legend_below(right, 2)
        yield Picture(
            "decay",
            figure,
            "The exact Fourier transform of a network trained on the disk. Left: its magnitude (the largest around every "
            "frequency) along a random direction and along the normal of a wall between two regions; dotted the powers -3 and "
            "-2. Right: exponents fitted at high frequencies, all directions and seeds.",
        )
