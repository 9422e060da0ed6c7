"""Examples on other axes than the first, on none, or in several inputs; outputs of every rank."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.animals.base import NO_FORM, animal, images, tokens


class SequenceFirst(nn.Module):
    """Examples on the second axis inside, and outside too when asked for."""

    def __init__(self, outside: bool) -> None:
        super().__init__()
        self.fc, self.norm, self.gru = nn.Linear(3, 4), nn.LayerNorm(4), nn.GRU(4, 3)
        self.head, self.outside = nn.Linear(3, 2), outside

    def forward(self, x: Tensor) -> Tensor:
        steps = self.norm(self.fc(x if self.outside else x.transpose(0, 1)))
        return self.head(self.gru(steps)[0].sin().sum(0))


_gru = dict.fromkeys(["gru.weight_ih_l0", "gru.weight_hh_l0", "gru.bias_ih_l0", "gru.bias_hh_l0"], f"{NO_FORM} GRU")
for _outside, _shape in ((False, (4, 5, 3)), (False, (4, 4, 3)), (True, (5, 4, 3)), (True, (4, 4, 3))):
    _label = f"SequenceFirst-{'outside' if _outside else 'inside'}-{'square' if _shape[0] == _shape[1] else 'oblong'}"
    animal(images(*_shape), _outside, name=_label, fallback=_gru)(SequenceFirst)


@animal(tokens(4, 3), 3, fallback={"position.weight": "no axis"})
@animal(tokens(4, 4), 4, name="PositionEmbedding-square", fallback={"position.weight": "no axis"})
class PositionEmbedding(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(5, 3, padding_idx=1), nn.Embedding(steps, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.token(x) + self.position(torch.arange(x.shape[1]))).tanh().sum(1))


@animal(images(4, 5, 3), fallback=dict.fromkeys(["fc.weight", "fc.bias"], "no axis"))
class TokensAsExamples(nn.Module):
    """Examples and steps folded into one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fc(x.flatten(0, 1)).tanh().unflatten(0, x.shape[:2]).sum(1))


@animal(lambda: {"left": torch.randn(4, 3), "right": torch.randn(4, 2), "labels": torch.arange(4)}, name="DictInput")
@animal(lambda: (torch.randn(4, 3), torch.randn(4, 2)), name="TwoInputs", forward=lambda model, batch: model(*batch))
class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.a(left).tanh() * self.b(right)


class OutputRank(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.conv, self.rank = nn.Conv2d(2, 3, 2), rank

    def forward(self, x: Tensor) -> Tensor:
        maps = self.conv(x).sin()
        return {1: maps.sum((1, 2, 3)), 2: maps.sum((2, 3)), 3: maps.sum(3), 4: maps}[self.rank]


for _rank in (1, 2, 3, 4):
    animal(images(3, 2, 4, 3), _rank, name=f"OutputRank-{_rank}")(OutputRank)
