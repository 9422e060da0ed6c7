"""Between the flat order of a layer's parameters and its matrices [W | b]."""

from __future__ import annotations

import torch
from torch import Tensor

from tangentlab.engine.layout import LayerCollection


class MatrixForm:
    """Between the flat order of a group, weight (groups, rows, columns) then bias, and matrices [W | b].

    inputs_left: the rows belong to the inputs and the columns to the output-gradients (embeddings, transposed convolutions).
    """

    def __init__(self, shape: tuple[int, int, int], bias: bool, inputs_left: bool = False) -> None:
        self.shape, self.bias, self.inputs_left = shape, bias, inputs_left
        groups, rows, columns = shape
        self.weight_size = groups * rows * columns
        self.dim = groups * rows * (columns + bias)

    def to_matrix(self, flat: Tensor) -> Tensor:
        """(B, dim) -> (B, groups, rows, columns + bias)."""
        weight = flat[..., : self.weight_size].unflatten(-1, self.shape)
        if not self.bias:
            return weight
        return torch.cat([weight, flat[..., self.weight_size :].unflatten(-1, (*self.shape[:2], 1))], -1)

    def to_flat(self, matrix: Tensor) -> Tensor:
        """The inverse."""
        if not self.bias:
            return matrix.flatten(-3)
        return torch.cat([matrix[..., :-1].flatten(-3), matrix[..., -1].flatten(-2)], -1)


def kronecker_forms(layout: LayerCollection) -> dict[tuple[str, ...], MatrixForm]:
    """[W | b] of every layer, from names and shapes alone: rows along the first axis of the weight."""
    forms: dict[tuple[str, ...], MatrixForm] = {}
    for names in layout.layers.values():
        shapes = {name.rpartition(".")[2]: layout.shapes[name] for name in names}
        weight, bias = shapes.get("weight", ()), shapes.get("bias")
        if set(shapes) == {"weight", "bias"} and len(weight) > 1 and bias == weight[:1]:
            ordered = tuple(sorted(names, key=lambda name: name.endswith("bias")))
            forms[ordered] = MatrixForm((1, weight[0], torch.Size(weight[1:]).numel()), bias=True)
            continue
        for name in names:
            shape = layout.shapes[name] or (1,)
            forms[(name,)] = MatrixForm((1, shape[0], torch.Size(shape[1:]).numel()), bias=False)
    return forms
