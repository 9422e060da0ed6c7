"""Every statement about neural-tangents, against its definitions written out.

The library itself needs jax and an old numpy, so it is compared in `benchmarks/`, in an environment of its own.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import tangentlab as tl
from tests.docs.coming_from.cases import NETWORKS, SINGLE, TOKENS, C, Case, N, T, case, covers, ours
from tests.docs.coming_from.test_curvlinops import close
from tests.engine.truth import dense_jacobian

SECTION = "neural-tangents"
each_network = pytest.mark.parametrize("network", NETWORKS)
each_single = pytest.mark.parametrize("network", SINGLE)


def jacobian(one: Case, x: Tensor | None = None) -> Tensor:
    """(n, T, C, d), T = 1 without tokens."""
    found = dense_jacobian(one.model, one.x if x is None else x).transpose(0, 1)
    return found.reshape(len(found), one.terms, C, -1)


def kernel(one: Case, x2: Tensor | None = None) -> Tensor:
    """Every axis of the outputs as a pair, (n, n', T, T, C, C)."""
    return torch.einsum("ntcd,mued->nmtuce", jacobian(one), jacobian(one, x2))


def value(row: str, names: dict[str, Any]) -> Any:
    return ours(SECTION, row, names)[0]


FULL = "empirical_ntk_fn(f, trace_axes=(), vmap_axes=0)(x, None, params)"
TRACED = "empirical_ntk_fn(f, vmap_axes=0)(x, None, params)"


@covers(SECTION, FULL, TRACED, "empirical_ntk_fn(f, ...)(x1, x2, params)")
@each_network
def test_kernels_of_all_outputs_and_their_mean(network: str) -> None:
    one = case(network)
    names, truth = one.names(), kernel(one)
    close(value(FULL, names), truth.permute(0, 1, 2, 4, 3, 5).reshape(N, N, one.terms * C, one.terms * C))
    traced = truth.diagonal(dim1=4, dim2=5).mean(-1)  # (n, n', T, T)
    close(value(TRACED, names), one.terms * traced.diagonal(dim1=2, dim2=3).mean(-1))
    if network in SINGLE:
        close(value(TRACED, names), traced[:, :, 0, 0])
    cross = kernel(one, names["x2"]).permute(2, 4, 0, 3, 5, 1).reshape(one.terms * C, N, one.terms * C, 2)
    close(value("empirical_ntk_fn(f, ...)(x1, x2, params)", names).data, cross)


@covers(SECTION, "diagonal_axes=(-1,)", "empirical_nngp_fn(f)(x, None, params)")
@each_single
def test_diagonals_and_the_kernel_of_the_outputs(network: str) -> None:
    one = case(network)
    names = one.names()
    close(value("diagonal_axes=(-1,)", names), kernel(one)[:, :, 0, 0].diagonal(dim1=2, dim2=3))
    outputs = one.outputs()
    close(value("empirical_nngp_fn(f)(x, None, params)", names), torch.einsum("nc,mc->nm", outputs, outputs) / C)


@covers(SECTION, "empirical_ntk_vp_fn(f, x1, None, params)(u)")
@each_network
def test_products_with_a_kernel_that_is_not_stored(network: str) -> None:
    one = case(network)
    names = one.names()
    vector = names["u"].to_outputs().reshape(N, one.terms, C)
    truth = torch.einsum("nmtuce,mue->ntc", kernel(one), vector)
    close(value("empirical_ntk_vp_fn(f, x1, None, params)(u)", names).to_outputs().reshape(truth.shape), truth)


@covers(SECTION, "implementation=NtkImplementation.AUTO", "nt.batch(kernel_fn, batch_size)")
@each_network
def test_a_plan_names_every_layer_and_batches_do_not_change_the_kernel(network: str) -> None:
    one = case(network)
    names = one.names()
    plan = str(value("implementation=NtkImplementation.AUTO", names))
    assert all(layer in plan for layer in dict(one.model.named_children()) if list(one.model[int(layer)].parameters()))
    names["loader"] = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(one.x, one.y), batch_size=2)
    close(value("nt.batch(kernel_fn, batch_size)", names).data, names["K"].data)


@covers(SECTION, "linearize(f, params)(params + dw, x)")
@each_single
def test_outputs_moved_to_first_order(network: str) -> None:
    one = case(network)
    names = one.names()
    moved = torch.einsum("ntcd,d->ntc", jacobian(one), names["v"].flat).reshape(one.outputs().shape)
    close(value("linearize(f, params)(params + dw, x)", names), one.outputs() + moved)


GP = "predict.gp_inference(k, y, diag_reg=s, diag_reg_absolute_scale=True)"


@covers(SECTION, GP)
@each_single
def test_the_posterior_of_a_process_with_the_tangent_kernel(network: str) -> None:
    one = case(network)
    names = one.names()
    K, cross = (kernel(one, other).diagonal(dim1=4, dim2=5).sum(-1)[:, :, 0, 0] for other in (one.x, names["x2"]))
    noisy = K + 1e-2 * torch.eye(N, dtype=K.dtype)
    close(value(GP, names).mean, cross.T @ torch.linalg.solve(noisy, names["targets"]))


def flat_kernel(one: Case) -> Tensor:
    """(C n, C n), outputs outer."""
    return kernel(one)[:, :, 0, 0].permute(2, 0, 3, 1).reshape(C * N, C * N)


@covers(
    SECTION,
    "predict.gradient_descent_mse(k, y)(None, f0, ...)",
    "predict.gradient_descent_mse(k, y)(t, f0)",
    "predict.max_learning_rate(k)",
)
@each_single
def test_gradient_descent_in_closed_form(network: str) -> None:
    one = case(network)
    K = flat_kernel(one)
    names = one.names()
    residual = (one.outputs().detach() - names["targets"]).T.reshape(-1)
    *_, limit = ours(SECTION, "predict.gradient_descent_mse(k, y)(None, f0, ...)", names)
    torch.testing.assert_close(limit.flat, torch.linalg.lstsq(K, -residual).solution, rtol=1e-5, atol=1e-6)
    names = one.names()
    *_, later = ours(SECTION, "predict.gradient_descent_mse(k, y)(t, f0)", names)
    close(later.flat, torch.linalg.matrix_exp(-0.5 * K / (N * C)) @ residual)
    close(value("predict.max_learning_rate(k)", one.names()), 2 * N * C / torch.linalg.eigvalsh(K)[-1])


@covers(SECTION, "monte_carlo_kernel_fn(...)", "stax.* kernels, taylor_expand")
def test_kernels_of_infinite_width_are_not_here() -> None:
    assert not any(hasattr(tl, name) for name in ("stax", "monte_carlo_kernel_fn", "taylor_expand"))


def test_tokens_are_among_the_cases() -> None:
    assert [tuple(case(network).outputs().shape) for network in TOKENS] == [(N, T, C)] * 2
