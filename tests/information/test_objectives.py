"""Objectives, critics and pairs against loops and written-out formulas."""

import math

import pytest
import torch
from torch import nn

from tangentlab.errors import InputError, ModelError
from tangentlab.information import (
    MINE,
    NWJ,
    SMILE,
    Bilinear,
    Concatenated,
    Convolutional,
    DonskerVaradhan,
    FDime,
    InfoNCE,
    JensenShannon,
    Scores,
    Separable,
    adaptive_clip,
    clipped_backward,
    derangement,
    score_matrix,
    score_pairs,
)


def random_scores(n: int = 7, m: int = 6, size: float = 1.0) -> Scores:
    source = torch.Generator().manual_seed(n * m)
    return Scores(
        size * torch.randn(n, generator=source, dtype=torch.float64),
        size * torch.randn(n, m, generator=source, dtype=torch.float64),
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n", [2, 3, 7, 100])
def test_a_derangement_moves_everything(n: int, seed: int) -> None:
    order = derangement(n, torch.Generator().manual_seed(seed))
    assert sorted(order.tolist()) == list(range(n))
    assert not (order == torch.arange(n)).any()


@pytest.mark.parametrize("critic", [Separable(3, 2, (8,), 4), Bilinear(3, 2), Concatenated(3, 2, (8,))])
def test_all_pairs_are_every_pair_but_the_own(critic: nn.Module) -> None:
    x, z = torch.randn(5, 3), torch.randn(5, 2)
    scores = score_pairs(critic, x, z)
    for i in range(5):
        torch.testing.assert_close(scores.joint[i], critic(x[i : i + 1], z[i : i + 1])[0])
        strangers = [critic(x[i : i + 1], z[j : j + 1])[0] for j in range(5) if j != i]
        torch.testing.assert_close(scores.marginal[i], torch.stack(strangers))
    torch.testing.assert_close(score_matrix(critic, x, z, most=3).diagonal(), scores.joint)


def test_deranged_pairs_have_one_stranger_each() -> None:
    critic, x, z = Concatenated(1, 1, (8,)), torch.randn(6, 1), torch.randn(6, 1)
    scores = score_pairs(critic, x, z, "deranged", torch.Generator().manual_seed(0))
    order = derangement(6, torch.Generator().manual_seed(0))
    torch.testing.assert_close(scores.marginal[:, 0], critic(x, z[order]))


def test_the_convolutional_critic_adds_a_map_of_z_to_every_feature_map() -> None:
    critic = Convolutional(3, 28, 10, (16, 32, 64), head=1024)
    x, z = torch.randn(4, 3, 28, 28), torch.randn(4, 10)
    assert critic(x, z).shape == (4,)
    assert [tuple(layer.weight.shape) for layer in critic.biases] == [(16, 10), (32, 10), (64, 10)]
    assert critic.head[0].in_features == 64 * 4 * 4  # 28, 14, 7, 4: table C.3
    hidden = x
    for convolution, bias in zip(critic.convolutions, critic.biases, strict=True):
        hidden = nn.functional.elu(convolution(hidden) + (z @ bias.weight.T)[..., None, None])
    torch.testing.assert_close(critic(x, z), critic.head(hidden.flatten(1))[:, 0])


def test_a_noisy_critic_is_noisy_in_training_mode_only() -> None:
    critic = Concatenated(2, 2, (16, 16), "elu", noise=(0.3, 0.5, 0.5))
    x, z = torch.randn(8, 2), torch.randn(8, 2)
    assert not torch.equal(critic(x, z), critic(x, z))
    critic.eval()
    assert torch.equal(critic(x, z), critic(x, z))
    with pytest.raises(InputError, match="3 standard deviations"):
        Concatenated(2, 2, (16, 16), noise=(0.3,))


def test_every_objective_is_its_formula() -> None:
    scores = random_scores()
    joint, marginal = scores.joint, scores.marginal
    dv = joint.mean() - marginal.exp().mean().log()
    torch.testing.assert_close(DonskerVaradhan()(scores), dv)
    torch.testing.assert_close(MINE()(scores), dv)
    torch.testing.assert_close(NWJ()(scores), 1 + joint.mean() - marginal.exp().mean())
    rows = [joint[i] - ((joint[i].exp() + marginal[i].exp().sum()) / 7).log() for i in range(7)]
    torch.testing.assert_close(InfoNCE()(scores), torch.stack(rows).mean())
    js = joint.sigmoid().log().mean() + (1 - marginal.sigmoid()).log().mean()
    torch.testing.assert_close(JensenShannon()(scores), js)
    torch.testing.assert_close(SMILE()(scores), js)
    hellinger = 2 - (joint / 2).neg().exp().mean() - (marginal / 2).exp().mean()
    torch.testing.assert_close(FDime()(scores), hellinger)


@pytest.mark.parametrize("objective", [DonskerVaradhan, NWJ, JensenShannon, FDime], ids=lambda one: one.__name__)
def test_the_log_density_ratio_is_the_best_critic_of_a_table(objective: type) -> None:
    """On 2 x 2 cells with weights the maximum is at log dP/dQ; DV leaves a constant free."""
    counts = torch.tensor([[4, 1], [2, 3]])
    p = counts.double() / 10
    q = p.sum(1, keepdim=True) * p.sum(0)
    table = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([table], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        joint = table.flatten().repeat_interleave(counts.flatten())
        marginal = table.flatten().repeat_interleave((100 * q).round().long().flatten())
        value = -objective()(Scores(joint, marginal[:, None]))
        value.backward()
        return value

    optimizer.step(loss)
    ratio = (p / q).log()
    found = table.detach() - (table.detach() - ratio).mean() if objective is DonskerVaradhan else table.detach()
    torch.testing.assert_close(found, ratio, atol=1e-4, rtol=1e-4)


def test_infonce_never_passes_the_logarithm_of_its_batch() -> None:
    for size in (1.0, 10.0, 100.0):
        assert InfoNCE()(random_scores(size=size)) <= math.log(7) + 1e-12


def test_mine_with_rate_one_and_no_penalty_has_the_gradient_of_dv() -> None:
    scores = random_scores()
    gradients = []
    for objective in (DonskerVaradhan(), MINE(alpha=1, penalty=0)):
        joint, marginal = scores.joint.clone().requires_grad_(), scores.marginal.clone().requires_grad_()
        objective(Scores(joint, marginal)).backward()
        gradients.append((joint.grad, marginal.grad))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_moving_average_survives_scores_that_overflow() -> None:
    objective = MINE(alpha=0.01)
    for size in (0.0, 1e3, -1e3, 1e4):
        joint = torch.full((4,), size, requires_grad=True)
        marginal = torch.full((4, 3), size, requires_grad=True)
        value = objective(Scores(joint, marginal))
        value.backward()
        assert value.isfinite() and joint.grad.isfinite().all() and marginal.grad.isfinite().all()
    assert math.isfinite(objective.state()["log_average"])


def test_a_batch_counts_at_most_e_to_the_floor_times_what_the_average_says() -> None:
    objective = MINE(alpha=0.01, floor=2.0, penalty=0)
    objective(Scores(torch.zeros(4), torch.zeros(4, 3)))
    marginal = torch.full((4, 3), 50.0, requires_grad=True)
    objective(Scores(torch.zeros(4), marginal)).backward()
    assert math.isclose(-marginal.grad.sum().item(), math.e**2, rel_tol=1e-5)


@pytest.mark.parametrize("factor", [0.1, 1.0, 30.0])
def test_a_clipped_gradient_has_the_shorter_of_both_norms_and_its_own_direction(factor: float) -> None:
    source = torch.Generator().manual_seed(0)
    main = [torch.randn(3, 2, generator=source), torch.randn(4, generator=source)]
    extra = [factor * torch.randn(3, 2, generator=source), factor * torch.randn(4, generator=source)]
    clipped = adaptive_clip(main, extra)
    flat = [torch.cat([part.flatten() for part in parts]) for parts in (main, extra, clipped)]
    assert math.isclose(flat[2].norm(), min(flat[0].norm(), flat[1].norm()), rel_tol=1e-5)
    torch.testing.assert_close(flat[2] / flat[2].norm(), flat[1] / flat[1].norm())


def test_an_information_gradient_of_zero_stays_zero() -> None:
    assert adaptive_clip([torch.ones(2)], [torch.zeros(2)])[0].tolist() == [0.0, 0.0]
    assert adaptive_clip([torch.zeros(2)], [torch.ones(2)])[0].tolist() == [0.0, 0.0]


def test_clipped_backward_is_the_sum_of_both_gradients_and_leaves_the_critic_alone() -> None:
    generator, critic = nn.Linear(3, 2), Concatenated(2, 3, (8,))
    noise = torch.randn(16, 3)
    main = generator(noise).square().mean()
    information = MINE()(score_pairs(critic, generator(noise), noise))
    of_main = torch.autograd.grad(main, list(generator.parameters()), retain_graph=True)
    of_extra = torch.autograd.grad(-information, list(generator.parameters()), retain_graph=True)
    clipped_backward(main, -information, generator.parameters(), beta=0.5)
    for parameter, one, two in zip(generator.parameters(), of_main, adaptive_clip(of_main, of_extra), strict=True):
        torch.testing.assert_close(parameter.grad, one + 0.5 * two)
    assert all(parameter.grad is None for parameter in critic.parameters())


def test_wrong_uses_are_named() -> None:
    with pytest.raises(ModelError, match="one score per pair"):
        score_pairs(lambda x, z: x, torch.ones(4, 2), torch.ones(4, 2), "deranged")
    with pytest.raises(InputError, match="at least two"):
        score_pairs(Bilinear(1, 1), torch.ones(1, 1), torch.ones(1, 1))
    for wrong in (lambda: MINE(alpha=0), lambda: MINE(penalty=-1), lambda: SMILE(0)):
        with pytest.raises(InputError):
            wrong()
