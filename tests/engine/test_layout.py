"""LayerCollection: what a selection means, in which order it lies, how selections combine, and what is refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

import tangentlab as tl
from tangentlab.engine.layout import LayerCollection
from tangentlab.errors import InputError


class Model(nn.Module):
    """Tied, frozen, shared and bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()))
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.encoder[2].weight
        self.again = self.encoder
        self.norm.bias.requires_grad_(False)


@pytest.fixture
def model() -> Model:
    return Model()


EVERYTHING = ("scale", "encoder.0.weight", "encoder.0.bias", "encoder.2.weight", "encoder.2.bias", "norm.weight")


def names(model: nn.Module, select: object = None, **options: object) -> tuple[str, ...]:
    return LayerCollection.from_model(model, select, **options).names


def test_all_trainable_parameters_once_in_the_order_of_named_parameters(model: Model) -> None:
    assert names(model) == EVERYTHING
    assert names(model) == tuple(name for name, p in model.named_parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("encoder", ["encoder.0.weight", "encoder.0.bias", "encoder.2.weight", "encoder.2.bias"]),
        ("encoder.0", ["encoder.0.weight", "encoder.0.bias"]),
        ("encoder.*.weight", ["encoder.0.weight", "encoder.2.weight"]),
        ("*.bias", ["encoder.0.bias", "encoder.2.bias"]),
        ("scale", ["scale"]),
        ("head.weight", ["encoder.2.weight"]),
        ("again.0.*", ["encoder.0.weight", "encoder.0.bias"]),
        (["norm", "scale"], ["scale", "norm.weight"]),
        ("?cale", ["scale"]),
    ],
)
def test_a_name_or_glob_means_everything_below_it_and_a_tied_parameter_answers_to_all_names(
    model: Model, select: object, expected: list[str]
) -> None:
    assert names(model, select) == tuple(expected)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(2, 2, bias=False)
        self.mlp = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2, bias=False))
        self.mlp_norm = nn.LayerNorm(2)


def deep() -> nn.Module:
    """Twelve blocks, so that names with one digit and with two lie side by side."""
    return nn.ModuleDict(
        {"blocks": nn.ModuleList(Block() for _ in range(12)), "mlp": nn.Linear(2, 2), "head": nn.Linear(2, 1)}
    )


MLP = ("mlp.0.weight", "mlp.0.bias", "mlp.2.weight")
EVERY_MLP = [f"blocks.{number}.{name}" for number in range(12) for name in MLP]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("blocks.*.mlp", EVERY_MLP),
        ("blocks.?.mlp", EVERY_MLP[:30]),
        ("blocks.1?.mlp", EVERY_MLP[30:]),
        ("blocks.[02].mlp.[!0]", ["blocks.0.mlp.2.weight", "blocks.2.mlp.2.weight"]),
        ("blocks.1.mlp", EVERY_MLP[3:6]),
        ("blocks.1*.mlp", EVERY_MLP[3:6] + EVERY_MLP[30:]),
        ("*.mlp", EVERY_MLP),
        ("mlp", ["mlp.weight", "mlp.bias"]),
        ("*mlp", [*EVERY_MLP, "mlp.weight", "mlp.bias"]),
        ("*.mlp_norm", [f"blocks.{n}.mlp_norm.{name}" for n in range(12) for name in ("weight", "bias")]),
        ("blocks.3.*", [f"blocks.3.{name}" for name, _ in Block().named_parameters()]),
        ("blocks.3", [f"blocks.3.{name}" for name, _ in Block().named_parameters()]),
        (["blocks.7.mlp", "blocks.7.mlp.0"], EVERY_MLP[21:24]),
        (["blocks.*.mlp.0", "*.mlp", "head.bias"], [*EVERY_MLP, "head.bias"]),
        ("*", [name for name, _ in deep().named_parameters()]),
        ("*.1.mlp.0.weight", ["blocks.1.mlp.0.weight"]),
    ],
)
def test_a_glob_means_everything_below_the_modules_that_it_matches(select: object, expected: list[str]) -> None:
    assert names(deep(), select) == tuple(expected)


def test_what_a_glob_means_is_excluded_with_everything_below() -> None:
    rest = names(deep(), exclude="blocks.*.mlp")
    assert set(rest) == {name for name, _ in deep().named_parameters()} - set(EVERY_MLP)


