"""Preconditioners that treat each layer separately: which sides it gets, and when each part is brought up to date."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from tangentlab.engine.groups import Group
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError, ModelError
from tangentlab.layers import Matrix, OuterSum
from tangentlab.objects.pmat import PMatEKFAC, PMatKFAC
from tangentlab.objects.pmat.kronecker import KronBlock
from tangentlab.optim.hyperparameters import Schedule, check_choice, check_period, check_schedule, value_at
from tangentlab.optim.layer_block import BlockOptions, LayerBlock
from tangentlab.optim.method import Gradients
from tangentlab.optim.preconditioner import Preconditioner
from tangentlab.optim.refresh import refresh_sides
from tangentlab.optim.sides import RunningChannels, RunningDense, RunningDiagonal, RunningSide
from tangentlab.optim.start import DECAY, EARLY, bases_cost_too_much, diagonal_options
from tangentlab.optim.sums import Sample
from tangentlab.optim.thin import RunningThin


class BlockPreconditioner(Preconditioner):
    """One `LayerBlock` per parameter group, with the periods, averages and options that all variants share.

    Args:
        model: the network.
        block: how the blocks work.
        period: n, steps between new eigenbases (or inverses).
        warm_up: before step n, renew them at steps 1, 2, 4, 8, ... as well: at the start of a training the curvature
            changes by orders of magnitude within a few steps, and a basis of step 0 makes them diverge. Counted in
            steps of the training, not of a layer that is first called late.
        gentle_start: with a warm-up, a network whose bases cost more than a fifth of a step's own passes (and more than
            0.1 s) begins with running diagonals for all layers, until the first renewal from step 10 on (see `optim.start`).
        factor_period: steps between measurements of A and B; by default `period`, so that a basis is that of the batch it
            is computed on, as in Algorithm 1.
        factor_decay: weight of the old A and B at a measurement (0: the newest batch alone, 1: never forget).
        scale_decay: the same for the scale s, at every step. alpha.
        refresh: "eigh", or "qr" for one orthogonal-iteration step per refresh between full eigendecompositions.
        eigh_every: with "qr", every how many refreshes the eigendecomposition is full.
        order: "update first" (statistics of a batch act on its own gradient, as in Algorithm 1) or "precondition first".
        sua: convolutions with spatially uncorrelated activations.
        factor_limit: a side with more entries than this keeps only its diagonal.
        block_limit: the same for layers without Kronecker structure (norms, lone biases), whose block is a full matrix.
        separate_weight_and_bias: a block for the weight and one for the bias of a layer, each with its own second moments
            and zero between them, in place of one for [W | b]; that of the bias is a full matrix.
        options: of `Preconditioner`.
    """

    def __init__(
        self,
        model: nn.Module,
        block: BlockOptions,
        *,
        period: int = 1,
        warm_up: bool = True,
        gentle_start: bool = True,
        factor_period: int | None = None,
        factor_decay: Schedule = 0.0,
        scale_decay: Schedule = 0.0,
        refresh: str = "eigh",
        eigh_every: int = 10,
        order: str = "update first",
        sua: bool = False,
        factor_limit: int = 8192,
        block_limit: int = 1024,
        separate_weight_and_bias: bool = False,
        **options: Any,
    ) -> None:
        check_period("period", period)
        check_period("factor_period", period if factor_period is None else factor_period)
        check_period("eigh_every", eigh_every)
        for name, decay in (("factor_decay", factor_decay), ("scale_decay", scale_decay)):
            check_schedule(name, decay, high=1.0)
        check_choice("refresh", refresh, ("eigh", "qr"))
        check_choice("order", order, ("update first", "precondition first"))
        block.check()
        self.block_options, self.period, self.factor_period = block, period, factor_period or period
        self.warm_up, self.gentle_start, self.starting = warm_up, gentle_start, False
        self._awaited: set[Group] = (
            set()
        )  # not called at the end of the running diagonals: their bases come when they are
        self.factor_decay, self.scale_decay = factor_decay, scale_decay
        self.refresh, self.eigh_every, self.order, self.sua = refresh, eigh_every, order, sua
        self.factor_limit, self.block_limit = factor_limit, block_limit
        self.separate_weight_and_bias = separate_weight_and_bias
        self.refreshes = 0
        self._due: tuple[list[LayerBlock], float, float] = [], 1.0, 1.0  # blocks, gain, examples: after the gradients
        self.blocks: dict[Group, LayerBlock] = {}
        super().__init__(model, **options)
        self.blocks = {group: self._block(group, group.sites[0].matrix) for group in self.groups}

    def _treated(self, groups: Sequence[Group]) -> list[Group]:
        if self.separate_weight_and_bias:
            groups = [part for group in groups for part in group.separated()]
        return super()._treated(groups)

    def _refusal(self, group: Group) -> str:
        if reason := super()._refusal(group):
            return reason
        forms = [site.matrix for site in group.sites]
        if len({form.gradients for form in forms}) > 1:
            return "tied between layers whose inputs and outputs meet on the same side (embedding and output layer)"
        if len({form.shape for form in forms}) > 1:
            return "tied between layers that see it as matrices of different shapes"
        size = sum(self.parameters[name].numel() for name in group.names)
        if self.block_options.rowwise and size > self.block_limit:
            raise InputError(
                f"A full block of {group.name} would be {size} x {size}, above block_limit={self.block_limit}: raise the "
                "limit, leave the layer out with layers=, or use KFAC or EKFAC."
            )
        return ""

    def _block(self, group: Group, matrix: Matrix) -> LayerBlock:
        parameters = [self.parameters[name] for name in group.names]
        size, several = sum(p.numel() for p in parameters), len(parameters) > 1
        options = self._options
        if options.rowwise or (several and not matrix.structured):
            options, matrix, several = replace(options, rowwise=True), Matrix.vector(size), False
        return LayerBlock(group, parameters, matrix, *self._sides(matrix, bias=several), options)

    @property
    def _options(self) -> BlockOptions:
        """How blocks work now."""
        return diagonal_options(self.block_options) if self.starting else self.block_options

    def _sides(self, matrix: Matrix, bias: bool) -> tuple[RunningSide, RunningSide]:
        _, rows, columns = matrix.shape
        if not self._options.factors:
            return RunningDiagonal(rows), RunningDiagonal(columns + bias)
        if not matrix.structured:
            return (RunningDense(rows) if rows <= self.block_limit else RunningDiagonal(rows)), RunningDiagonal(1)
        small = rows <= self.factor_limit and not matrix.one_hot
        left = RunningDense(rows) if small else RunningDiagonal(rows)
        if self.sua and matrix.taps is not None:
            return left, RunningChannels(columns // matrix.taps, matrix.taps, bias)
        size, thin = columns + bias, self.block_options.thin and matrix.gradients == "left"
        if size > self.factor_limit:
            return left, RunningDiagonal(size)
        return left, RunningThin(size) if thin else RunningDense(size)

    def _fit(self, group: Group, outer: OuterSum) -> None:
        """Make the block anew if the gradients have another form than the layer's rule announced."""
        block = self.blocks[group]
        if block.options.rowwise or block.announced.describes(outer):
            block.confirmed = True
        elif block.left.statistic is not None or self.processes.size > 1:
            raise ModelError(
                f"The gradients of {group.name} are {outer.matrix_shape} matrices with output-gradients on the "
                f"{outer.gradients}, not {block.announced.shape} and {block.announced.gradients} as its rule says: "
                "register the layer with matrix=."
            )
        else:
            self.blocks[group] = self._block(group, Matrix.of(outer))

    def _begins(self, outputs: dict[Group, list[tuple[int, ...]]]) -> None:
        """In the first forward pass: whether to begin with running diagonals."""
        apt = self.warm_up and self.block_options.factors and not self.block_options.rowwise and self.period > EARLY
        if self.steps == 0 and not self.starting and self.gentle_start and apt and self.processes.size == 1:
            self._start(bases_cost_too_much(self.blocks, outputs))

    def _start(self, starting: bool) -> None:
        """Make all blocks anew, as running diagonals or as what they are to be, if they are not that already."""
        if starting != self.starting:
            self.starting = starting
            self._awaited = set() if starting else {group for group, block in self.blocks.items() if block.ready}
            self.blocks = {group: self._block(group, block.announced) for group, block in self.blocks.items()}

    def _is_refresh(self, step: int) -> bool:
        if self.starting and step < EARLY:
            return False
        early = self.warm_up and step < self.period and step.bit_count() == 1
        return self.block_options.factors and (early or step % self.period == 0)

    def _measures_factors(self, step: int) -> bool:
        measured = step % self.factor_period == 0 and not self.starting
        return self.block_options.factors and (measured or self._is_refresh(step))

    def _wants(self, step: int) -> bool:
        self._awaited = {g for g in self._awaited if g not in self.passed and not self.blocks[g].based}
        return self._options.scale == "per_example" or self._measures_factors(step) or bool(self._awaited)

    def _collect(self, samples: dict[Group, list[Sample]], examples: int) -> None:
        self._start(False)  # statistics are read at this step
        per_example, factors = self.block_options.scale == "per_example", self._measures_factors(self.steps)
        for group, found in samples.items():
            if not self.blocks[group].confirmed:
                self._fit(group, found[0].outer(0, 1))
            block = self.blocks[group]
            block.flattened |= not all(sample.by_example for sample in found)
            new_basis = self._is_refresh(self.steps) or not block.based
            block.collect(
                found, factors=factors or not block.based, squares=per_example, keep=per_example and new_basis
            )

    def _clear(self) -> None:
        for block in self.blocks.values():
            block.clear()

    def _finite(self) -> bool:
        return all(block.collected_is_finite() for block in self.blocks.values())

    def _present(self) -> list[LayerBlock]:
        """Blocks of which this step has seen something, in any process."""
        blocks = [self.blocks[group] for group in self.groups]
        seen = self.processes.totals([float(block.seen) for block in blocks])
        return [block for block, times in zip(blocks, seen, strict=True) if times > 0]

    def _update(self, gain: float, examples: float) -> None:
        """What is due: now, or with "precondition first" after the gradients, except for blocks that have nothing yet."""
        present = self._reached() if self._wants(self.steps) else []
        later = [block for block in present if self.order == "precondition first" and block.ready]
        self._bring_up_to_date([block for block in present if block not in later], gain, examples)
        self._due = (later, gain, examples)

    def _reached(self) -> list[LayerBlock]:
        """Blocks of which this step has statistics; none are missed by gradients that are zero."""
        present = self._present()
        if not present and any(bool(grad.any()) for grads in self._gradients().values() for grad in grads):
            raise ModelError(
                "The gradients did not come through a forward and backward pass of the modules: statistics are due at this "
                "step and there are none. Call the model and loss.backward() between steps."
            )
        return present

    def _bring_up_to_date(self, blocks: Sequence[LayerBlock], gain: float, examples: float) -> None:
        """Second moments, basis (or inverse), per-example scale, each where it is due."""
        if not blocks:
            return
        late = [block for block in blocks if not block.based]  # layers that are called for the first time
        self._measure(blocks if self._measures_factors(self.steps) else late, gain, examples)
        self._refresh(blocks if self._is_refresh(self.steps) else late)
        if self.block_options.scale == "per_example":
            self._rescale(blocks, gain, examples)

    def _measure(self, blocks: Sequence[LayerBlock], gain: float, examples: float) -> None:
        if not self.block_options.factors or not blocks:
            return
        decay = value_at(self.factor_decay, self.steps)
        self.processes.sum_(*(total for block in blocks for total in block.factor_sums(gain)))
        counts = self.processes.totals([float(block.rows) for block in blocks])
        for block, rows in zip(blocks, counts, strict=True):
            block.update_factors(examples, rows, decay)

    def _refresh(self, blocks: Sequence[LayerBlock]) -> None:
        if not blocks:
            return
        if self.block_options.inverse == "cholesky":
            for block in blocks:
                block.invert(self.epsilon)
            return
        old = [(block.left.basis, block.right.basis) for block in blocks]
        method = "eigh" if self.refresh == "eigh" or self.refreshes % self.eigh_every == 0 else "qr"
        refresh_sides([side for block in blocks for side in (block.left, block.right)], method, self.processes)
        for block, bases in zip(blocks, old, strict=True):
            block.rebase(bases)
        self.refreshes += 1

    def _rescale(self, blocks: Sequence[LayerBlock], gain: float, examples: float) -> None:
        decay = value_at(self.scale_decay, self.steps)
        self.processes.sum_(*(block.square_sums(gain) for block in blocks))
        for block in blocks:
            block.update_scale(examples, decay)

    def _natural(self, gradients: Gradients, weight: float) -> Gradients:
        decay = DECAY if self.starting else value_at(self.scale_decay, self.steps)
        epsilon, running, first = self.epsilon, self._options.scale == "batch", self.order == "update first"
        natural: Gradients = {}
        for group, grads in gradients.items():
            block = self.blocks[group]
            if not block.ready:
                continue
            matrix = block.matrix(grads)
            if not running:
                natural[group] = block.tensors(block.natural(matrix, epsilon))
                continue
            half, rotated = block.turned(matrix)
            if first or block.scale is None:
                block.track(rotated, weight, decay)
            natural[group] = block.tensors(block.natural_from(half, rotated, epsilon))
            if not first:
                block.track(rotated, weight, decay)
        self._bring_up_to_date(*self._due)
        return natural

    def quadratic(self, step: dict[str, Tensor]) -> float:
        """d^T F d, summed over the blocks that are ready."""
        total = 0.0
        for group, block in self.blocks.items():
            if group not in self.passed and block.ready and all(name in step for name in group.names):
                total += float(block.quadratic(block.matrix([step[name] for name in group.names])))
        return total

    def as_pmat(self) -> PMatKFAC | PMatEKFAC:
        """The approximation of F that the next gradient meets, on the parameters that are treated."""
        blocks = {group.names: block.as_pmat_block() for group, block in self.blocks.items() if block.ready}
        names = {name for group_names in blocks for name in group_names}
        layout = LayerCollection(spec for spec in self.layout if spec.name in names)
        kron = all(isinstance(block, KronBlock) for block in blocks.values())
        kind: Any = PMatKFAC if kron else PMatEKFAC
        return kind(layout, blocks, likelihood=f"{self.curvature.kind}, {self.name}")

    def _treatment(self, group: Group) -> str:
        block = self.blocks[group]
        groups, rows, columns = block.form.shape
        what = f"{rows} x {columns + block.form.bias} ({block.left.kind} x {block.right.kind})"
        what += ", positions count as examples" if block.flattened else ""
        what += ", until the first bases" if self.starting else ""
        return what if groups == 1 else f"{groups} groups of {what}"

    def _state(self) -> dict[str, Any]:
        forms = {group.name: asdict(block.announced) for group, block in self.blocks.items()}
        blocks = {group.name: block.state() for group, block in self.blocks.items()}
        awaited = [group.name for group in self.groups if group in self._awaited]
        start = {"starting": self.starting, "awaited": awaited}
        return {"refreshes": self.refreshes, "blocks": blocks, "forms": forms, **start}

    def _load(self, state: dict[str, Any]) -> None:
        if set(state["blocks"]) != {group.name for group in self.blocks}:
            raise InputError("This state has other layers than the preconditioner it is loaded into.")
        self._start(state.get("starting", False))
        self._awaited = {group for group in self.blocks if group.name in state.get("awaited", ())}
        for group, block in self.blocks.items():
            form = state.get("forms", {}).get(group.name)
            if form is not None and Matrix(**form) != block.announced:  # another one was found in gradients
                block = self.blocks[group] = self._block(group, Matrix(**form))
            block.load(_moved(state["blocks"][group.name], block.parameters[0].device))
        self.refreshes = state["refreshes"]


def _moved(state: Any, device: torch.device) -> Any:
    """A copy of nested states, on a device."""
    if isinstance(state, dict):
        return {key: _moved(value, device) for key, value in state.items()}
    return state.to(device, copy=True) if isinstance(state, Tensor) else state
