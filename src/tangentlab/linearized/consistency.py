"""C-scores: how often networks that never saw an example get it right (Jiang et al. 2021), read or estimated.

`C(x, y) = mean over sizes s of  mean over random subsets D of size s without (x, y) of  1[f(x; D) = y]`: near 1 for an
example that the others make easy, near 0 for one that contradicts them.
"""

from __future__ import annotations

import hashlib
import io
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor, nn

from tangentlab.data import Dataset
from tangentlab.engine.network import evaluated, require_finite
from tangentlab.engine.progress_bar import track
from tangentlab.errors import DataFileError, InputError
from tangentlab.files import make_folder, write_atomically
from tangentlab.models import LeNet5

_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
)
"""What numpy raises on files that are not what they seem."""


def read_c_scores(path: str | os.PathLike[str], labels: Tensor, *, rows: Tensor | None = None) -> Tensor:
    """Scores `(n,)` from the public file of Jiang et al. (`cifar10-cscores-orig-order.npz`, the order of the data files).

    Args:
        path: an npz file with `scores` and `labels`.
        labels: of the data at hand, `(n,)`; each must be the label of the same row of the file.
        rows: which rows of the file the data are; the first n by default.

    Raises:
        DataFileError: the file is not what its name says, or its labels are not those of the data: a score that belongs
            to another image is worse than none.
    """
    scores, found = _read_scores(Path(path))
    labels = torch.as_tensor(labels)
    if labels.ndim != 1:
        raise InputError(f"The labels are (n,), not {tuple(labels.shape)}.")
    chosen = torch.arange(len(labels)) if rows is None else torch.as_tensor(rows)
    if len(chosen) != len(labels) or len(chosen) == 0 or int(chosen.max()) >= len(scores) or int(chosen.min()) < 0:
        raise DataFileError(f"{path} has {len(scores)} rows, which do not cover the {len(labels)} examples asked for.")
    wrong = int((found[chosen] != labels).sum())
    if wrong:
        raise DataFileError(
            f"{path}: {wrong} of {len(labels)} labels differ from those of the data, so the scores belong to other "
            "images or to another order; pass rows= if the data are a subset, or estimate them by consistency_scores."
        )
    return scores[chosen]


