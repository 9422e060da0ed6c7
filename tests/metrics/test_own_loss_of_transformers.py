"""likelihood="model" on real models of transformers with random weights: the gradients of their own loss, one by one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tangentlab as tl

pytestmark = pytest.mark.slow
N, T, V = 5, 7, 29


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


def bert(hf: Any, kind: str, **options: Any) -> nn.Module:
    sizes = {"vocab_size": V, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}
    return getattr(hf, f"BertFor{kind}")(hf.BertConfig(**sizes, num_attention_heads=2, **options))


def decoder(hf: Any, kind: str, **options: Any) -> nn.Module:
    sizes = {"vocab_size": V, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16}
    return getattr(hf, f"{kind}ForCausalLM")(getattr(hf, f"{kind}Config")(**sizes, **heads, **options))


MODELS: dict[str, tuple[Callable[[Any], nn.Module], str]] = {
    "gpt2": (
        lambda hf: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=V, n_positions=16, n_embd=8, n_layer=2, n_head=2)),
        "tokens",
    ),
    "llama": (lambda hf: decoder(hf, "Llama"), "tokens"),
    "mixtral": (lambda hf: decoder(hf, "Mixtral", num_local_experts=3), "tokens"),
    "mixtral with its router's loss": (
        lambda hf: decoder(hf, "Mixtral", num_local_experts=3, output_router_logits=True),
        "tokens",
    ),
    "masked": (lambda hf: bert(hf, "MaskedLM"), "tokens"),
    "classes": (lambda hf: bert(hf, "SequenceClassification", num_labels=3), "classes"),
    "regression": (lambda hf: bert(hf, "SequenceClassification", num_labels=1), "real"),
    "several labels": (
        lambda hf: bert(hf, "SequenceClassification", num_labels=3, problem_type="multi_label_classification"),
        "several",
    ),
    "question answering": (lambda hf: bert(hf, "QuestionAnswering"), "spans"),
    "t5": (
        lambda hf: hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=V, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, decoder_start_token_id=0)
        ),
        "tokens",
    ),
}


def batch_of(kind: str, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, V, (N, T), generator=generator)
    labels = ids.clone()
    labels[0, 3:], labels[2, :2] = -100, -100
    real = torch.randn((N, 3), generator=generator, dtype=dtype)
    found = {
        "tokens": {"labels": labels},
        "classes": {"labels": torch.arange(N) % 3},
        "real": {"labels": real[:, 0]},
        "several": {"labels": (real > 0).to(dtype)},
        "spans": {"start_positions": torch.arange(N) % T, "end_positions": (2 * torch.arange(N)) % T},
    }
    return {"input_ids": ids, **found[kind]}


def gradient(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    parameters = list(model.parameters())
    grads = torch.autograd.grad(model(**batch).loss, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([grad.flatten() for grad in grads])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", list(MODELS))
def test_gradients_are_those_of_the_models_own_loss_and_average_to_that_of_the_batch(
    transformers: Any, name: str, dtype: torch.dtype
) -> None:
    if "mixtral" in name and dtype == torch.float64:
        pytest.skip("its experts do not run in float64")
    torch.manual_seed(0)
    build, kind = MODELS[name]
    model, batch = build(transformers).eval().to(dtype), batch_of(kind, dtype)
    truth = torch.stack([gradient(model, {k: v[n : n + 1] for k, v in batch.items()}) for n in range(N)])
    found = tl.per_example_grads(model, batch, likelihood="model").flat
    tolerance = 1e-5 if dtype == torch.float32 else 1e-9
    assert (found - truth).abs().max() <= tolerance * truth.abs().max()
    if kind == "tokens" and "router" not in name:
        counts = (batch["labels"][:, 0 if name in ("masked", "t5") else 1 :] != -100).sum(1).to(dtype)
        whole = gradient(model, batch)
        tolerance = 1e-5  # causal models compute their loss in float32
        assert ((counts / counts.sum()) @ found - whole).abs().max() <= tolerance * whole.abs().max()
