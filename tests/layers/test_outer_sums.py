"""Everything an OuterSum can do, against its rows, which other tests compare with autograd."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from tangentlab.layers import OuterSum, concatenate, contractions
from tangentlab.layers.contractions import Workspace
from tangentlab.layers.gram import gram
from tangentlab.testing import LayerCase, layer_case
from tangentlab.testing.layer_contract import cotangents_of, factors_of, groups_of, true_rows
from tests.layers.cases import CASES
from tests.pieces import in_small_pieces

SOME = [
    *list(CASES.values())[::4],
    layer_case(nn.Linear, 4, 3, shape=(3, 4)),
    layer_case(nn.Conv2d, 3, 4, 3, shape=(3, 3, 5, 6)),
]
each = pytest.mark.parametrize("one", {str(one): one for one in SOME}.values(), ids=str)


@pytest.fixture(params=["whole", "in small pieces"], autouse=True)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "whole":
        in_small_pieces(monkeypatch)


def sums(one: LayerCase) -> list[tuple[OuterSum, Tensor]]:
    """(factors, true rows) of every group of the layer."""
    layer, x = one.make()
    grads = cotangents_of(layer, x)
    return [(factors_of(layer, x, grads, g), true_rows(layer, x, grads, g)) for g in groups_of(layer)]


def close(found: Tensor, truth: Tensor) -> bool:
    return found.shape == truth.shape and bool((found - truth).abs().max() <= 1e-10 * max(truth.abs().max(), 1))


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@each
def test_rows_are_the_sum_over_positions_of_left_times_right(one: LayerCase) -> None:
    for factor, rows in sums(one):
        assert close(factor.rows(), rows)
        left = factor.left.expand(factor.outputs, -1, -1, -1, -1)
        right = factor.homogeneous().expand(factor.outputs, -1, -1, -1, -1)
        matrix = torch.einsum("kngto,kngti->kngoi", left, right)
        weight = matrix[..., :-1] if factor.bias else matrix
        flat = [weight.flatten(2), matrix[..., -1].flatten(2)] if factor.bias else [weight.flatten(2)]
        assert close(torch.cat(flat, -1), rows)


@each
def test_sizes_are_those_of_the_rows(one: LayerCase) -> None:
    for factor, rows in sums(one):
        assert (factor.outputs, factor.examples, factor.numel) == tuple(rows.shape)
        groups, height, width = factor.matrix_shape
        assert groups * height * (width + factor.bias) == factor.numel


@each
def test_push_and_pull_are_products_with_the_rows(one: LayerCase) -> None:
    for factor, rows in sums(one):
        v, u = draw(rows.shape[-1]), draw(*rows.shape[:2])
        assert close(factor.push(v), rows @ v)
        pulled = torch.einsum("knd,kn->d", rows, u)
        assert close(factor.pull(u), pulled)
        out = torch.full_like(pulled, torch.nan)
        factor.pull_into(out, u)
        assert close(out, pulled)
        factor.pull_into(out, u, add=True)
        assert close(out, 2 * pulled)


@pytest.mark.parametrize("cache", [1 << 20, 1])
@pytest.mark.parametrize(("cotangents", "length"), [(1, 7), (3, 7), (3, 5000), (9, 7)])
def test_products_by_example_do_not_depend_on_the_parts(
    cotangents: int, length: int, cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contractions, "CACHE_BYTES", cache)
    rows, vectors, weights = draw(cotangents, 4, length), draw(4, length), draw(cotangents, 4)
    assert close(contractions.products_by_example(rows, vectors), torch.einsum("knf,nf->kn", rows, vectors))
    assert close(contractions.sum_of_cotangents(rows, weights), torch.einsum("knf,kn->nf", rows, weights))
    shared = torch.einsum("nf,kn->nf", rows[0], weights)
    assert close(contractions.sum_of_cotangents(rows[:1], weights), shared)


@each
def test_square_sum_and_norms_are_those_of_the_rows(one: LayerCase) -> None:
    for factor, rows in sums(one):
        assert close(factor.square_sum(), rows.square().sum((0, 1)))
        assert close(factor.squared_norms(), rows.square().sum(-1))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cotangents", [1, 2])
def test_norms_by_pairs_of_positions_are_those_of_the_rows(
    cotangents: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight with more entries than pairs of positions; also where its gradients cancel over the positions."""
    left, right = draw(cotangents, 3, 1, 2, 40), draw(1, 3, 1, 2, 30)
    factor = OuterSum(left, right, bias=bias)
    squares = factor.rows().square().sum(-1)
    monkeypatch.setattr(OuterSum, "_squared_norms_of_rows", lambda *_: pytest.fail("rows were written out"))
    assert close(factor.squared_norms(), squares)
    monkeypatch.undo()
    left[:, 1, :, 1], right[:, 1, :, 1] = -left[:, 1, :, 0] * (1 + 1e-4), right[:, 1, :, 0]
    cancelling = OuterSum(left.float(), right.float(), bias=bias)
    truth = OuterSum(left.float().double(), right.float().double(), bias=bias).rows().square().sum(-1)
    assert torch.allclose(cancelling.squared_norms().double(), truth, rtol=1e-3, atol=0)