def _read_scores(path: Path) -> tuple[Tensor, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as file:
            if not {"scores", "labels"} <= set(file.files):
                raise DataFileError(f"{path} holds {file.files}; a file of C-scores has 'scores' and 'labels'.")
            scores, labels = file["scores"].astype(np.float64), file["labels"].astype(np.int64)
    except DataFileError:
        raise
    except _DAMAGED as error:
        raise DataFileError(f"{path} cannot be read as an npz file of C-scores: {error}") from error
    if scores.shape != labels.shape or scores.ndim != 1 or not np.isfinite(scores).all():
        raise DataFileError(f"{path}: scores {scores.shape} and labels {labels.shape} must be two finite lists.")
    return torch.from_numpy(scores), torch.from_numpy(labels)


@dataclass(frozen=True)
class ConsistencyProfile:
    """Estimated C-scores of the n examples of a data set.

    Attributes:
        fractions: sizes of the training subsets, as shares of the data.
        profile: `(fractions, n)` share of right answers of the networks that did not see the example.
        held_out: `(fractions, n)` how many networks these were.
    """

    fractions: tuple[float, ...]
    profile: Tensor
    held_out: Tensor

    @property
    def scores(self) -> Tensor:
        """The mean over subset sizes, `(n,)`."""
        return self.profile.mean(0)

    @property
    def standard_errors(self) -> Tensor:
        """Of the scores, `(n,)`, from the binomial variance with one success and one failure added."""
        share = (self.profile * self.held_out + 1) / (self.held_out + 2)
        return (share * (1 - share) / self.held_out).sum(0).sqrt() / len(self.fractions)


@dataclass(frozen=True)
class ConsistencyRecipe:
    """How the networks of the estimate are trained: SGD with momentum on random subsets, the same for all.

    `networks` of them, as evenly as possible over the `fractions`.
    """

    networks: int = 40
    fractions: tuple[float, ...] = (0.5, 0.7)
    epochs: int = 12
    batch: int = 50
    rate: float = 0.01
    momentum: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.fractions or not all(0 < fraction < 1 for fraction in self.fractions):
            raise InputError(f"Fractions of the data lie between 0 and 1, got {self.fractions}.")
        if self.networks < len(self.fractions) or min(self.epochs, self.batch) < 1:
            raise InputError("Every fraction needs a network, and every network an epoch and a batch.")


def consistency_scores(
    data: Dataset,
    recipe: ConsistencyRecipe | None = None,
    *,
    make_model: Callable[[], nn.Module] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> ConsistencyProfile:
    """Estimate C-scores on `data` itself, from networks trained on random subsets and judged on the rest.

    Args:
        data: a classification task; `(n, channels, side, side)` images for the default network.
        recipe: numbers of networks and steps.
        make_model: a new network, drawn from torch's global random state; LeNet5 for the images by default.
        cache: folder for the result. The file's name holds a digest of data, recipe and network (its text, its first weights
            and its outputs on a few examples), so that other data or settings do not find it.
        progress: as in `tangentlab.NTK`.

    An example that no network of some size holds out is an error. Cost: `networks x epochs` passes over part of the data;
    nothing of torch's random state is changed.
    """
    recipe = recipe or ConsistencyRecipe()
    if len(data) < 2:
        raise InputError(f"C-scores compare examples with the others: {len(data)} are too few.")
    splits = [_split(len(data), recipe, number) for number in range(recipe.networks)]
    held_out = torch.zeros(len(recipe.fractions), len(data), dtype=torch.float64)
    for size, _, rest in splits:
        held_out[size, rest] += 1
    _require_held_out(held_out, recipe)
    classes = data.classes or int(data.targets.max()) + 1
    make = make_model or (lambda: LeNet5(data.inputs.shape[1], data.inputs.shape[-1], classes))
    file = None if cache is None else Path(cache) / f"consistency-{_digest(data, recipe, make)}.npz"
    if file is not None and file.exists():
        return ConsistencyProfile(recipe.fractions, _read_profile(file), held_out)
    right = torch.zeros_like(held_out)
    for number, (size, rows, rest) in enumerate(track(splits, "consistency scores", len(splits), progress)):
        right[size, rest] += _answers(data, rows, rest, recipe, make, number).double()
    result = ConsistencyProfile(recipe.fractions, right / held_out, held_out)
    if file is not None:
        make_folder(file.parent)
        buffer = io.BytesIO()
        np.savez(buffer, profile=result.profile.numpy())
        write_atomically(file, buffer.getvalue())
    return result


def _require_held_out(held_out: Tensor, recipe: ConsistencyRecipe) -> None:
    missing = int((held_out == 0).any(0).sum())
    if missing:
        raise InputError(
            f"{missing} examples were in every training subset of some size with networks={recipe.networks} and "
            f"fractions={recipe.fractions}: take more networks."
        )


def _read_profile(file: Path) -> Tensor:
    try:
        with np.load(file, allow_pickle=False) as found:
            return torch.from_numpy(found["profile"])
    except _DAMAGED as error:
        raise DataFileError(f"{file} is damaged ({error}): delete it, and the scores are estimated anew.") from error


def _split(n: int, recipe: ConsistencyRecipe, number: int) -> tuple[int, Tensor, Tensor]:
    """Of one network: which of the fractions it belongs to, rows to train on, and rows held out.

    Networks with the same fraction come in rounds in which their held-out parts are disjoint, so that a few of them hold out
    every example.
    """
    place, size = divmod(number, len(recipe.fractions))
    held_out = max(1, min(n - 1, n - round(recipe.fractions[size] * n)))
    turn, part = divmod(place, n // held_out)
    order = torch.randperm(n, generator=Generator().manual_seed(1_000_003 * recipe.seed + 1009 * size + turn))
    start, stop = part * held_out, (part + 1) * held_out
    return size, torch.cat([order[:start], order[stop:]]), order[start:stop].sort().values


def _answers(
    data: Dataset, rows: Tensor, rest: Tensor, recipe: ConsistencyRecipe, make: Callable[[], nn.Module], number: int
) -> Tensor:
    """Train one network on `rows`; whether it is right on each of `rest`."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(1_000_003 * recipe.seed + number)
        model = make().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=recipe.rate, momentum=recipe.momentum)
        for batch in _minibatches(rows, recipe):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(data.inputs[batch]), data.targets[batch]).backward()
            optimizer.step()
    model.eval()
    outputs = torch.cat([evaluated(partial(model, data.inputs[part])) for part in rest.split(500)])
    require_finite(outputs, f"The outputs of network {number} after training (rate={recipe.rate:g})")
    return outputs.argmax(1) == data.targets[rest]


def _minibatches(rows: Tensor, recipe: ConsistencyRecipe) -> Iterator[Tensor]:
    size = min(recipe.batch, len(rows))
    for _ in range(recipe.epochs):
        order = rows[torch.randperm(len(rows))]
        yield from (order[start : start + size] for start in range(0, len(order) - size + 1, size))


def _digest(data: Dataset, recipe: ConsistencyRecipe, make: Callable[[], nn.Module]) -> str:
    """16 letters that stand for the data, the recipe and the network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = make().eval()
        outputs = evaluated(lambda: model(data.inputs[:4]))
    parts: Sequence[Tensor] = (data.inputs, data.targets, outputs, *model.state_dict().values())
    summary = hashlib.sha256(f"{recipe} {model}".encode())
    for part in parts:
        summary.update(f"{part.dtype} {tuple(part.shape)}".encode())
        summary.update(part.detach().cpu().contiguous().numpy().tobytes())
    return summary.hexdigest()[:16]
