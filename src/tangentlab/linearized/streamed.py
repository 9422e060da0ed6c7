"""Leading eigenpairs of the tangent kernel from streamed rows of the Jacobian, where no Gram matrix fits.

The rows of a batch are written out once per pass and used for a whole block of vectors: a pass costs as many backward passes as
the model has outputs, whatever the size of the block. The search starts from the rows of a few examples, whose leading right
singular vectors are close to those of all, and from some random directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from tangentlab.engine.batches import common_length, parts_of, take_examples, tensor_of
from tangentlab.engine.memory import require_memory
from tangentlab.engine.network import Network, Options, spelled_out
from tangentlab.engine.rows import RowChunk, Rows
from tangentlab.engine.weightings import Unweighted
from tangentlab.errors import InputError, NumericsError
from tangentlab.files import make_folder, read_state, write_state
from tangentlab.kernels.eigenpairs import GramPairs, signed_pairs
from tangentlab.linalg import BlockKrylov, LeftPairs, random_rows, safe_eigh
from tangentlab.objects.maps import written_rows
from tangentlab.objects.storage import checksum

ROWS_AT_ONCE = 128 << 20
"""Bytes of written-out gradients at a time."""
ROWS_PER_START = 6
"""Rows of the Jacobian to start from, per vector of the block."""


@spelled_out
def streamed_eigenpairs(
    model: nn.Module,
    loader: Any,
    k: int,
    *,
    block: int | None = None,
    tolerance: float = 1e-2,
    passes: int = 12,
    folder: str | Path | None = None,
    generator: torch.Generator | None = None,
    **options: Unpack[Options],
) -> GramPairs:
    """The k leading eigenpairs of `K = J J^T` over all outputs, without K and without J.

    Args:
        model: in evaluation mode.
        loader: the data in a fixed order and in batches, as for `tangentlab.NTK`.
        k: pairs wanted; fewer are found where the rank is smaller.
        block: vectors per pass; twice k by default.
        tolerance: the largest `|K u - s u| / s` allowed; true residuals, to which the last pass is spent.
        passes: after which the search gives up with a NumericsError.
        folder: where every pass is kept, so that a search that was interrupted goes on; it belongs to this model, these data
            and these options, and is refused for others.
        generator: of the random directions among those at the start.
        options: as in `tangentlab.NTK`.

    Cost: some four passes for 1e-2. Each is one forward, one backward per output, the rows (as much again), and `4 block`
    operations per entry of the Jacobian. Memory: `(passes + 2) block (n c + d)` numbers and `ROWS_AT_ONCE`.
    """
    if k < 1 or passes < 2 or not tolerance > 0 or (block is not None and block < k):
        raise InputError("The arguments must have k >= 1, block >= k, passes >= 2 and tolerance > 0.")
    rows = Rows(Network.of(model, **options), loader, Unweighted(), ordered=True)
    examples, outputs = rows.sizes()
    width, size = rows.network.layout.numel, min(2 * k if block is None else block, examples * outputs)
    itemsize = next(iter(rows.network.parameters().values())).element_size()
    numbers = (min(passes, 6) + 2) * size * (examples * outputs + width)
    require_memory(
        itemsize * (numbers + ROWS_PER_START * size * width),
        f"A search for {k} singular vectors of a Jacobian ({examples * outputs:,} x {width:,}) in blocks of {size}",
        "A smaller k or block= needs less; layers= a part of the parameters, too.",
    )
    kept = _Kept(folder, rows, {"k": k, "block": size, "examples": examples, "outputs": outputs})
    with rows.frozen():
        search = kept.search()
        if search is None:
            search = BlockKrylov(_start(rows, examples, outputs, size, generator))
        found = _searched(search, rows, (outputs, examples), k, tolerance, passes, kept)
    if not len(found.values):
        raise InputError("The Jacobian is zero: it has no singular vectors.")
    message = f"block Krylov: {search.steps} passes with blocks of {size} over {examples:,} examples"
    return signed_pairs(found.values, found.vectors, found.residual_norms, True, message)


def _searched(
    search: BlockKrylov, rows: Rows, shape: tuple[int, int], k: int, tolerance: float, passes: int, kept: _Kept
) -> LeftPairs:
    """Pass after pass until the residuals are small enough."""
    while True:
        found = search.pairs(k)
        if found is not None and (search.exhausted or bool((found.relative_residuals <= tolerance).all())):
            return found
        if search.steps >= passes:
            worst = float("inf") if found is None else float(found.relative_residuals.max())
            raise NumericsError(
                f"After {passes} passes the largest residual is {worst:.2g} of its eigenvalue and {tolerance:g} was asked for: "
                "raise passes= or block=, or loosen tolerance=."
            )
        search.advance(lambda block: _one_pass(rows, block, shape))
        kept.add(search)


def _one_pass(rows: Rows, block: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """`J V` as `(block, outputs * n)` and `J^T J V` as `(block, d)` for V `(block, d)`."""
    images = block.new_zeros((len(block), *shape))
    products = torch.zeros_like(block)
    output = first = examples = 0
    for chunk in rows:
        if chunk.first:
            output, first, examples = 0, first + examples, chunk.examples
        for start, part in _written(rows, chunk):
            flat = part.flatten(0, 1)
            image = block @ flat.T
            products.addmm_(image, flat)
            place = slice(first + start, first + start + part.shape[1])
            images[:, output : output + len(part), place] = image.unflatten(1, part.shape[:2])
        output += next(iter(chunk.factors.values())).outputs
    return images.flatten(1), products


def _written(rows: Rows, chunk: RowChunk) -> Iterator[tuple[int, Tensor]]:
    """(first example, rows (outputs, examples, d)) of a chunk, a few examples at a time."""
    layout = rows.network.layout
    outputs, itemsize = (max(getattr(one, name) for one in chunk.factors.values()) for name in ("outputs", "itemsize"))
    step = max(1, ROWS_AT_ONCE // (outputs * layout.numel * itemsize))
    for start in range(0, chunk.examples, step):
        stop = min(start + step, chunk.examples)
        yield (
            start,
            written_rows(layout, {group: factor.take_examples(start, stop) for group, factor in chunk.factors.items()}),
        )


def _start(rows: Rows, examples: int, outputs: int, block: int, generator: torch.Generator | None) -> Tensor:
    """The leading right singular vectors of the rows of a few examples, and some random directions, `(block, d)`.

    Examples that have nothing in common with those few would not be found without the random ones.
    """
    width, example = rows.network.layout.numel, next(iter(rows.network.parameters().values()))
    some = _spread(rows, examples, min(examples, -(-ROWS_PER_START * block // outputs)))
    random = generator if generator is not None else torch.Generator().manual_seed(0)
    count = max(2, block // 10) if some else block
    drawn = random_rows(count, width, dtype=example.dtype, device=example.device, generator=random) / width**0.5
    if not some:
        return drawn
    few = Rows(rows.network, some, Unweighted(), ordered=True)
    jacobian = torch.cat([part.flatten(0, 1) for chunk in few for _, part in _written(few, chunk)])
    values, turned = safe_eigh((jacobian @ jacobian.T).double())
    floor = 1e-10 * float(values[-1]) + torch.finfo(jacobian.dtype).tiny
    keep = (values > floor).nonzero().flatten()[-max(block - count, 1) :]
    return torch.cat([(turned[:, keep] / values[keep].sqrt()).T.to(jacobian) @ jacobian, drawn])


def _spread(rows: Rows, examples: int, wanted: int) -> list[Any]:
    """Batches of about `wanted` examples at equal distances; none where batches cannot be taken apart."""
    distance, place, found = max(1, examples // wanted), 0, []
    for batch in rows.batches:
        count = common_length(batch)
        if count is None:
            return []
        chosen = range(-place % distance, count, distance)
        if chosen:
            found.append(take_examples(batch, chosen))
        place += count
    return found


class _Kept:
    """The passes of a search in a folder: `pass-0.pt`, `pass-1.pt`, ..., each whole and with what it belongs to."""

    def __init__(self, folder: str | Path | None, rows: Rows, facts: dict[str, Any]) -> None:
        self._folder = None if folder is None else make_folder(Path(folder))
        self._owner = "" if folder is None else _fingerprint(rows, facts)

    def search(self) -> BlockKrylov | None:
        """The search as far as it has come, None where nothing is kept."""
        states: list[dict[str, Any]] = []
        while self._folder is not None and (path := self._folder / f"pass-{len(states)}.pt").exists():
            states.append(read_state(path, f"Delete it, and {path.parent} goes on from the passes before it."))
            if states[-1].pop("owner", None) != self._owner:
                raise InputError(
                    f"{path} belongs to another model, other data or other options: take another folder, or delete it."
                )
        return BlockKrylov.from_states(states) if states else None

    def add(self, search: BlockKrylov) -> None:
        """Keep the last pass."""
        if self._folder is not None:
            step = search.steps - 1
            state = {name: value.cpu().contiguous() for name, value in search.state(step).items()}
            write_state(self._folder / f"pass-{step}.pt", {"owner": self._owner, **state})


def _fingerprint(rows: Rows, facts: dict[str, Any]) -> str:
    """Of parameters, buffers, data and options. Cost: reading them once."""
    model = rows.network.model
    tensors = dict(model.state_dict())
    for number, batch in enumerate(rows.batches):
        tensors |= {f"batch {number} {place}": tensor_of(part) for place, part in enumerate(parts_of(batch))}
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return checksum({**facts, "layout": list(rows.network.layout.names)}, plain)