@each
def test_taking_examples_takes_rows(one: LayerCase) -> None:
    for factor, rows in sums(one):
        part = factor.take_examples(1, rows.shape[1])
        assert close(part.rows(), rows[:, 1:])
        assert (part.bias, part.gradients, part.kronecker) == (factor.bias, factor.gradients, factor.kronecker)


@each
def test_rows_are_written_into_a_part_of_a_larger_tensor(one: LayerCase) -> None:
    for factor, rows in sums(one):
        buffer = rows.new_full((*rows.shape[:2], rows.shape[2] + 5), torch.nan)
        factor.write_rows(buffer[..., 2:-3])
        assert close(buffer[..., 2:-3], rows)
        assert buffer[..., :2].isnan().all() and buffer[..., -3:].isnan().all()


@each
@pytest.mark.parametrize("count", [1, 2, 3])
def test_blocks_of_weight_gradients_hold_every_parameter_once(one: LayerCase, count: int) -> None:
    """Blocks differ in which rows or columns they hold, so their Gram matrices must add up to that of the whole."""
    for factor, rows in sums(one):
        groups, height, width = factor.matrix_shape
        weight = rows[..., : groups * height * width].flatten(0, 1)
        blocks = [
            block.flatten(2).expand(factor.outputs, -1, -1).flatten(0, 1) for block in _copied_blocks(factor, count)
        ]
        assert sum(block.shape[1] for block in blocks) == weight.shape[1]
        assert close(sum(block @ block.T for block in blocks), weight @ weight.T)


def _copied_blocks(factor: OuterSum, count: int) -> list[Tensor]:
    """A block lasts until the next is asked for."""
    return [block.clone() for block in factor.weight_row_blocks(count, Workspace(), "rows")]


@each
def test_joining_batches_puts_their_examples_side_by_side(one: LayerCase) -> None:
    for factor, rows in sums(one):
        parts = factor.take_examples(0, 1), factor.take_examples(1, rows.shape[1])
        joined = parts[0].join_examples(parts[1:])
        assert joined is not None
        assert close(joined.rows(), rows)


@each
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_covariances_are_sums_of_outer_products_over_positions_or_of_their_sums(one: LayerCase, sharing: str) -> None:
    for factor, _ in sums(one):
        for side in ("left", "right"):
            vectors = factor.left if side == "left" else factor.homogeneous()
            if sharing == "reduce":
                vectors = vectors.sum(3, keepdim=True)
                vectors = vectors if factor.gradients == side else vectors / factor.positions
            truth = torch.einsum("kngta,kngtb->gab", vectors, vectors)
            assert close(factor.side_covariance(side, sharing), truth)
            rows = factor.side_rows(side, sharing)
            assert close(rows.transpose(1, 2) @ rows, truth)
            assert rows.shape[1] == factor.side_rows_count(side, sharing)


