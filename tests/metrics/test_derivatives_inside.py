"""What looks at outputs before it differentiates them, on networks that take derivatives in their forward."""

import pytest
import torch

import tangentlab as tl
from tangentlab.cli.check import _require_forward
from tangentlab.errors import InputError
from tests.derivatives_inside import KINDS, caught, kernel_matrix
from tests.engine.truth import dense_jacobian

each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@pytest.mark.parametrize("enabled", [True, False], ids=["grad", "no_grad"])
def test_matrices_and_kernels_over_several_batches_are_exact(kind: str, enabled: bool) -> None:
    model, x = caught(kind, 6)
    rows = dense_jacobian(model, x).flatten(0, 1)
    fisher, outputs = rows.t() @ rows / 6, model(x).shape[1]
    batches = [(x[:4],), (x[4:],)]
    v = tl.PVector.random_unit(model, generator=torch.Generator().manual_seed(3))
    with torch.set_grad_enabled(enabled):
        implicit = tl.FIM(model, batches, tl.PMatImplicit, likelihood="regression")
        assert (implicit @ v).flat.numpy() == pytest.approx((fisher @ v.flat).numpy(), abs=1e-10)
        dense = tl.FIM(model, batches, likelihood="regression", n_output=outputs)
        assert (dense.to_dense() - fisher).norm() <= 1e-10 * fisher.norm()
        kernel = tl.NTK(model, batches, representation=tl.FMatImplicit)
        assert (kernel.matrix() - kernel_matrix(model, x)).norm() <= 1e-10 * kernel_matrix(model, x).norm()
        found = tl.fisher_eigenpairs(model, batches, 2, "regression", progress=False).values
        assert found.numpy() == pytest.approx(torch.linalg.eigvalsh(fisher).flip(0)[:2].numpy(), rel=1e-8)
        assert tl.check(model, x).passed
        _require_forward(model, x)


@each_kind
def test_hessians_are_exact(kind: str) -> None:
    model, x = caught(kind, 3)
    targets = torch.randn(*model(x).shape, dtype=torch.float64)
    parameters = list(model.parameters())
    loss = 0.5 * (model(x) - targets).square().sum() / 3
    slopes = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
    grads = torch.cat([slope.flatten() for slope in slopes])
    rows = [torch.autograd.grad(grad, parameters, retain_graph=True, materialize_grads=True) for grad in grads]
    truth = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    found = tl.Hessian(model, (x, targets), tl.PMatDense, loss="regression").to_dense()
    assert (found - truth).norm() <= 1e-9 * truth.norm()


@each_kind
def test_another_number_of_outputs_is_refused(kind: str) -> None:
    model, x = caught(kind)
    with pytest.raises(InputError, match="n_output=9"):
        tl.FIM(model, x, likelihood="regression", n_output=9)
