"""The deep auto-encoder on which optimizers of neural networks are compared."""

from collections.abc import Sequence

from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.models.arguments import Activation, check_positive
from tangentlab.models.stack import dense_stack


class AutoEncoder(nn.Module):
    """Encoder 784-1000-500-250-30 and the mirrored decoder with its own weights (Hinton & Salakhutdinov 2006).

    The activation follows every layer of the encoder and all but the last of the decoder. The outputs are logits of
    pixels in [0, 1]: train with `binary_cross_entropy_with_logits`, or apply a sigmoid for a squared error.

    Args:
        widths: sizes from the input to the code.
        activation: a name or a module class.
        batch_norm: batch norm before each activation.
        linear_code: no activation (and no batch norm) on the code.

    Shapes:
        `(examples, *)` with `widths[0]` entries per example, flattened, to `(examples, widths[0])`.
    """

    def __init__(
        self,
        widths: Sequence[int] = (784, 1000, 500, 250, 30),
        activation: Activation = "sigmoid",
        batch_norm: bool = False,
        linear_code: bool = False,
    ) -> None:
        super().__init__()
        if len(widths) < 2:
            raise InputError(f"The argument widths needs at least an input and a code size, got {tuple(widths)}.")
        check_positive(**{f"widths[{place}]": width for place, width in enumerate(widths)})
        self.encoder = dense_stack(widths, activation, batch_norm, plain_end=linear_code)
        self.decoder = dense_stack(widths[::-1], activation, batch_norm, plain_end=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the reconstructed pixels."""
        return self.decoder(self.encoder(x.flatten(1)))
