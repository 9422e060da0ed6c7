"""The numbers of a snapshot against plain autograd in float64."""

import math
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tangentlab.alignment import LearningFlow
from tangentlab.engine.likelihood import likelihood_of
from tangentlab.engine.weightings import SignedRoots
from tangentlab.errors import InputError
from tangentlab.recorder import TangentRecorder, View
from tangentlab.recorder.budget import Size
from tangentlab.recorder.measures import DEFAULT, NAMED
from tangentlab.recorder.probes import choose_outputs
from tests.recorder.trainings import STEADY, dense, digits_like, train


def double(batch):
    return batch[0].double(), batch[1]


def jacobian(model, x):
    """(n, c, d) by autograd."""
    rows = [[torch.autograd.grad(out, list(model.parameters()), retain_graph=True) for out in one] for one in model(x)]
    return torch.stack([torch.stack([torch.cat([g.flatten() for g in row]) for row in one]) for one in rows])


def centred_kernel(features):
    """(n c, n c) of features (n, c, d) centred per output, in any order of rows."""
    return plain_kernel(features - features.mean(0))


def plain_kernel(features):
    rows = features.flatten(0, 1)
    return rows @ rows.T


@pytest.fixture(scope="module")
def snapshot():
    model, data = dense(), {"train": double(digits_like(20, 3)), "test": double(digits_like(20, 4))}
    recorder = TangentRecorder(model, data, size=(20, None), measures=[*DEFAULT, "uncentred"], **STEADY)
    recorder.start()
    examples = {name: probe.batch for name, probe in recorder._observer.probes.items()}
    return recorder.snapshots[0]["values"], model, examples


def test_measures_of_a_view_without_a_recorder_are_those_of_a_snapshot(snapshot):
    values, model, examples = snapshot
    view = View.of(model, examples["test"])
    found = NAMED["performance"](view) | NAMED["spectrum"](view) | NAMED["alignment"](view) | NAMED["uncentred"](view)
    assert found == pytest.approx({name: values[f"test/{name}"] for name in found}, rel=1e-8)
    assert NAMED["spectrum"](view, (2,))["T_2"] == pytest.approx(found["T_4%"])
    assert "cka" not in NAMED["alignment"](View.of(model, examples["test"][0])) and "ka" in found


@pytest.mark.parametrize("mark, kernel_of", [("", centred_kernel), ("uncentred/", plain_kernel)])
@pytest.mark.parametrize("probe", ["train", "test"])
def test_spectrum_is_that_of_the_kernel_centred_per_output_or_as_it_is(snapshot, probe, mark, kernel_of):
    values, model, examples = snapshot
    eigenvalues = torch.linalg.eigvalsh(kernel_of(jacobian(model, examples[probe][0]))).clamp_min(0)
    shares = eigenvalues / eigenvalues.sum()
    expected = {
        "max": eigenvalues.max(),
        "mean": eigenvalues.mean(),
        "median": eigenvalues.quantile(0.5),
        "trace": eigenvalues.sum(),
        "effective_rank": (-(torch.xlogy(shares, shares)).sum()).exp(),
        "T_4%": shares.topk(2).values.sum(),
        "T_16%": shares.topk(10).values.sum(),
    }
    for name, value in expected.items():
        assert values[f"{probe}/{mark}{name}"] == pytest.approx(float(value), rel=1e-8), name


@pytest.mark.parametrize("probe", ["train", "test"])
def test_alignment_is_the_cosine_with_one_hot_labels_in_all_and_in_every_layer(snapshot, probe):
    values, model, examples = snapshot
    x, y = examples[probe]
    hot = F.one_hot(y, 3).double()
    features = jacobian(model, x)
    parts = {"": slice(None), "layer/1": slice(0, 36 * 8 + 8), "layer/3": slice(36 * 8 + 8, None)}
    for name, part in parts.items():
        kernel = centred_kernel(features[..., part])
        label = (hot - hot.mean(0)).flatten()
        expected = label @ kernel @ label / (kernel.norm() * (label @ label))
        assert values[f"{probe}/{name or 'cka'}"] == pytest.approx(float(expected), rel=1e-8)
        kernel, label = plain_kernel(features[..., part]), hot.flatten()
        expected = label @ kernel @ label / (kernel.norm() * (label @ label))
        assert values[f"{probe}/{f'uncentred/{name}' if name else 'ka'}"] == pytest.approx(float(expected), rel=1e-8)


