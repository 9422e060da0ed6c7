"""Fisher matrices from sampled labels: seeded, shared, unbiased."""

import pytest
import torch

import tangentlab as tl
from tangentlab.errors import InputError
from tangentlab.testing.dense_truth import assert_close
from tests.metrics.problems import PROBLEMS

each = pytest.mark.parametrize("name", list(PROBLEMS))
KINDS = (tl.PMatDense, tl.PMatBlockDiag, tl.PMatDiag, tl.PMatKFAC, tl.PMatEKFAC, tl.PMatImplicit)


def seeded(value: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(value)


@each
@pytest.mark.parametrize("kind", [tl.PMatDense, tl.PMatImplicit])
def test_matrix_is_the_second_moment_of_the_scores_of_its_labels(name, kind):
    problem = PROBLEMS[name]
    model, x = problem.model(), problem.inputs()
    F = tl.FIM_MonteCarlo(model, [(x[:3],), (x[3:],)], kind, problem.likelihood, samples=5, generator=seeded())
    labels = torch.cat(F.labels, 1)
    assert labels.shape[:2] == (5, 4)
    exact = problem.second_moment(model, x, labels)
    assert_close(F.to_dense(), exact)
    v = tl.PVector.random_unit(model, generator=seeded())
    assert_close((F @ v).flat, exact @ v.flat)
    assert_close(F.vTMv(v), v.flat @ exact @ v.flat)
    assert_close(F.trace(), exact.trace())


@each
def test_a_small_memory_budget_changes_nothing_but_how_many_samples_are_taken_at_once(name):
    problem = PROBLEMS[name]
    model, x = problem.model(), problem.inputs()
    settings = {"likelihood": problem.likelihood, "samples": 5}
    for kind in (tl.PMatDiag, tl.PMatKFAC, tl.PMatEKFAC):
        whole = tl.FIM_MonteCarlo(model, x, kind, generator=seeded(), **settings)
        with tl.memory_limit(1):
            one_by_one = tl.FIM_MonteCarlo(model, x, kind, generator=seeded(), **settings)
        assert_close(one_by_one.to_dense(), whole.to_dense())


@each
def test_mean_over_many_samples_is_the_exact_matrix_within_the_stated_confidence(name):
    """40 independent matrices of 25 samples: every entry of their mean within 5 standard errors of the exact one."""
    problem = PROBLEMS[name]
    model, x = problem.model(), problem.inputs(2)
    draws = [
        tl.FIM_MonteCarlo(model, x, likelihood=problem.likelihood, samples=25, generator=seeded(s)) for s in range(40)
    ]
    stacked = torch.stack([F.to_dense() for F in draws])
    exact = problem.fisher(model, x)
    error = (stacked.mean(0) - exact).abs()
    assert bool((error <= 5 * stacked.std(0) / len(draws) ** 0.5 + 1e-12).all())
    assert float(error.max()) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_shared_across_representations(kind):
    problem = PROBLEMS["classification"]
    model, x = problem.model(), problem.inputs()
    dense = tl.FIM_MonteCarlo(model, [(x[:3],), (x[3:],)], samples=3, generator=seeded())
    F = tl.FIM_MonteCarlo(model, [(x[:3],), (x[3:],)], kind, labels=dense.labels)
    exact = problem.second_moment(model, x, torch.cat(dense.labels, 1))
    if kind is not tl.PMatKFAC:
        assert_close(F.trace(), exact.trace())
    assert [torch.equal(a, b) for a, b in zip(F.labels, dense.labels)] == [True, True]
    joint = tl.FIM_MonteCarlo(model, [(x[:1],), (x[1:],)], kind, labels=torch.cat(dense.labels, 1))
    assert_close(joint.to_dense(), F.to_dense())
    assert "3 label samples" in repr(F) and "3 label samples" in repr(joint)


@each
def test_the_same_seed_draws_the_same_labels_for_every_representation(name):
    problem = PROBLEMS[name]
    model, x = problem.model(), problem.inputs()
    matrices = [
        tl.FIM_MonteCarlo(model, x, kind, problem.likelihood, samples=4, generator=seeded(seed))
        for kind, seed in ((tl.PMatDense, 1), (tl.PMatDiag, 1), (tl.PMatImplicit, 1), (tl.PMatDense, 2))
    ]
    first, second, third, other = (torch.cat(F.labels, 1) for F in matrices)
    assert torch.equal(first, second) and torch.equal(first, third) and not torch.equal(first, other)


def test_without_a_generator_draws_follow_the_global_seed(seed):
    problem = PROBLEMS["classification"]
    model, x = problem.model(), problem.inputs()
    labels = []
    for value in (1, 1, 2):
        seed(value)
        labels.append(torch.cat(tl.FIM_MonteCarlo(model, x, samples=8).labels, 1))
    assert torch.equal(labels[0], labels[1]) and not torch.equal(labels[0], labels[2])


def test_batches_draw_independently_of_each_other():
    problem = PROBLEMS["classification"]
    model, x = problem.model(), problem.inputs(1)
    F = tl.FIM_MonteCarlo(model, [(x,), (x,), (x,)], samples=30, generator=seeded())
    first, second, third = F.labels
    assert not torch.equal(first, second) and not torch.equal(second, third)


def test_rank_is_at_most_examples_times_samples():
    problem = PROBLEMS["classification"]
    model, x = problem.model(), problem.inputs(2)
    for samples in (1, 2):
        F = tl.FIM_MonteCarlo(model, x, samples=samples, generator=seeded())
        assert torch.linalg.matrix_rank(F.to_dense(), hermitian=True) <= 2 * samples


def test_number_of_trials_is_another_name_of_samples():
    problem = PROBLEMS["classification"]
    model, x = problem.model(), problem.inputs()
    one = tl.FIM_MonteCarlo(model, x, variant="classif_logits", trials=5, generator=seeded())
    two = tl.FIM_MonteCarlo(model, x, samples=5, generator=seeded())
    assert_close(one.to_dense(), two.to_dense())
    for wrong in ({"samples": 0}, {"trials": 0}, {"samples": -1}):
        with pytest.raises(InputError, match="at least 1"):
            tl.FIM_MonteCarlo(model, x, **wrong)


def test_labels_that_do_not_fit_the_batches_are_refused():
    problem = PROBLEMS["classification"]
    model, x = problem.model(), problem.inputs()
    good = tl.FIM_MonteCarlo(model, [(x[:3],), (x[3:],)], generator=seeded()).labels
    for labels, data, message in (
        (good[:1], [(x[:3],), (x[3:],)], "loader has more"),
        (good, [(x[:2],), (x[2:],)], "3 examples for batch 0"),
        (torch.cat(good, 1)[:, :3], x, "3 examples for batch 0"),
        (torch.full((1, 4), 7), x, r"0..2 .*found 7..7"),
    ):
        with pytest.raises(InputError, match=message):
            tl.FIM_MonteCarlo(model, data, labels=labels)


def test_shared_labels_need_an_order_of_the_examples():
    problem = PROBLEMS["classification"]
    model, x = problem.model(), problem.inputs()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=2, shuffle=True)
    F = tl.FIM_MonteCarlo(model, loader, tl.PMatEKFAC, generator=seeded())
    assert F.examples == 4
    with pytest.raises(InputError, match="shuffles"):
        tl.FIM_MonteCarlo(model, loader, labels=F.labels)


def test_shuffling_leaves_second_moments_consistent_with_the_factors():
    """Two passes over a shuffling loader see one order, so EKFAC's trace is that of its own labels' matrix."""
    problem = PROBLEMS["classification"]
    model, x = problem.model(), problem.inputs()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=3, shuffle=True)
    for kind in (tl.PMatEKFAC, tl.PMatImplicit):
        F = tl.FIM(model, loader, kind)
        assert_close(F.trace(), problem.fisher(model, x).trace())
        assert_close(F.diag().flat.sum(), F.trace())
