"""Probes: the fixed examples and outputs on which a recorder looks at a network, and what it sees there at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, Subset

from tangentlab.engine.batches import Batches, common_length, is_batch, labels_in, plain_batch, take_examples
from tangentlab.engine.feeding import moved
from tangentlab.engine.likelihood import Likelihood
from tangentlab.engine.network import Network, Options
from tangentlab.errors import InputError
from tangentlab.linearized.linearity import Observed, observed, representation_modules
from tangentlab.metrics import NTK
from tangentlab.objects.fmat import FMatDense
from tangentlab.recorder.clock import Clock
from tangentlab.recorder.likelihoods import are_classes, guessed, target_columns
from tangentlab.recorder.loaders import unmoved


@dataclass(frozen=True)
class Probe:
    """Examples of one kind ("train", "test"), in an order in which any first few are a smaller probe.

    Attributes:
        name: what its curves are called.
        batch: all its examples as one batch.
        examples: their number.
        labels: their targets, None where the batch has none.
    """

    name: str
    batch: Any
    examples: int
    labels: Tensor | None

    @classmethod
    def of(cls, name: str, data: Any, largest: int, generator: torch.Generator) -> Probe:
        """From a loader (its first batches), or a batch or a dataset, of which `largest` examples are drawn by chance."""
        _refuse_arrays(name, data)
        batches = Batches(_loader(data, largest, generator) if _is_dataset(data) else data)
        whole = next(iter(batches)) if len(batches) == 1 else _joined(batches, largest)
        whole = tuple(whole) if isinstance(whole, list) else whole
        _refuse_arrays(name, whole)
        count = common_length(whole)
        if count is None:
            raise InputError(f"The probe {name!r} must have its examples on the first axis of all its tensors.")
        order = torch.randperm(count, generator=generator)[:largest].tolist()
        batch = take_examples(whole, order)
        return cls(name, batch, len(order), labels_in(batch))

    def part(self, examples: int, device: torch.device) -> Any:
        """The first examples, where the model is."""
        some = take_examples(self.batch, range(min(examples, self.examples)))
        return moved(some, device)


def _is_dataset(data: Any) -> bool:
    """Whether single examples are asked for by number, as of a `torch.utils.data.Dataset`."""
    return isinstance(data, Dataset) and hasattr(data, "__len__") and not (is_batch(data) or isinstance(data, Iterable))


def _loader(data: Any, largest: int, generator: torch.Generator) -> DataLoader[Any]:
    """Some examples of a dataset, drawn by chance, as one batch."""
    chosen = torch.randperm(len(data), generator=generator)[:largest].tolist()
    return DataLoader(Subset(data, chosen), batch_size=max(len(chosen), 1))


def _refuse_arrays(name: str, data: Any) -> None:
    """Arrays of numpy would be taken for something to iterate over."""
    leaves = tree_leaves(plain_batch(data)) if isinstance(data, tuple | list | Mapping) else [data]
    if any(isinstance(leaf, np.ndarray) for leaf in leaves):
        raise InputError(f"The probe {name!r} holds numpy arrays: give tensors, as from torch.from_numpy(array).")


def _joined(batches: Batches, largest: int) -> Any:
    """Batches of a loader put together until there are enough examples."""
    found: list[Any] = []
    count = 0
    for batch in batches:
        found.append(batch)
        count += common_length(batch) or 0
        if count >= largest:
            break
    if isinstance(found[0], list):
        found = [tuple(batch) for batch in found]
    try:
        return found[0] if len(found) == 1 else tree_map(lambda *parts: torch.cat(parts), found[0], *found[1:])
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"The batches of a probe do not fit together ({error}): give one batch with all its examples."
        ) from None


@dataclass
class View:
    """One probe at one moment of training; kernels are computed when they are first asked for.

    Attributes:
        name: of the probe.
        model: the network, in eval mode.
        options: how to call it and which parameters to look at, as in `tangentlab.NTK`.
        batch: the examples, `n` of them.
        outputs: indices of the flattened outputs looked at, `c` of them.
        step: updates done.
        generator: source of randomness, the same stream at the same step.
        memory: what a measure wants to find again at the next snapshot; kept in checkpoints.
        clock: where the time of the kernels is noted.
        likelihood: what the labels are to the outputs, with classes on the last axis; None without labels.
    """

    name: str
    model: nn.Module
    options: Options
    batch: Any
    outputs: list[int]
    step: int
    generator: torch.Generator
    memory: dict[str, Any] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    likelihood: Likelihood | None = None

    @classmethod
    def of(cls, model: nn.Module, batch: Any, name: str = "probe") -> View:
        """All outputs of all examples of a batch, to take measures without a recorder: `spectrum(View.of(model, (x, y)))`."""
        options, labels = Options(progress=False), labels_in(batch)
        shape = Network.of(model, **options).values(batch).shape[1:]
        like = None if labels is None else guessed([labels], shape)
        return cls(name, model, options, batch, list(range(shape.numel())), 0, torch.Generator(), likelihood=like)

    @cached_property
    def layer_kernels(self) -> dict[str, FMatDense]:
        """The kernel `(c, n, c, n)` of every layer, from one pass."""
        with self.clock.on("kernels"):
            kernels: dict[str, FMatDense] = NTK(
                self.model, self.batch, outputs=self.outputs, per_layer=True, **self.options
            )
        return kernels

    @cached_property
    def kernel(self) -> FMatDense:
        """The tangent kernel `(c, n, c, n)`: the sum over layers."""
        with self.clock.on("kernels"):
            parts = [kernel.data for kernel in self.layer_kernels.values()]
            total = parts[0].clone()
            for part in parts[1:]:
                total += part
        return FMatDense(total)

    @cached_property
    def seen(self) -> Observed:
        """What one forward pass shows; the representation is the input of the last linear layer, else the output."""
        network = Network.of(self.model, **self.options)
        linear = any(isinstance(module, nn.Linear) for module in self.model.modules())
        modules = representation_modules(self.model, "last_linear" if linear else "outputs")
        return observed(self.model, self.batch, modules, lambda _, batch: network(batch))

    @property
    def logits(self) -> Tensor:
        """The model's output `(n, ...)`, classes last."""
        return self.seen.outputs

    @property
    def labels(self) -> Tensor | None:
        """Targets of the examples, None where there are none."""
        return labels_in(self.batch)

    @cached_property
    def targets(self) -> Tensor | None:
        """The targets as values of the outputs looked at, `(n, c)`."""
        if self.labels is None:
            return None
        return target_columns(self.labels, self.logits.shape[1:], self.outputs, self.likelihood)