def test_loss_and_accuracy_are_those_of_the_probe(snapshot):
    values, model, examples = snapshot
    x, y = examples["test"]
    assert values["test/loss"] == pytest.approx(F.cross_entropy(model(x), y).item())
    assert values["test/accuracy"] == pytest.approx(float((model(x).argmax(1) == y).double().mean()))


def test_the_start_is_similar_to_itself(snapshot):
    values = snapshot[0]
    for name in ("ntk_similarity", "sign_similarity", "representation_similarity"):
        assert values[f"train/{name}"] == pytest.approx(1.0, abs=1e-12)


def test_feature_norm_is_the_root_of_the_trace_of_the_kernel(snapshot):
    values, model, examples = snapshot
    assert values["feature_norm"] == pytest.approx(float(jacobian(model, examples["train"][0]).norm()))
    assert values["complexity"] == values["path_length"] == 0


def test_similarities_with_the_start_are_uncentred_alignments_on_the_same_part_of_the_probe():
    model = dense()
    recorder = TangentRecorder(model, {"train": double(digits_like(32, 3))}, size=(32, None), **STEADY)
    recorder.start()
    probe = recorder._observer.probes["train"]
    x = probe.batch[0]
    before, hidden_before = jacobian(model, x), F.relu(model[1](x.flatten(1)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    for size in (recorder.size, type(recorder.size)(16, 2)):
        found = recorder._observer.look(1, size, trace=False, strict=True).values
        chosen = recorder._observer.outputs[: size.outputs]
        one, two = (features[: size.examples][:, chosen].flatten(0, 1) for features in (before, jacobian(model, x)))
        expected = ((one @ one.T) * (two @ two.T)).sum() / (one @ one.T).norm() / (two @ two.T).norm()
        assert found["train/ntk_similarity"] == pytest.approx(float(expected))
        h0, h1 = hidden_before[: size.examples], F.relu(model[1](x.flatten(1)))[: size.examples]
        expected = ((h0 @ h0.T) * (h1 @ h1.T)).sum() / (h0 @ h0.T).norm() / (h1 @ h1.T).norm()
        assert found["train/representation_similarity"] == pytest.approx(float(expected))
        assert found["train/sign_similarity"] == pytest.approx(float(((h0 > 0) == (h1 > 0)).double().mean()))
        assert 0.3 < found["train/sign_similarity"] < 1


def test_complexity_sums_step_lengths_times_the_last_feature_norm():
    model = dense()
    x, y = double(digits_like(30, 3))
    recorder = TangentRecorder(model, {"train": (x, y)}, schedule=[2, 5], size=(30, None), **STEADY)
    flat = lambda: torch.cat([p.detach().flatten() for p in model.parameters()])  # noqa: E731
    order = recorder._observer.probes["train"].batch[0]
    points, norms = [flat()], [float(jacobian(model, order).norm())]
    with recorder:
        for _ in range(7):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 0.05 * torch.randn_like(parameter)
            points.append(flat())
            norms.append(float(jacobian(model, order).norm()))
            recorder.step()
    lengths = [float((b - a).norm()) for a, b in zip(points, points[1:])]
    at = [0, 0, 2, 2, 2, 5, 5]
    last = recorder.snapshots[-1]["values"]
    assert [row["step"] for row in recorder.snapshots] == [0, 2, 5, 7]
    assert last["path_length"] == pytest.approx(sum(lengths))
    assert last["distance_from_start"] == pytest.approx(float((points[-1] - points[0]).norm()))
    assert last["complexity"] == pytest.approx(sum(l * norms[s] for l, s in zip(lengths, at)))
    jumps = [(0, 2), (2, 5), (5, 7)]
    expected = sum(float((points[b] - points[a]).norm()) * norms[a] for a, b in jumps)
    assert last["complexity_between_logs"] == pytest.approx(expected)


def test_complexity_keeps_its_unit_when_the_recorder_shrinks_in_the_middle():
    found = {}
    for shrinks in (False, True):
        model, batch = dense(), double(digits_like(200, 3))
        torch.manual_seed(0)
        recorder = TangentRecorder(model, {"train": batch}, 5, size=(200, None), measures=["complexity"], **STEADY)
        with recorder:
            optimizer = train(model, 15, recorder, lr=0.02)
            if shrinks:
                recorder.size = Size(50, 3)
            train(model, 40, recorder, begin=15, optimizer=optimizer)
        found[shrinks] = recorder.snapshots
    assert [row["examples"] for row in found[True]] == [200] * 4 + [50] * 5
    for whole, part in zip(found[False], found[True], strict=True):
        for name in ("complexity", "complexity_between_logs", "feature_norm"):
            assert part["values"][name] == pytest.approx(whole["values"][name], rel=0.05), name


def test_a_state_does_not_change_when_training_goes_on():
    model, batch = dense(), double(digits_like(24, 3))
    recorder = TangentRecorder(model, {"train": batch}, 1, measures=["complexity"], **STEADY)
    with recorder:
        train(model, 1, recorder)
        state = recorder.state_dict()["flow"]
        kept = deepcopy(state)
        train(model, 3, recorder, begin=1)
    for name, value in kept["logged"].items():
        assert torch.equal(state["logged"][name], value) and torch.equal(state["start"][name], kept["start"][name])
    assert not torch.equal(recorder.state_dict()["flow"]["logged"]["1.weight"], kept["logged"]["1.weight"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("equal", [False, True])
def test_examples_with_nearly_the_same_features_can_be_recorded(dtype, equal):
    torch.manual_seed(0)
    layers = [module for _ in range(10) for module in (nn.Linear(36, 36), nn.ReLU())]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(36, 3)).to(dtype)
    x, y = digits_like(24, 3)
    x = x[:1].expand_as(x) if equal else x
    recorder = TangentRecorder(model, {"train": (x.to(dtype), y)}, measures=["spectrum", "alignment"], **STEADY)
    recorder.start()
    values = recorder.snapshots[0]["values"]
    assert all(math.isfinite(value) for value in values.values())
    if equal:
        assert values["train/trace"] == values["train/effective_rank"] == values["train/cka"] == 0


def test_with_some_outputs_the_trace_is_estimated_over_all_of_them_without_bias():
    model, batch = dense(), double(digits_like(24, 3))
    truth = None
    squares = []
    for seed in range(30):
        recorder = TangentRecorder(model, {"train": batch}, size=(24, 1), seed=seed, measures=["complexity"], **STEADY)
        recorder.start()
        truth = float(jacobian(model, recorder._observer.probes["train"].batch[0]).square().sum())
        squares.append(recorder.snapshots[0]["values"]["feature_norm"] ** 2)
    values = torch.tensor(squares)
    assert values.std() > 0
    assert abs(float(values.mean()) - truth) < 4 * float(values.std()) / len(squares) ** 0.5


@pytest.mark.parametrize("likelihood", ["classification", "binary", "regression"])
def test_signed_roots_have_the_output_fisher_as_second_moment(likelihood):
    kind, outputs = likelihood_of(likelihood), torch.randn(2, 3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    roots = SignedRoots(kind, generator)
    draws = torch.cat([roots.cotangents(outputs, None, 0, range(1)) for _ in range(4000)])
    found = torch.einsum("snc,snd->ncd", draws, draws) / len(draws)
    expected = torch.stack([kind.weigh(outputs, torch.eye(3).double()[c].expand(2, 3)) for c in range(3)], 2)
    spread = torch.einsum("snc,snd->sncd", draws, draws).std(0) / len(draws) ** 0.5
    assert ((found - expected).abs() <= 5 * spread + 1e-12).all()


def test_curvature_traces_are_unbiased():
    model, batch = dense(), double(digits_like(16, 3))
    fishers, hessians = [], []
    for seed in range(40):
        recorder = TangentRecorder(model, {"train": batch}, measures=["curvature"], seed=seed, **STEADY)
        recorder.start()
        values = recorder.snapshots[0]["values"]
        fishers.append(values["train/fisher_trace"])
        hessians.append(values["train/hessian_trace"])
    x, y = batch
    features, p = jacobian(model, x), model(x).softmax(1).detach()
    weights = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    fisher = float(torch.einsum("ncd,nce,ned->", features, weights, features)) / 16
    names = dict(model.named_parameters())

    def loss(values):
        return F.cross_entropy(torch.func.functional_call(model, values, x), y)

    blocks = torch.func.hessian(loss)({name: value.detach() for name, value in names.items()})
    hessian = sum(float(blocks[n][n].reshape(v.numel(), v.numel()).trace()) for n, v in names.items())
    for found, truth in ((torch.tensor(fishers), fisher), (torch.tensor(hessians), hessian)):
        assert abs(float(found.mean()) - truth) < 4 * float(found.std()) / len(found) ** 0.5


def test_own_measures_get_the_view_and_keep_what_they_need():
    model = dense()

    def moved(view):
        now = view.logits.mean(1)
        start = view.memory.setdefault("mean", now.clone())
        return {"moved": (now - start).norm()}

    recorder = TangentRecorder(model, {"train": double(digits_like(8))}, schedule=1, measures=[moved], **STEADY)
    with recorder, torch.no_grad():
        model[3].bias += 1.0
        recorder.step()
    assert recorder.recording.curve("train/moved")[1] == pytest.approx([0.0, 8**0.5])


def test_outputs_of_token_models_are_drawn_among_those_that_are_labels():
    tokens = torch.tensor([[1, 3, -100], [0, 3, 2]])
    chosen = choose_outputs(torch.Size([3, 50]), tokens, 10, torch.Generator().manual_seed(0))
    assert sorted(chosen) == [0, 1, 53, 102]
    some = choose_outputs(torch.Size([3, 50]), tokens, 2, torch.Generator().manual_seed(0))
    assert some == chosen[:2]


def test_without_labels_there_is_no_alignment_but_a_spectrum():
    recorder = TangentRecorder(dense(), {"train": digits_like(8)[0].double()}, **STEADY)
    recorder.start()
    values = recorder.snapshots[0]["values"]
    assert "train/cka" not in values and "train/loss" not in values and values["train/effective_rank"] > 1


def test_an_unknown_measure_names_the_known_ones():
    with pytest.raises(InputError, match="spectrum"):
        TangentRecorder(dense(), {"train": digits_like(4)}, measures=["entropy"])


def test_measures_of_one_name_are_all_taken():
    def curvature(view):
        return {"mine": 1.0}

    own = [lambda view: {"a": 1.0}, lambda view: {"b": 2.0}, partial(lambda view, c: {"c": c}, c=3.0), curvature]
    recorder = TangentRecorder(
        dense(), {"x": double(digits_like(8)), "y": double(digits_like(8))}, measures=own, **STEADY
    )
    recorder.start()
    names = [f"{probe}/{name}" for probe in "xy" for name in ("a", "b", "c", "mine")]
    assert list(recorder.snapshots[0]["values"]) == names
    assert list(recorder.snapshots[0]["parts"]) == ["<lambda>", "<lambda> 2", "partial", "curvature 2"]


def test_a_measure_of_the_recorder_may_be_given_as_the_function_it_is():
    data = {"x": double(digits_like(8)), "y": double(digits_like(8))}
    recorder = TangentRecorder(dense(), data, measures=[NAMED["curvature"]], **STEADY)
    recorder.start()
    assert list(recorder.snapshots[0]["values"]) == ["x/fisher_trace", "x/hessian_trace"]


def test_the_complexity_of_some_layers_is_that_of_their_path():
    model = dense()
    recorder = TangentRecorder(
        model, {"train": double(digits_like(12, 3))}, schedule=1, size=(12, None), layers=["1"], **STEADY
    )
    with recorder:
        truth = LearningFlow(model, recorder._observer.probes["train"].batch, layers=["1"], draws=None)
        optimizer = train(model, 1, recorder)
        truth.update()
        for step in range(1, 5):
            train(model, step + 1, recorder, begin=step, optimizer=optimizer)
            truth.update()
    values = recorder.snapshots[-1]["values"]
    assert values["complexity"] == pytest.approx(truth.complexity)
    assert values["path_length"] == pytest.approx(truth.path_length)
    assert values["feature_norm"] == pytest.approx(truth.feature_norm)


def test_a_chosen_layer_that_is_frozen_for_a_while_goes_on_with_its_path():
    model = dense()
    recorder = TangentRecorder(
        model, {"train": double(digits_like(8))}, measures=["complexity"], layers=["1", "3"], **STEADY
    )

    def move():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += parameter.requires_grad
        recorder.step()

    recorder.start()
    model[1].requires_grad_(False)
    move()
    model[1].requires_grad_(True)
    move()
    recorder.finish()
    last, whole = (sum(p.numel() for p in part.parameters()) for part in (model[3], model))
    assert recorder.snapshots[-1]["values"]["path_length"] == pytest.approx(last**0.5 + whole**0.5)
