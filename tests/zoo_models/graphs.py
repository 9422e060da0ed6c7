"""Networks of torch_geometric: nodes as examples, which see their neighbours, and graphs as examples, which do not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo_models.base import specimen

NODES, FEATURES, GRAPHS = 4, 3, 3


class Layers(nn.Module):
    """Two convolutions of a kind, then the mean over the nodes of every graph where it is asked for."""

    def __init__(self, kind: str, pooled: bool) -> None:
        super().__init__()
        from torch_geometric import nn as layers

        def convolution(width: int, out: int) -> nn.Module:
            if kind == "GINConv":
                return layers.GINConv(nn.Sequential(nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, out)))
            return getattr(layers, kind)(width, out)

        self.first, self.second, self.pooled = convolution(FEATURES, 5), convolution(5, 4), pooled
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        from torch_geometric.nn import global_mean_pool

        h = self.second(self.first(x, edge_index).relu(), edge_index)
        return self.head(global_mean_pool(h, batch) if self.pooled else h)


def graphs() -> Any:
    """Three graphs of different sizes as one."""
    from torch_geometric.data import Batch, Data

    def ring(nodes: int) -> Any:
        one = torch.arange(nodes)
        edges = torch.cat([torch.stack([one, (one + 1) % nodes]), torch.stack([(one + 1) % nodes, one])], 1)
        return Data(x=torch.randn(nodes, FEATURES), edge_index=edges)

    return Batch.from_data_list([ring(NODES + number) for number in range(GRAPHS)])


def call(model: nn.Module, batch: Any) -> Tensor:
    return model(batch["x"], batch["edge_index"], batch["batch"])


def _add(kind: str, pooled: bool) -> None:
    what = "graphs" if pooled else "nodes"

    @specimen("torch_geometric", f"{kind.removesuffix('Conv')}, outputs of {what}", forward=call)
    def make() -> tuple[nn.Module, Any]:
        data = graphs()
        return Layers(kind, pooled), {"x": data.x, "edge_index": data.edge_index, "batch": data.batch}


for _kind in ("GCNConv", "GATConv", "GINConv", "SAGEConv", "TransformerConv"):
    for _pooled in (False, True):
        _add(_kind, _pooled)
