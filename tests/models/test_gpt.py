"""The small GPT: tying, causality, and the initialization of the residual stream."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from tangentlab.models import GPT
from tangentlab.models.gpt import CausalSelfAttention

pytestmark = pytest.mark.usefixtures("seed")


def test_tied_embeddings_are_one_parameter_with_one_storage() -> None:
    model = GPT(11, 8, tied=True)
    assert model.head.weight is model.token.weight
    assert model.head.weight.data_ptr() == model.token.weight.data_ptr()
    assert "head.weight" not in dict(model.named_parameters())
    untied = GPT(11, 8)
    assert untied.head.weight.data_ptr() != untied.token.weight.data_ptr()


def test_the_gradient_of_a_tied_weight_is_the_sum_over_its_two_uses() -> None:
    tied = GPT(11, 8, tied=True).double()
    untied = GPT(11, 8).double()
    untied.load_state_dict(tied.state_dict())
    tokens = torch.randint(11, (3, 6))
    for model in (tied, untied):
        model(tokens).square().sum().backward()
    separate = [untied.token.weight.grad, untied.head.weight.grad]
    assert all(gradient is not None and gradient.any() for gradient in separate)
    torch.testing.assert_close(tied.token.weight.grad, sum(separate))


@pytest.mark.parametrize("place", [1, 4, 6])
def test_changing_a_token_changes_no_earlier_logits_and_does_change_its_own(place: int) -> None:
    model = GPT(11, 8, n_layers=3).double()
    tokens = torch.randint(11, (4, 7))
    changed = tokens.clone()
    changed[:, place] = (changed[:, place] + 1) % 11
    difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
    assert difference[:place].max() < 1e-12
    assert (difference[place:] > 1e-6).all()


def test_position_matters() -> None:
    model = GPT(11, 8)
    logits = model(torch.full((1, 5), 3))
    assert not torch.allclose(logits[0, 0], logits[0, 4])


def test_attention_is_the_masked_softmax_average_of_values() -> None:
    attention = CausalSelfAttention(6, n_heads=2).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    query, key, value = attention.query_key_value(x).chunk(3, dim=-1)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    heads = []
    for head in (slice(0, 3), slice(3, 6)):
        scores = query[..., head] @ key[..., head].transpose(1, 2) / 3**0.5
        heads.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ value[..., head])
    torch.testing.assert_close(attention(x), attention.projection(torch.cat(heads, dim=-1)))


def test_the_classifier_is_the_head_of_the_mean_over_positions() -> None:
    model = GPT(11, 8, n_classes=3).double()
    tokens = torch.randint(11, (2, 6))
    hidden: list[torch.Tensor] = []
    model.norm.register_forward_hook(lambda _, __, output: hidden.append(output))
    torch.testing.assert_close(
        model(tokens), F.linear(sum(hidden[0].unbind(1)) / 6, model.head.weight, model.head.bias)
    )


def test_weights_into_the_residual_stream_are_divided_by_the_root_of_twice_the_depth() -> None:
    model = GPT(50, 16, n_layers=8, width=64)
    deviations = {name: float(p.detach().std()) for name, p in model.named_parameters() if p.dim() > 1}
    into_stream = {name for name in deviations if "projection" in name or "contract" in name}
    assert len(into_stream) == 16
    for name, deviation in deviations.items():
        assert deviation == pytest.approx(0.02 / (4 if name in into_stream else 1), rel=0.15), name


def test_a_dict_batch_with_input_ids_is_the_same_call(seed: Callable[[int], torch.Generator]) -> None:
    model = GPT(11, 8)
    tokens = torch.randint(11, (2, 5))
    torch.testing.assert_close(model(**{"input_ids": tokens}), model(tokens))
