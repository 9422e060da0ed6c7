"""Regions of one network in a cube by relucent: weights from a file, JSON on the last line. Runs in relucent's environment."""

import json
import sys
import time

import numpy as np
import relucent
import torch
from torch import nn


def main(path: str, radius: float, cap: float) -> None:
    stored = np.load(path)
    layers: list[nn.Module] = []
    for number in range(len(stored.files) // 2):
        weight, bias = stored[f"weight{number}"], stored[f"bias{number}"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)
        layers += [layer, nn.ReLU()]
    network = nn.Sequential(*layers[:-1]).double()
    complex = relucent.Complex(network)
    start = torch.full((1, layers[0].in_features), 0.013 * radius, dtype=torch.float64)  # on no hyperplane
    began = time.perf_counter()
    result = complex.bfs(
        start, max_polys=cap, nworkers=1, cube_radius=radius, cube_mode="intersect", verify=False, verbose=0
    )
    seconds = time.perf_counter() - began
    print(json.dumps({"regions": len(complex), "seconds": seconds, "complete": bool(result.complete)}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
