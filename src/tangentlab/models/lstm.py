"""Recurrent classifier of sequences."""

import torch
from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.models.arguments import check_positive


class LSTMClassifier(nn.Module):
    """LSTM over a sequence of tokens or feature vectors, then a dense layer on the last hidden state.

    Args:
        n_classes: number of outputs.
        hidden: size of the hidden state.
        vocab_size: number of tokens, for sequences of token indices.
        input_size: size of the token embedding, or of the feature vectors if `vocab_size` is not given.
        n_layers: stacked LSTM layers.
        bidirectional: read the sequence in both directions; the dense layer then sees both final states.

    Shapes:
        tokens `(examples, positions)`, or features `(examples, positions, input_size)`, to `(examples, n_classes)`.
    """

    def __init__(
        self,
        n_classes: int = 2,
        hidden: int = 64,
        vocab_size: int | None = None,
        input_size: int = 32,
        n_layers: int = 1,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        check_positive(n_classes=n_classes, hidden=hidden, input_size=input_size, n_layers=n_layers)
        self.embedding: nn.Embedding | None = None
        if vocab_size is not None:
            check_positive(vocab_size=vocab_size)
            self.embedding = nn.Embedding(vocab_size, input_size)
        self.lstm = nn.LSTM(input_size, hidden, n_layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(hidden * (2 if bidirectional else 1), n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of sequences."""
        expected = 3 if self.embedding is None else 2
        if x.dim() != expected:
            kind = "features (examples, positions, input_size)" if expected == 3 else "tokens (examples, positions)"
            raise InputError(f"Expected {kind}, got a tensor of shape {tuple(x.shape)}.")
        features = x if self.embedding is None else self.embedding(x)
        _, (states, _) = self.lstm(features)
        last = torch.cat(tuple(states[-2:]), dim=1) if self.lstm.bidirectional else states[-1]
        return self.head(last)
