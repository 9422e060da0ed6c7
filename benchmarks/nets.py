"""The networks of the benchmark, in plain torch: modules only, nothing in place, no module used twice.

They stand here rather than in tangentlab so that every worker can build them in an environment without tangentlab.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn


def mlp(width: int = 1024, depth: int = 3, inputs: int = 784, outputs: int = 10) -> nn.Module:
    """`inputs - width x depth - outputs` with ReLU and biases."""
    sizes = [inputs] + [width] * depth
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


def small(width: int = 32, inputs: int = 32, outputs: int = 10) -> nn.Module:
    """One hidden layer, `inputs - width - outputs`: a network whose arithmetic takes no time."""
    return mlp(width, 1, inputs, outputs)


def lenet(width: int = 6, outputs: int = 10) -> nn.Module:
    """LeNet-5 on `(1, 28, 28)`: two 5x5 convolutions with max pooling, then 400-120-84-outputs."""
    return nn.Sequential(
        nn.Conv2d(1, width, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, outputs),
    )


class BasicBlock(nn.Module):
    """`relu(conv(relu(conv(x))) + shortcut(x))`, without normalization; a 1x1 convolution where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        same = stride == 1 and channels_in == channels_out
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels_in, channels_out, 1, stride)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return self.relu2(self.conv2(self.relu1(self.conv1(x))) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet18 for 32 x 32 images without normalization: 3x3 stem, 4 stages of 2 blocks, biases; 11.17 M parameters."""

    def __init__(self, width: int = 64, outputs: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.relu = nn.ReLU()
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(4):
            for block in range(2):
                blocks.append(BasicBlock(channels, width * 2**stage, 2 if stage and not block else 1))
                channels = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(channels, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, `(examples, outputs)`."""
        return self.head(self.flatten(self.pool(self.blocks(self.relu(self.stem(x))))))


class TransformerBlock(nn.Module):
    """Pre-norm attention, causal or not, and MLP; it is written out, so that every system can differentiate it."""

    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1 = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU(approximate="tanh")
        self.contract = nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        """Self-attention of `(examples, positions, width)`."""
        parts = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if self.causal:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(hidden, -1e9)
        weights = scores.softmax(-1)
        return self.projection((weights @ value).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of x."""
        x = x + self.attend(self.norm1(x))
        return x + self.contract(self.gelu(self.expand(self.norm2(x))))


class Transformer(nn.Module):
    """Classifier of token sequences: embeddings, blocks, mean over positions, an untied linear head."""

    def __init__(
        self,
        width: int = 256,
        layers: int = 4,
        heads: int = 4,
        vocabulary: int = 1000,
        tokens: int = 32,
        outputs: int = 10,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits, `(examples, outputs)`."""
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        hidden = self.norm(self.blocks(self.token(ids) + self.position(positions)))
        return self.head(hidden.mean(1))


class GPT(nn.Module):
    """Language model: embeddings, causal blocks, logits of the next token at every position; 8.3 M parameters."""

    def __init__(
        self, width: int = 256, layers: int = 4, heads: int = 4, vocabulary: int = 10_000, tokens: int = 128
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits, `(examples, positions, vocabulary)`."""
        positions = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
        return self.head(self.norm(self.blocks(self.token(ids) + self.position(positions))))


class ViT(nn.Module):
    """Vision transformer for 32 x 32 images: 64 patches by a convolution, blocks, mean over patches; 2.7 M parameters."""

    def __init__(self, width: int = 192, layers: int = 6, heads: int = 3, outputs: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.position = nn.Embedding(64, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, causal=False) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, `(examples, outputs)`."""
        patches = self.patches(x).flatten(2).transpose(1, 2)
        positions = torch.arange(patches.shape[1], device=x.device).expand(patches.shape[:2])
        return self.head(self.norm(self.blocks(patches + self.position(positions))).mean(1))


NETS = {
    "mlp": mlp,
    "small": small,
    "lenet": lenet,
    "resnet18": ResNet18,
    "transformer": Transformer,
    "gpt": GPT,
    "vit": ViT,
}
TOKENS = {"transformer": (1000, 32), "gpt": (10_000, 128)}
"""Vocabulary and positions of the networks that read tokens, where the options do not say otherwise."""


def build(name: str, options: dict, weights: dict[str, np.ndarray] | None = None) -> nn.Module:
    """The named network in evaluation mode, with its own initialization or the given weights (by parameter name)."""
    model = NETS[name](**options).eval()
    if weights is not None:
        model.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in weights.items()})
    return model


def draw_inputs(name: str, options: dict, n: int, generator: torch.Generator) -> Tensor:
    """Random inputs of the named network: white noise, or uniform token indices."""
    if name in TOKENS:
        vocabulary, tokens = TOKENS[name]
        shape = (n, options.get("tokens", tokens))
        return torch.randint(options.get("vocabulary", vocabulary), shape, generator=generator)
    images = {"lenet": (1, 28, 28), "resnet18": (3, 32, 32), "vit": (3, 32, 32)}
    shape = images.get(name) or (options.get("inputs", 32 if name == "small" else 784),)
    return torch.randn(n, *shape, generator=generator)


def factored_layers(name: str, model: nn.Module) -> list[str]:
    """The layers that KFAC is asked for: linear and convolutional ones, of the GPT those of its blocks."""
    prefix = "blocks." if name == "gpt" else ""
    layers = [key for key, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    return [key for key in layers if key.startswith(prefix)]
