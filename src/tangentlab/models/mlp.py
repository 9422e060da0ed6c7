"""Multi-layer perceptron."""

from collections.abc import Sequence

from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.models.arguments import Activation, check_positive, make_activation


class MLP(nn.Module):
    """Fully connected network `x -> W_L s(... s(W_1 x + b_1) ...) + b_L`, without an activation at the end.

    The parameters keep PyTorch's default initialization; `fan_in_normal_` gives the others.

    Args:
        widths: sizes of all layers, input and output included: `(784, 256, 10)` has one hidden layer.
        activation: a name (`"relu"`, `"tanh"`, ...) or a module class.
        bias: whether the layers have biases.

    Shapes:
        `(examples, *)` with `widths[0]` entries per example, flattened, to `(examples, widths[-1])`.
    """

    def __init__(self, widths: Sequence[int], activation: Activation = "relu", bias: bool = True) -> None:
        super().__init__()
        if len(widths) < 2:
            raise InputError(f"The argument widths needs at least an input and an output size, got {tuple(widths)}.")
        check_positive(**{f"widths[{place}]": width for place, width in enumerate(widths)})
        modules: list[nn.Module] = []
        for fan_in, fan_out in zip(widths[:-1], widths[1:], strict=True):
            modules += [nn.Linear(fan_in, fan_out, bias=bias), make_activation(activation)]
        self.layers = nn.Sequential(*modules[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        return self.layers(x.flatten(1))