def test_a_glob_that_matches_a_container_and_its_child_means_each_parameter_once() -> None:
    model = nn.ModuleDict({"mlp": nn.ModuleDict({"mlp": nn.Linear(2, 2), "norm": nn.LayerNorm(2)})})
    assert names(model, "*mlp") == names(model) == names(model, "mlp*")
    assert names(model, "*.mlp") == names(model, "mlp.mlp") == ("mlp.mlp.weight", "mlp.mlp.bias")


def test_the_weights_under_a_parametrization_are_below_the_name_of_the_weight() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    expected = tuple(name for name, _ in layer.named_parameters() if name != "bias")
    assert names(layer, "*.weight") == expected and len(expected) == 2


@pytest.mark.parametrize("kind", [tl.optim.KFAC, tl.optim.EKFAC, tl.optim.Diagonal], ids=["kfac", "ekfac", "diagonal"])
def test_optimizers_take_globs(kind: type) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = x + block.mlp(block.mlp_norm(block.attention(x)))
            return x

    model = Deep()
    assert kind(model, layers="blocks.*.mlp").layout.names == tuple(EVERY_MLP[:6])
    with pytest.raises(InputError, match="near names are blocks.0.mlp"):
        kind(model, layers="blocks.0.mpl")


def test_mixed_choices_mean_everything_below_a_name() -> None:
    model, x = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)), torch.randn(5, 3)
    mixed = tl.FIM(model, x, tl.PMatMixed.of({"0": tl.PMatDiag, "*": tl.PMatKFAC}))
    expected = tl.FIM(model, x, tl.PMatDiag, layers=model[0])
    assert torch.allclose(mixed.to_dense()[: expected.shape[0], : expected.shape[0]], expected.to_dense())


def test_a_name_is_no_prefix_of_other_names() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "ab": nn.Linear(2, 2)})
    assert names(model, "a") == ("a.weight", "a.bias")


def test_a_module_means_its_own_parameters_wherever_it_is(model: Model) -> None:
    assert names(model, model.encoder[0]) == ("encoder.0.weight", "encoder.0.bias")
    assert names(model, model.head) == ("encoder.2.weight",)
    assert names(model, model) == EVERYTHING
    assert names(model, [model.norm, model.encoder[2]]) == ("encoder.2.weight", "encoder.2.bias", "norm.weight")


def test_a_parameter_a_predicate_and_a_collection_select_too(model: Model) -> None:
    assert names(model, model.scale) == ("scale",)
    assert names(model, lambda name, parameter: parameter.ndim == 2) == ("encoder.0.weight", "encoder.2.weight")
    some = LayerCollection.from_model(model, "encoder.0")
    assert LayerCollection.from_model(model, some) == some
    assert names(model, [some, "scale"]) == ("scale", "encoder.0.weight", "encoder.0.bias")