@each
def test_rotated_squares_are_those_of_rotated_gradients(one: LayerCase) -> None:
    for factor, rows in sums(one):
        groups, height, width = factor.matrix_shape
        left = torch.linalg.qr(draw(groups, height, height))[0]
        right = torch.linalg.qr(draw(groups, width + factor.bias, width + factor.bias))[0]
        size = groups * height * width
        matrix = rows[..., :size].unflatten(-1, (groups, height, width))
        if factor.bias:
            matrix = torch.cat([matrix, rows[..., size:].unflatten(-1, (groups, height, 1))], -1)
        truth = (left.transpose(1, 2) @ matrix @ right).square().sum((0, 1))
        assert close(factor.rotated_square_sum(left, right), truth)
        assert close(factor.rotated_square_sum(left[..., :1], right[..., :1]), truth[:, :1, :1])


@each
@pytest.mark.parametrize("route", [None, "rows", "product", "positions"])
def test_gram_matrices_by_every_route_are_products_of_rows(one: LayerCase, route: str | None) -> None:
    for factor, rows in sums(one):
        if route == "product" and factor.positions > 1:
            continue
        other = factor.take_examples(0, 2)
        truth = torch.einsum("knd,lmd->knlm", rows, rows)
        traced = torch.einsum("knkm->nm", truth)
        assert close(gram(factor, factor, route=route), truth)
        assert close(gram(factor, other, route=route), truth[..., :2])
        assert close(gram(factor, factor, trace=True, route=route), traced)
        assert close(gram(factor, other, trace=True, route=route), traced[:, :2])


@each
def test_concatenating_calls_adds_their_rows(one: LayerCase) -> None:
    for factor, rows in sums(one):
        joined = concatenate([factor, factor, factor.take_examples(0, rows.shape[1])])
        assert close(joined.rows(), 3 * rows)
        assert close(joined.square_sum(), 9 * rows.square().sum((0, 1)))
        assert joined.positions == 3 * factor.positions
        assert joined.kronecker == factor.kronecker


@each
def test_a_group_in_closed_form_and_one_written_out_have_a_gram_matrix(one: LayerCase) -> None:
    for factor, rows in sums(one):
        written = OuterSum.explicit(rows)
        truth = torch.einsum("knd,lmd->knlm", rows, rows)
        assert close(gram(factor, written), truth)
        assert close(gram(written, factor), truth)
        assert close(gram(factor, written, trace=True), torch.einsum("knkm->nm", truth))


def tied_embedding() -> tuple[OuterSum, Tensor]:
    """An embedding and an output layer over one weight: gradients on the left of one, on the right of the other."""
    embedding, tokens = layer_case(nn.Embedding, 5, 3, padding_idx=1, shape=(4, 2), tokens=5).make()
    head, hidden = layer_case(nn.Linear, 3, 5, bias=False, shape=(4, 2, 3)).make()
    parts = [(layer, x, cotangents_of(layer, x)) for layer, x in ((embedding, tokens), (head, hidden))]
    rows = sum(true_rows(*part, ("weight",)) for part in parts)
    assert isinstance(rows, Tensor)
    return concatenate([factors_of(*part, ("weight",)) for part in parts]), rows


def test_an_embedding_tied_to_the_output_layer_is_the_sum_of_both_uses_in_every_operation() -> None:
    factor, rows = tied_embedding()
    assert factor.gradients == "both"
    assert not factor.kronecker
    v, u = draw(rows.shape[-1]), draw(*rows.shape[:2])
    truth = torch.einsum("knd,lmd->knlm", rows, rows)
    assert close(factor.rows(), rows)
    assert close(factor.push(v), rows @ v)
    assert close(factor.pull(u), torch.einsum("knd,kn->d", rows, u))
    assert close(factor.square_sum(), rows.square().sum((0, 1)))
    assert close(factor.squared_norms(), rows.square().sum(-1))
    assert close(gram(factor, factor), truth)
    assert close(gram(factor, factor, trace=True), torch.einsum("knkm->nm", truth))
    assert close(factor.take_examples(1, 3).rows(), rows[:, 1:3])


