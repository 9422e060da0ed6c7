"""The statements of chapter 5 and appendix C, on tables and on Gaussians."""

import math

import pytest
import torch
from torch import Generator, Tensor

from tangentlab.errors import InputError
from tangentlab.information import (
    MINE,
    DonskerVaradhan,
    Scores,
    dv_of_table,
    f_bound_of_table,
    gibbs,
    kl_divergence,
    mutual_information,
    pair_table,
    sample_size,
)
from tangentlab.information.tasks import Asinh, DiscreteTable, Gaussian, Power, Transformed

SEEDS = range(20)


def tables(seed: int, shape: tuple[int, int] = (4, 5)) -> tuple[Tensor, Tensor, Tensor]:
    """A joint table, the product of its margins, and scores."""
    source = Generator().manual_seed(seed)
    p = DiscreteTable.random(*shape, source).table
    return p, p.sum(1, keepdim=True) * p.sum(0), 2 * torch.randn(*shape, generator=source, dtype=torch.float64)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gap_of_donsker_varadhan_is_the_divergence_from_the_gibbs_distribution(seed: int) -> None:
    p, q, scores = tables(seed)
    gap = kl_divergence(p, q) - dv_of_table(p, q, scores)
    assert abs(gap - kl_divergence(p, gibbs(q, scores))) < 1e-10
    assert gap > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_bound_is_tight_at_the_log_ratio_and_blind_to_constants(seed: int) -> None:
    p, q, scores = tables(seed)
    assert abs(dv_of_table(p, q, (p / q).log() + seed) - kl_divergence(p, q)) < 1e-12
    assert abs(dv_of_table(p, q, scores) - dv_of_table(p, q, scores + 3.7)) < 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_donsker_varadhan_is_above_the_f_bound_and_equal_where_the_partition_is_e(seed: int) -> None:
    p, q, scores = tables(seed)
    assert dv_of_table(p, q, scores) > f_bound_of_table(p, q, scores)
    partition = (q * scores.exp()).sum()
    shifted = scores + 1 - partition.log()
    assert abs(dv_of_table(p, q, shifted) - f_bound_of_table(p, q, shifted)) < 1e-12
    other = (p * scores).sum() - (q * (scores.exp() - 1)).sum()  # the form with e^T - 1: equal where the partition is 1
    assert other < dv_of_table(p, q, scores)
    level = scores - partition.log()
    assert abs((p * level).sum() - (q * (level.exp() - 1)).sum() - dv_of_table(p, q, level)) < 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_lemma_5_2_bounds_the_gap_by_errors_of_the_critic(seed: int) -> None:
    p, q, scores = tables(seed)
    best = (p / q).log()
    gap = kl_divergence(p, q) - dv_of_table(p, q, scores)
    exact = (p * (best - scores)).sum() + (q * scores.exp()).sum().log()
    assert abs(gap - exact) < 1e-12
    assert gap <= (p * (best - scores)).sum() + (q * (scores.exp() - best.exp())).sum()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_log_ratio_is_integrable_by_the_side_fact_of_lemma_5_2(seed: int) -> None:
    p, q, _ = tables(seed)
    divergence = kl_divergence(p, q)
    assert (p * (p / q).log().abs()).sum() <= divergence + 4 * divergence.sqrt()


@pytest.mark.parametrize("seed", SEEDS)
def test_lemma_5_3_splits_the_error_into_that_of_the_joint_and_that_of_the_marginals(seed: int) -> None:
    """For a finite family of bounded scores and an empirical table."""
    p, q, _ = tables(seed)
    source = Generator().manual_seed(seed)
    family = 2 * torch.rand(30, 4, 5, generator=source, dtype=torch.float64) - 1
    most = family.abs().max().exp()
    counts = torch.multinomial(p.flatten(), 200, replacement=True, generator=source).bincount(minlength=20)
    empirical = counts.view(4, 5).double() / 200
    product = empirical.sum(1, keepdim=True) * empirical.sum(0)

    def parts(joint: Tensor, marginal: Tensor) -> tuple[Tensor, Tensor]:
        return (joint * family).sum((1, 2)), (marginal * family.exp()).sum((1, 2))

    (mean, partition), (mean_n, partition_n) = parts(p, q), parts(empirical, product)
    left = ((mean_n - partition_n.log()).max() - (mean - partition.log()).max()).abs()
    of_logs = (partition.log() - partition_n.log()).abs()
    assert left <= (mean - mean_n).abs().max() + of_logs.max()
    assert (of_logs <= most * (partition - partition_n).abs() + 1e-15).all()


def test_the_sample_size_of_theorem_5_5_has_its_reference_values() -> None:
    for expected, parameters, bound in ((17190.7, 10, 1), (188293, 100, 1), (84762.8, 10, 2)):
        assert math.isclose(sample_size(parameters, 1, 1, bound, 0.1, 0.05, "printed"), expected, rel_tol=1e-5)
        printed = sample_size(parameters, 1, 1, bound, 0.1, 0.05, "printed")
        corrected = sample_size(parameters, 1, 1, bound, 0.1, 0.05)
        factor = 4 * math.exp(2 * bound)
        assert math.isclose(corrected, factor * (printed + 2 * bound**2 * math.log(2) / 0.01), rel_tol=1e-12)
    assert sample_size(10, 1, 1, 1, 0.05, 0.05) > 4 * sample_size(10, 1, 1, 1, 0.1, 0.05)
    for wrong in (lambda: sample_size(10, 1, 1, 1, 0.1, 2), lambda: sample_size(10, 1, 1, 1, 0.1, 0.1, "guessed")):
        with pytest.raises(InputError):
            wrong()