def test_exclusion_takes_away_what_a_selector_means(model: Model) -> None:
    assert names(model, exclude="*.bias") == ("scale", "encoder.0.weight", "encoder.2.weight", "norm.weight")
    assert names(model, "encoder", exclude=model.head) == ("encoder.0.weight", "encoder.0.bias", "encoder.2.bias")


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("decoder", "No trainable parameter matches 'decoder'"),
        ("norm.bias", r"No trainable parameter matches 'norm.bias' \(norm.bias has requires_grad=False\)"),
        ("encoder.1", r"'encoder.1' \(the modules of this name have no parameters\); trainable are: scale"),
        ("encodr.0", r"'encodr.0' \(near names are encoder.0,"),
        ("encoder.*.weigth", r"'encoder.\*.weigth' \(near names are encoder.[02].weight,"),
        ("encoder..0", "near names are encoder.0"),
        ("Encoder", "near names are encoder"),
        ("zzz", "no name is near"),
        ("", "no name is near"),
        ("scale.", "near names are scale"),
        (["encoder", "encodr"], "'encodr'"),
        (nn.Linear(3, 4), "not part of the model"),
        (nn.Parameter(torch.zeros(3, 4)), r"parameter of shape \(3, 4\) is not part of the model"),
        (["scale", nn.Parameter(torch.zeros(()))], "is not part of the model"),
        (lambda name, parameter: False, "leaves no trainable parameter"),
        ([], "leaves no trainable parameter"),
        (3, "Cannot select parameters by a int"),
        (torch.zeros(2), "Cannot select parameters by a Tensor"),
    ],
)
def test_a_selector_that_means_nothing_is_refused(model: Model, select: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LayerCollection.from_model(model, select)


def test_a_model_without_trainable_parameters_is_refused(model: Model) -> None:
    for nothing in (model.requires_grad_(False), nn.ReLU()):
        with pytest.raises(InputError, match="no trainable parameter"):
            LayerCollection.from_model(nothing)


def test_a_lazy_model_must_run_once_before() -> None:
    with pytest.raises(InputError, match="run the model once"):
        LayerCollection.from_model(nn.LazyLinear(3))


def test_neighbours_have_one_slice_and_others_none(model: Model) -> None:
    layout = LayerCollection.from_model(model)
    first, second, third = layout.specs[:3]
    assert layout.slice_of([first.name, second.name]) == slice(0, first.numel + second.numel)
    assert layout.slice_of([third.name]) == layout.slices[third.name]
    assert layout.slice_of([first.name, third.name]) is None and layout.slice_of([second.name, first.name]) is None


def test_offsets_and_slices_follow_the_flat_order(model: Model) -> None:
    layout = LayerCollection.from_model(model)
    start = 0
    for spec in layout:
        assert layout.slices[spec.name] == slice(start, start + spec.numel)
        assert layout.offset(spec.name) == start
        start += spec.numel
    assert layout.numel == start == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert layout.offset("encoder.2") == layout.offset("encoder.2.weight")
    with pytest.raises(InputError, match="No parameter or layer 'norm.bias'"):
        layout.offset("norm.bias")


def test_flatten_and_unflatten_are_inverse_and_row_major(model: Model) -> None:
    layout = LayerCollection.from_model(model)
    flat = torch.arange(2 * layout.numel, dtype=torch.float64).reshape(2, -1)
    parts = layout.unflatten(flat)
    assert parts["encoder.0.weight"].shape == (2, 4, 3)
    assert parts["scale"].shape == (2,)
    assert torch.equal(parts["encoder.0.weight"][0].flatten(), flat[0, layout.slices["encoder.0.weight"]])
    assert torch.equal(layout.flatten(parts, batch_ndim=1), flat)
    with pytest.raises(InputError, match=f"{layout.numel} entries"):
        layout.unflatten(flat[:, 1:])


def test_layers_list_the_parameters_of_each_module(model: Model) -> None:
    layers = LayerCollection.from_model(model).layers
    assert layers[""] == ("scale",)
    assert layers["encoder.0"] == ("encoder.0.weight", "encoder.0.bias")
    assert layers["norm"] == ("norm.weight",)


def test_union_intersection_and_difference_keep_the_order_of_the_model(model: Model) -> None:
    late, early = LayerCollection.from_model(model, "norm"), LayerCollection.from_model(model, "encoder.0")
    both = LayerCollection.from_model(model, ["encoder.0", "norm"])
    everything = LayerCollection.from_model(model)
    assert late | early == early | late == both
    assert (late | early).names == ("encoder.0.weight", "encoder.0.bias", "norm.weight")
    assert everything & both == both
    assert len(late & early) == 0
    assert (everything - both).names == ("scale", "encoder.2.weight", "encoder.2.bias")
    assert (everything - both) | both == everything
    assert "norm.weight" in both
    assert "scale" not in both


def test_collections_of_different_models_do_not_mix(model: Model) -> None:
    other = nn.Sequential(nn.Linear(3, 4))
    one, two = LayerCollection.from_model(model), LayerCollection.from_model(other)
    with pytest.raises(InputError, match="different models"):
        one | two
    with pytest.raises(InputError, match="belongs to another model"):
        LayerCollection.from_model(other, one)
    with pytest.raises(InputError, match="belongs to another model"):
        one.parameters(other)
    wider = nn.Sequential(nn.Linear(3, 5))
    with pytest.raises(InputError, match=r"shape \(4, 3\) is \(5, 3\) here"):
        two.parameters(wider)


def test_a_collection_holds_for_every_copy_of_the_model_and_survives_pickling(model: Model) -> None:
    layout = LayerCollection.from_model(model, "encoder")
    copied = pickle.loads(pickle.dumps(layout))
    assert copied == layout
    assert hash(copied) == hash(layout)
    twin = copy.deepcopy(model)
    assert all(a is dict(twin.named_parameters())[name] for name, a in layout.parameters(twin).items())


def test_its_text_tells_how_much_it_holds(model: Model) -> None:
    assert repr(LayerCollection.from_model(model)) == "LayerCollection(6 parameters, 4 layers, d = 41)"


def test_a_collection_from_before_two_layers_were_tied_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    before = LayerCollection.from_model(model)
    model[1].weight = model[0].weight
    with pytest.raises(InputError, match="'1.weight'"):
        before.parameters(model)