def test_uses_that_see_the_weight_in_different_shapes_are_written_out() -> None:
    grouped, x = layer_case(nn.Conv1d, 4, 4, 3, groups=2, bias=False, shape=(3, 4, 6)).make()
    full, y = layer_case(nn.Conv1d, 2, 4, 3, bias=False, shape=(3, 2, 5)).make()
    parts = [(layer, z, cotangents_of(layer, z)) for layer, z in ((grouped, x), (full, y))]
    joined = concatenate([factors_of(*part, ("weight",)) for part in parts])
    assert close(joined.rows(), sum(true_rows(*part, ("weight",)) for part in parts))  # type: ignore[arg-type]
    assert not joined.kronecker


def test_batches_of_other_sizes_of_images_are_not_joined() -> None:
    layer, x = layer_case(nn.Conv1d, 2, 3, 3, shape=(2, 2, 6)).make()
    factors = [factors_of(layer, z, cotangents_of(layer, z), ("weight",)) for z in (x, x[..., :5])]
    assert factors[0].join_examples(factors[1:]) is None


@pytest.mark.parametrize("outputs", [(2, 2), (1, 2), (2, 1)])
@pytest.mark.parametrize("bytes_at_once", [1, 3 * 2 * 4 * 5 * 8, 1 << 20])
def test_squares_of_products_do_not_depend_on_how_many_are_made_at_once(
    monkeypatch: pytest.MonkeyPatch, outputs: tuple[int, int], bytes_at_once: int
) -> None:
    monkeypatch.setattr(contractions, "_SQUARES_BYTES", bytes_at_once)
    left, right = draw(outputs[0], 7, 2, 3, 4), draw(outputs[1], 7, 2, 3, 5)
    gradients = torch.einsum("kngtr,kngtc->kngrc", left.expand(2, *left.shape[1:]), right.expand(2, *right.shape[1:]))
    assert close(contractions.square_sum_of_products(left, right), gradients.square().sum((0, 1)))
    basis = draw(2, 5, 3)
    found = contractions.square_sum_of_products(left, right, lambda product: product @ basis)
    assert close(found, (gradients @ basis).square().sum((0, 1)))


@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.Linear(4, 3, bias=False), nn.Embedding(5, 3)], ids=str)
def test_a_layer_that_nothing_reaches_has_gradients_of_zero_in_every_form(layer: nn.Module) -> None:
    """An expert without tokens: no positions."""
    layer, embedding = layer.double(), isinstance(layer, nn.Embedding)
    x = torch.zeros(2, 0, dtype=torch.long) if embedding else draw(2, 0, 4)
    for group in groups_of(layer):
        factor = factors_of(layer, x, draw(3, 2, 0, 3), group)
        size = sum(dict(layer.named_parameters())[name].numel() for name in group)
        rows = torch.zeros(3, 2, size, dtype=torch.float64)
        assert close(factor.rows(), rows)
        assert close(factor.square_sum(), rows[0, 0]) and close(factor.squared_norms(), rows[..., 0])
        assert close(factor.push(draw(size)), rows[..., 0]) and close(factor.pull(draw(3, 2)), rows[0, 0])
        assert close(gram(factor, factor), rows.new_zeros(3, 2, 3, 2)) and close(
            gram(factor, factor, trace=True), rows.new_zeros(2, 2)
        )
        for side, sharing in product(("left", "right"), ("expand", "reduce")):
            covariance = factor.side_covariance(side, sharing)
            gradient_side = factor.gradients == side
            assert torch.isfinite(covariance).all() and (not covariance.any() or not gradient_side)
        left, right = (
            torch.eye(n, dtype=torch.float64)[None] for n in (factor.left.shape[-1], factor.homogeneous().shape[-1])
        )
        assert not factor.rotated_square_sum(left, right).any()
