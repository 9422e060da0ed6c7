"""Layers of other libraries, of the same names and structure, for tests without these libraries."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Conv1D(nn.Module):
    """transformers.pytorch_utils.Conv1D: a linear layer with a weight (inputs, outputs)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], self.nf)


Conv1D.__module__ = "transformers.pytorch_utils"


class LoRALinear(nn.Module):
    """peft.tuners.lora.layer.Linear: a frozen linear layer, and A and B as linear layers by the name of their adapter."""

    def __init__(self, inputs: int, outputs: int, rank: int, adapter: str = "default") -> None:
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_dropout = nn.ModuleDict({adapter: nn.Identity()})
        self.lora_A = nn.ModuleDict({adapter: nn.Linear(inputs, rank, bias=False)})
        self.lora_B = nn.ModuleDict({adapter: nn.Linear(rank, outputs, bias=False)})
        self.lora_embedding_A, self.lora_embedding_B = nn.ParameterDict(), nn.ParameterDict()
        self.scaling = {adapter: 2.0}

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        for adapter, A in self.lora_A.items():
            result = result + self.lora_B[adapter](A(self.lora_dropout[adapter](x))) * self.scaling[adapter]
        return result
