"""A small GPT: language model, or classifier of sequences."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tangentlab.errors import InputError
from tangentlab.models.arguments import check_positive


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which each position sees itself and the earlier ones.

    Shapes:
        `(examples, positions, width)` to the same.
    """

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return `softmax(q k^T / sqrt(width / heads)) v`, per head, mixed by the projection."""
        heads = self.query_key_value(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Pre-norm transformer block: `x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, n_heads)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.activation = nn.GELU(approximate="tanh")
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of x."""
        x = x + self.attention(self.norm1(x))
        return x + self.contract(self.activation(self.expand(self.norm2(x))))


class GPT(nn.Module):
    """Decoder-only transformer with learned position embeddings, in the form and initialization of GPT-2.

    Weights are `N(0, 0.02^2)`, those that write into the residual stream divided by `sqrt(2 n_layers)`; biases are 0.

    Args:
        vocab_size: number of tokens.
        context: largest number of positions.
        n_layers: number of blocks.
        n_heads: attention heads per block.
        width: size of the residual stream.
        tied: the output layer shares the weight of the token embedding (language model only).
        n_classes: if given, the head classifies the mean over positions instead of predicting tokens.

    Shapes:
        `(examples, positions)` of token indices to `(examples, positions, vocab_size)`, or `(examples, n_classes)`.
    """

    def __init__(
        self,
        vocab_size: int,
        context: int,
        n_layers: int = 2,
        n_heads: int = 2,
        width: int = 32,
        tied: bool = False,
        n_classes: int | None = None,
    ) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, context=context, n_layers=n_layers, n_heads=n_heads, width=width)
        if width % n_heads:
            raise InputError(f"The argument width must be a multiple of n_heads, got {width} and {n_heads}.")
        if tied and n_classes is not None:
            raise InputError("A classifier has no output layer over tokens: tied=True needs n_classes=None.")
        self.context, self.pooled = context, n_classes is not None
        self.token = nn.Embedding(vocab_size, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, n_heads) for _ in range(n_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False) if n_classes is None else nn.Linear(width, n_classes)
        if tied:
            self.head.weight = self.token.weight
        self._initialize(n_layers)

    def _initialize(self, n_layers: int) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                into_stream = name.endswith(("attention.projection.weight", "contract.weight"))
                nn.init.normal_(parameter, 0.0, 0.02 / (2 * n_layers) ** 0.5 if into_stream else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the logits of the next token at each position, or of the classes."""
        n_positions = input_ids.shape[1]
        if n_positions > self.context:
            raise InputError(f"{n_positions} positions, but the context has {self.context}: shorten the sequences.")
        # Expanded so that the position embedding, like every other layer, has an example axis.
        positions = torch.arange(n_positions, device=input_ids.device).expand_as(input_ids)
        hidden = self.norm(self.blocks(self.token(input_ids) + self.position(positions)))
        return self.head(hidden.mean(1) if self.pooled else hidden)
