"""Residual networks, with batch norm or without it and with the initialization that replaces it."""

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack

from torch import Tensor, nn

from tangentlab.errors import InputError
from tangentlab.models.arguments import Activation, check_positive, make_activation
from tangentlab.models.init import HE, LAST_OF_BLOCK, LECUN, fan_in_normal_


def _conv(fan_in: int, fan_out: int, kernel: int, stride: int, norm: bool) -> nn.Conv2d:
    """Return a convolution that keeps the image size at stride 1; it has a bias unless a norm follows it."""
    return nn.Conv2d(fan_in, fan_out, kernel, stride, padding=kernel // 2, bias=not norm)


def _norm(channels: int, norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm else nn.Identity()


class ResidualBlock(nn.Module):
    """`x -> s(skip(x) + branch(x))`, a branch of convolutions with the activation `s` between them.

    Modules carry the names of torchvision's (`conv1`, `bn1`, ..., `downsample.0`), so that its weights load.

    Args:
        in_channels: channels of x.
        plan: `(channels, kernel, stride)` of each convolution of the branch.
        norm: batch norm after each convolution, or convolutions with biases.
        activation: a name or a module class.
    """

    def __init__(
        self, in_channels: int, plan: Sequence[tuple[int, int, int]], norm: bool, activation: Activation
    ) -> None:
        super().__init__()
        self.depth = len(plan)
        channels, total_stride = in_channels, 1
        for place, (fan_out, kernel, stride) in enumerate(plan, start=1):
            self.add_module(f"conv{place}", _conv(channels, fan_out, kernel, stride, norm))
            self.add_module(f"bn{place}", _norm(fan_out, norm))
            self.add_module(f"act{place}", make_activation(activation))
            channels, total_stride = fan_out, total_stride * stride
        self.downsample: nn.Sequential | None = None
        if total_stride != 1 or channels != in_channels:
            self.downsample = nn.Sequential(_conv(in_channels, channels, 1, total_stride, norm), _norm(channels, norm))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's activations, `(examples, channels, height / stride, width / stride)`."""
        branch = x
        for place in range(1, self.depth + 1):
            branch = self.get_submodule(f"bn{place}")(self.get_submodule(f"conv{place}")(branch))
            if place < self.depth:
                branch = self.get_submodule(f"act{place}")(branch)
        skip = x if self.downsample is None else self.downsample(x)
        return self.get_submodule(f"act{self.depth}")(skip + branch)


class ResNetOptions(TypedDict, total=False):
    """Arguments that all depths share; `ResNet` explains them."""

    base: int
    norm: bool
    stem: Literal["cifar", "imagenet"]
    in_channels: int
    activation: Activation
    zero_init_residual: bool


class ResNet(nn.Module):
    """Residual network of He et al. (2016): a stem, stages of blocks, a global average and one dense layer.

    Stage k has `base * 2^k` channels (four times that at its output with bottleneck blocks) and all but the first halve
    the image. Without norm every convolution has a bias and `initialize_without_norm_` sets the scale of the weights;
    with norm, convolutions are He-normal.

    Args:
        depths: number of blocks of each stage.
        n_classes: number of outputs.
        bottleneck: blocks of a 1x1, a 3x3 and a 1x1 convolution instead of two 3x3.
        base: channels of the first stage.
        norm: batch norm, or none.
        stem: `"cifar"`: 3x3, stride 1; `"imagenet"`: 7x7, stride 2, and max pooling.
        in_channels: channels of the images.
        activation: a name or a module class.
        zero_init_residual: start the scale of each block's last batch norm at 0, so that blocks start as their skip.

    Shapes:
        `(examples, in_channels, height, width)` to `(examples, n_classes)`.
    """

    def __init__(
        self,
        depths: Sequence[int],
        n_classes: int = 10,
        bottleneck: bool = False,
        base: int = 64,
        norm: bool = True,
        stem: Literal["cifar", "imagenet"] = "cifar",
        in_channels: int = 3,
        activation: Activation = "relu",
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        check_positive(n_classes=n_classes, base=base, in_channels=in_channels)
        if stem not in ("cifar", "imagenet"):
            raise InputError(f"The argument stem is 'cifar' or 'imagenet', got {stem!r}.")
        if zero_init_residual and not norm:
            raise InputError("The argument zero_init_residual acts on the batch norms, which norm=False leaves out.")
        self.conv1 = _conv(in_channels, base, 3, 1, norm) if stem == "cifar" else _conv(in_channels, base, 7, 2, norm)
        self.bn1 = _norm(base, norm)
        self.act1 = make_activation(activation)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        channels = base
        self.stages: list[str] = []
        for stage, depth in enumerate(depths):
            width, blocks = base * 2**stage, []
            for place in range(depth):
                stride = 2 if stage > 0 and place == 0 else 1
                plan = [(width, 3, stride), (width, 3, 1)]
                if bottleneck:
                    plan = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
                blocks.append(ResidualBlock(channels, plan, norm, activation))
                channels = plan[-1][0]
            self.stages.append(f"layer{stage + 1}")
            self.add_module(self.stages[-1], nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, n_classes)
        if norm:
            initialize_with_norm_(self, zero_init_residual)
        else:
            initialize_without_norm_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return self.fc(self.avgpool(x).flatten(1))


def initialize_with_norm_(model: ResNet, zero_init_residual: bool = False) -> None:
    """Set He-normal convolutions and, if asked for, blocks whose last batch norm has scale 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_in_normal_(module, HE)
        elif isinstance(module, ResidualBlock) and zero_init_residual:
            nn.init.zeros_(module.get_parameter(f"bn{module.depth}.weight"))


def initialize_without_norm_(model: ResNet) -> None:
    """Initialize a residual network that has no normalization (George et al. 2018, appendix A.3).

    With n the fan-in and all biases 0: a layer directly preceded by a ReLU has `W ~ N(0, 2/n)`; one that is not (the
    stem, the convolution of a skip connection, the dense layer after the average) `W ~ N(0, 1/n)`; the last convolution
    of each block `W ~ N(0, 0.2/n)`, so that a block multiplies the variance by at most about 1.2.
    """
    for layer in (model.conv1, model.fc):
        fan_in_normal_(layer, LECUN)
    for block in model.modules():
        if isinstance(block, ResidualBlock):
            for place in range(1, block.depth + 1):
                last = place == block.depth
                fan_in_normal_(block.get_submodule(f"conv{place}"), LAST_OF_BLOCK if last else HE)
            if block.downsample is not None:
                fan_in_normal_(block.downsample[0], LECUN)


def ResNet18(n_classes: int = 10, **options: Unpack[ResNetOptions]) -> ResNet:
    """Return a `ResNet` of 8 two-convolution blocks in four stages."""
    return ResNet((2, 2, 2, 2), n_classes, **options)


def ResNet20(n_classes: int = 10, **options: Unpack[ResNetOptions]) -> ResNet:
    """Return the CIFAR `ResNet` of 9 two-convolution blocks in three stages, 16 channels in the first by default."""
    options.setdefault("base", 16)
    return ResNet((3, 3, 3), n_classes, **options)


def ResNet34(n_classes: int = 10, **options: Unpack[ResNetOptions]) -> ResNet:
    """Return a `ResNet` of 16 two-convolution blocks in four stages."""
    return ResNet((3, 4, 6, 3), n_classes, **options)


def ResNet50(n_classes: int = 10, **options: Unpack[ResNetOptions]) -> ResNet:
    """Return a `ResNet` of 16 bottleneck blocks in four stages."""
    return ResNet((3, 4, 6, 3), n_classes, bottleneck=True, **options)
