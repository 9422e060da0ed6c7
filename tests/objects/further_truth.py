"""The slow, obvious truth of quasi-diagonal matrices, SUA and per-example Kronecker sums, by loops over units and pixels."""

import numpy as np
import torch
from torch import Tensor, nn

from tangentlab.testing import truth
from tangentlab.testing.small_models import Case, case_of


def units(case: Case) -> list[tuple[list[int], int]]:
    """(flat places of the weights of a row, flat place of its bias) of every output unit with both, module by module."""
    found = []
    slices = truth.slices_of(case.model)
    shared = [id(p) for module in case.model.modules() for p in module._parameters.values() if p is not None]
    for name, module in case.model.named_modules():
        keys = f"{name}.weight" if name else "weight", f"{name}.bias" if name else "bias"
        kinds = nn.Linear | nn.Conv2d | nn.LayerNorm | nn.BatchNorm1d
        if not isinstance(module, kinds) or not all(key in slices for key in keys):
            continue
        if shared.count(id(module.weight)) > 1:
            continue
        rows = module.bias.numel()
        places = torch.arange(slices[keys[0]].start, slices[keys[0]].stop).reshape(rows, -1)
        found += [(row.tolist(), slices[keys[1]].start + unit) for unit, row in enumerate(places)]
    return found


def arrow(case: Case, full: Tensor) -> Tensor:
    """The diagonal, and the entries between a bias and the weights of its row."""
    result = torch.diag(full.diagonal())
    for weights, bias in units(case):
        result[weights, bias] = full[weights, bias]
        result[bias, weights] = full[bias, weights]
    return result


def ollivier(case: Case, full: Tensor) -> Tensor:
    """The arrow, and c_i c_j / m_0 between two weights of a row."""
    result = arrow(case, full)
    for weights, bias in units(case):
        for i in weights:
            for j in weights:
                if i != j:
                    result[i, j] = full[i, bias] * full[bias, j] / full[bias, bias]
    return result


def quasi_diagonal(name: str) -> Tensor:
    """Ollivier's form of a small model's Fisher matrix."""
    return ollivier(case_of(name), truth.exact(name))


def pixel_moments(case: Case, layer: nn.Conv2d, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and second moment of the input's pixels, channels of one group, over all examples and sites."""
    seen: list[Tensor] = []
    hook = layer.register_forward_hook(lambda module, args, out: seen.append(args[0].detach()))
    case.model(case.inputs)
    hook.remove()
    channels = layer.in_channels // layer.groups
    pixels = [
        image[group * channels : (group + 1) * channels, i, j].numpy()
        for image in seen[0]
        for i in range(image.shape[1])
        for j in range(image.shape[2])
    ]
    return np.mean(pixels, 0), np.mean([np.outer(p, p) for p in pixels], 0)


def sua_factor(case: Case, layer: nn.Conv2d, group: int, positions: int, centred: bool) -> np.ndarray:
    """A from uncorrelated pixels: columns (channel, tap), then the bias."""
    mean, second = pixel_moments(case, layer, group)
    taps, channels = layer.weight[0, 0].numel(), len(mean)
    size = channels * taps + 1
    a = np.zeros((size, size))
    for c in range(channels):
        for d in range(channels):
            for s in range(taps):
                for t in range(taps):
                    uncorrelated = mean[c] * mean[d] if centred else 0.0
                    a[c * taps + s, d * taps + t] = second[c, d] if s == t else uncorrelated
        a[c * taps : (c + 1) * taps, -1] = a[-1, c * taps : (c + 1) * taps] = mean[c] if centred else 0.0
    a[-1, -1] = 1
    return positions * a


def sua_basis(case: Case, layer: nn.Conv2d, group: int, centred: bool) -> np.ndarray:
    """Orthonormal eigenvectors of `sua_factor` as columns: channels turned, taps left alone or their mean split off.

    All taps (all but their mean) share one eigenspace, so the basis is part of the definition.
    """
    mean, second = pixel_moments(case, layer, group)
    taps, channels = layer.weight[0, 0].numel(), len(mean)
    turn, head, tail = np.eye(taps), np.eye(channels + 1), second
    head[:-1, :-1] = second
    if centred:
        normal = np.eye(taps)[0] - np.full(taps, taps**-0.5)
        turn = np.eye(taps) - 2 * np.outer(normal, normal) / (normal @ normal)
        tail = second - np.outer(mean, mean)
        seen = np.append(taps**0.5 * mean, 1.0)
        head = np.pad(tail, (0, 1)) + np.outer(seen, seen)
    columns = [np.append(np.outer(u[:-1], turn[:, 0]).flatten(), u[-1]) for u in np.linalg.eigh(head)[1].T]
    for mode in range(1, taps):
        columns += [np.append(np.outer(u, turn[:, mode]).flatten(), 0.0) for u in np.linalg.eigh(tail)[1].T]
    return np.stack(columns, 1)


def second_moments(data: list[tuple[Tensor, Tensor]], group: int, u_a: np.ndarray, u_b: np.ndarray) -> Tensor:
    """(U_B x U_A) diag(s*) (U_B x U_A)^T, s* = E[(U_B^T G U_A)^2]."""
    scale = np.zeros((u_b.shape[0], u_a.shape[0]))
    for inputs, grads in data:
        for label in grads:
            whole = sum(np.outer(g, v) for g, v in zip(label[group].numpy(), inputs[group].numpy()))
            scale += (u_b.T @ whole @ u_a) ** 2 / len(data)
    basis = np.kron(u_b, u_a)
    return torch.from_numpy((basis * scale.flatten()) @ basis.T)


def sua(name: str, centred: bool, corrected: bool) -> Tensor:
    """KFAC or EKFAC of the convolution of a small model with SUA's input factor, plain KFAC or EKFAC for the rest."""
    case = case_of(name)
    result = truth.kronecker(name, corrected)
    (layer,) = [one for one in case.recipe.kron if isinstance(case.model.get_submodule(one.modules[0]), nn.Conv2d)]
    module = case.model.get_submodule(layer.modules[0])
    data = truth.layer_data(case, layer)
    b = truth.kronecker_factors(data, "expand")[1]
    positions, columns = data[0][0].shape[1:]
    index = truth.flat_index(case, layer, b.shape[-1], columns, module.groups, False)
    for group in range(module.groups):
        if corrected:
            u_b = np.linalg.eigh(b[group].numpy())[1]
            block = second_moments(data, group, sua_basis(case, module, group, centred), u_b)
        else:
            a = sua_factor(case, module, group, positions, centred)
            block = torch.from_numpy(np.kron(b[group].numpy(), a))
        truth.place(result, index[group], block)
    return result
