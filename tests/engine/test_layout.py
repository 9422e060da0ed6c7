"""LayerCollection: what a selection means, in which order it lies, how selections combine, and what is refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

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
        ("norm.bias", "No trainable parameter matches"),
        (nn.Linear(3, 4), "not part of the model"),
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