def test_the_corrected_sample_size_keeps_its_promise_where_the_printed_proof_does_not() -> None:
    """The printed Hoeffding exponent is beaten by fair coins of +-M: the deviation is more likely than it says."""
    n, bound, accuracy = 400, 1.0, 0.4
    heads = torch.distributions.Binomial(n, torch.tensor(0.5, dtype=torch.float64))
    counts = torch.arange(n + 1, dtype=torch.float64)
    beyond = heads.log_prob(counts).exp()[(bound * (2 * counts / n - 1)).abs() > accuracy / 4].sum()
    assert beyond > 2 * math.exp(-(accuracy**2) * n / (2 * bound**2))
    assert beyond <= 2 * math.exp(-(accuracy**2) * n / (32 * bound**2))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_reconstruction_error_is_an_identity_with_the_entropy_of_x(seed: int) -> None:
    """R = KL(q || p) - KL(q(z) || p(z)) - I_q + H_q(x); the printed H_q(z) is wrong."""
    q, _, _ = tables(seed)
    p, _, _ = tables(100 + seed)
    of_x, of_z = q.sum(1), q.sum(0)
    error = -(q * (p / p.sum(0)).log()).sum()

    def entropy(one: Tensor) -> Tensor:
        return -(one * one.log()).sum()

    information = kl_divergence(q, of_x[:, None] * of_z)
    rest = kl_divergence(q, p) - kl_divergence(of_z, p.sum(0)) - information
    assert abs(error - (rest + entropy(of_x))) < 1e-10
    assert abs(error - (rest + entropy(of_z))) > 1e-6
    assert error <= kl_divergence(q, p) - information + entropy(of_x)
    matched = p / p.sum(0) * of_z  # tight where the latent margins agree
    tight = kl_divergence(q, matched) - information + entropy(of_x)
    assert abs(error - tight) < 1e-10


def mean_bias(alpha: float, batches: int, draws: int = 4000) -> float:
    """The mean over many histories of `E_B[e^T g] / m` minus its limit, for stationary scores of two values."""
    source = Generator().manual_seed(1)
    values = torch.randint(0, 2, (batches, draws, 8), generator=source).double() * 1.5
    powers = values.exp()
    means, products = powers.mean(2), (powers * values).mean(2)
    average = means[0]
    ratios = []
    for step in range(1, batches):
        average = (1 - alpha) * average + alpha * means[step]
        if step > 5 / alpha:
            ratios.append((products[step] / average).mean())
    truth = (0.5 * math.exp(1.5) * 1.5) / (0.5 + 0.5 * math.exp(1.5))
    return float(torch.stack(ratios).mean() - truth)


def test_the_bias_of_a_moving_average_is_proportional_to_its_rate() -> None:
    small, large = mean_bias(0.04, 400), mean_bias(0.08, 400)
    assert small < 0 and abs(large / small - 2) < 0.25
    assert abs(mean_bias(1.0, 60)) > 5 * abs(large)  # the plain gradient of a minibatch


def test_the_average_of_mine_is_the_moving_average_of_the_partition() -> None:
    objective, plain = MINE(alpha=0.3, floor=100.0), None
    source = Generator().manual_seed(0)
    for _ in range(10):
        marginal = torch.randn(5, 4, generator=source, dtype=torch.float64)
        objective(Scores(torch.zeros(5, dtype=torch.float64), marginal))
        mean = marginal.exp().mean().item()
        plain = mean if plain is None else 0.7 * plain + 0.3 * mean
    assert math.isclose(math.exp(objective.state()["log_average"]), plain, rel_tol=1e-12)


@torch.no_grad()
def test_the_exact_critic_of_gaussians_has_their_information_on_held_out_pairs() -> None:
    for features, rho, value in ((1, 0.5, 0.1438), (1, 0.9, 0.8304), (2, 0.5, 0.2877), (2, 0.9, 1.6607)):
        task = Gaussian.correlated(features, rho)
        assert abs(task.value - value) < 1e-4
        x, z = task.sample(3000, Generator().manual_seed(0), torch.float64)
        table = pair_table(lambda a, b, task=task: task.log_ratio(a, b), x, z, DonskerVaradhan())
        error = table.influence("dv").std().item() / math.sqrt(3000)
        assert abs(table.value("dv") - value) < 4 * error
        assert abs(table.log_partition) < 0.1


@torch.no_grad()
def test_the_mean_of_the_ratio_under_the_joint_is_e_to_twice_the_information() -> None:
    """The reason why an average of e^T needs e^(2 I) pairs; exact for small correlations of Gaussians, checked by sampling."""
    task = Gaussian.correlated(1, 0.3)
    x, z = task.sample(400_000, Generator().manual_seed(0), torch.float64)
    assert abs(task.log_ratio(x, z).exp().mean().item() - math.exp(2 * task.value)) < 0.01


@pytest.mark.parametrize("name", ["ksg", "ksg2", "gaussian"])
def test_increasing_maps_of_coordinates_do_not_change_an_estimate_on_normal_margins(name: str) -> None:
    task = Gaussian.correlated(2, 0.6)
    values = []
    for one in (task, Transformed(task, Power(3.0, "cube"), Asinh())):
        x, z = one.sample(900, Generator().manual_seed(0), torch.float64)
        values.append(mutual_information(x, z, name, margins="normal").value)
    assert math.isclose(values[0], values[1], rel_tol=1e-9)