def choose_outputs(
    shape: torch.Size,
    labels: Tensor | None,
    largest: int,
    generator: torch.Generator,
    likelihood: Likelihood | None = None,
) -> list[int]:
    """Outputs to look at, in an order in which any first few are fewer: drawn by chance.

    Of token or pixel classifiers only those that are the label of some example: nothing aligns with the others.
    """
    if labels is not None and len(shape) > 1 and are_classes(labels, shape, likelihood):
        flat = labels.reshape(len(labels), -1).cpu()
        places = torch.arange(flat.shape[1]) * shape[-1] + flat
        useful = places[(flat >= 0) & (flat < shape[-1])].unique()
        return useful[torch.randperm(len(useful), generator=generator)[:largest]].tolist() if len(useful) else [0]
    return torch.randperm(shape.numel(), generator=generator)[:largest].tolist()


def make_probes(probes: Any, largest: int, seed: int) -> dict[str, Probe]:
    """One `Probe` per name, drawn with one seed."""
    if not isinstance(probes, Mapping) or not probes or not all(isinstance(name, str) for name in probes):
        raise InputError(
            'The argument probes must be a dict of data by name, such as {"train": (x, y), "test": test_loader}.'
        )
    bad = [name for name in probes if not name or "/" in name]
    if bad:
        raise InputError(f"The name of a probe must not be empty or hold a slash: {bad}.")
    generator = torch.Generator().manual_seed(seed)
    with unmoved(probes.values()):
        return {name: Probe.of(name, data, largest, generator) for name, data in probes.items()}
