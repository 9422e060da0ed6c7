"""From a batch to the model: where it has to be, what of it the model is given, and what is wrong when the model refuses it."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from tangentlab.engine.batches import TARGET_KEYS, Part, parts_of, plain_batch, tensor_of, with_parts
from tangentlab.errors import InputError, TangentlabError

Forward = Callable[[nn.Module, Any], Any]
Result = TypeVar("Result")


def beside(model: nn.Module, batch: Any) -> Any:
    """The batch on the device of the model; as it is where the model is on several, or nothing has to move."""
    first = next(model.parameters(), None)
    if first is None or not (_has_own_way(batch, first.device) or _elsewhere(batch, first.device)):
        return batch
    one = all(tensor.device == first.device for tensor in (*model.parameters(), *model.buffers()))
    return moved(batch, first.device) if one else batch


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on a device; the batch itself where they are there already."""
    if _has_own_way(batch, device):
        return copy.copy(batch).to(device)  # some objects move themselves, and not a copy
    return with_parts(batch, lambda part: part if tensor_of(part).device == device else part.to(device))  # type: ignore[arg-type]


def _elsewhere(batch: Any, device: torch.device) -> bool:
    return any(tensor_of(part).device != device for part in parts_of(batch))


def _has_own_way(batch: Any, device: torch.device) -> bool:
    """Whether a batch holds no tensors that can be seen and knows how to move, as graphs of torch_geometric do."""
    return device.type != "cpu" and not parts_of(batch) and callable(getattr(batch, "to", None))


def run_forward(model: nn.Module, batch: Any, forward: Forward | None = None) -> Any:
    """What the model makes of a batch: the user's `forward(model, batch)`, or the default one."""
    if forward is None:
        return call_model(model, batch)
    batch = beside(model, batch)
    return explained(model, batch, lambda: forward(model, batch))


def call_model(model: nn.Module, batch: Any) -> Any:
    """The default forward: a tensor is the input; of a tuple or list the first entry; of a mapping all but the labels."""
    batch = plain_batch(beside(model, batch))
    if isinstance(batch, Mapping):
        _refuse_one_label(next((batch[key] for key in TARGET_KEYS if key in batch), None))
        return call_by_name(model, {key: value for key, value in batch.items() if key not in TARGET_KEYS}, batch)
    if not isinstance(batch, tuple | list) or isinstance(batch, PackedSequence):
        inputs = _tensor(batch, f"a {type(batch).__name__}")
    elif not batch:
        raise InputError("A batch is an empty tuple or list: there is nothing to feed to the model.")
    else:
        inputs = _tensor(batch[0], f"a {type(batch).__name__} that starts with a {type(batch[0]).__name__}")
        _refuse_one_label(batch[1] if len(batch) > 1 else None)
        _refuse_pieces(inputs, batch[1:])
    output = explained(model, inputs, lambda: model(inputs))
    _require_example_axis(inputs, output)
    return output


def _refuse_one_label(label: Any) -> None:
    """Refuse a single number as target: it belongs to one example that no loader has put into a batch."""
    if isinstance(label, int | float) or (isinstance(label, Tensor) and label.ndim == 0):
        raise InputError(
            f"The target of a batch is one number, {float(label):g}: this is one example without an axis for examples. Write "
            "it as (x[None], torch.tensor([y])), or take batches from a DataLoader with a batch_size."
        )


def _require_example_axis(inputs: Part, output: Any) -> None:
    """Refuse one example whose entries would be taken for examples."""
    if (
        isinstance(inputs, Tensor)
        and inputs.ndim == 1
        and isinstance(output, Tensor)
        and output.shape[:1] != inputs.shape
    ):
        raise InputError(
            f"The inputs have the shape {tuple(inputs.shape)} and the outputs {tuple(output.shape)}: the first axis is "
            "that of the examples. Write one example as x[None], or pass forward=lambda model, batch: ..."
        )


def _tensor(inputs: Any, found: str) -> Part:
    """The inputs, if they are a tensor with examples or a packed sequence."""
    if isinstance(inputs, Tensor) and inputs.ndim == 0:
        raise InputError("The inputs are a tensor without axes: the first axis of a batch is that of the examples.")
    if isinstance(inputs, Part):
        return inputs
    way = (
        _ARRAYS
        if isinstance(inputs, np.ndarray)
        else "pass forward=lambda model, batch: ..., or several batches as a list"
    )
    raise InputError(f"Do not know how to feed {found} to the model: {way}.")


_ARRAYS = "give tensors, as from torch.from_numpy(array)"


def _refuse_pieces(inputs: Part, others: Sequence[Any]) -> None:
    """Refuse entries that differ from the inputs in nothing but the number of examples, as other batches of inputs do."""
    if not isinstance(inputs, Tensor) or inputs.ndim == 0:
        return
    kind = inputs.dtype, inputs.shape[1:]
    alike = [part for part in others if isinstance(part, Tensor) and part.ndim and (part.dtype, part.shape[1:]) == kind]
    lengths = [len(part) for part in alike if len(part) != len(inputs)]
    if lengths:
        raise InputError(
            f"The first entry of a batch are the inputs and the others have to do with the same examples, but here are "
            f"{len(inputs)} examples and {', '.join(map(str, lengths))}: write several batches as a list of tuples, "
            "[(a,), (b,)], or pass forward=lambda model, batch: ..."
        )


def call_by_name(model: nn.Module, arguments: dict[str, Any], batch: Mapping[str, Any]) -> Any:
    """The model on the entries of a mapping."""
    if any(isinstance(value, np.ndarray) for value in arguments.values()):
        raise InputError(f"The batch holds arrays of numpy: {_ARRAYS}.")
    if not parts_of(arguments):
        raise InputError(
            f"The batch, with {_listed(batch)}, holds no tensors to feed to the model: convert them (tokenizers do with "
            "return_tensors='pt')."
        )
    try:
        return explained(model, arguments, lambda: model(**arguments))
    except TypeError as error:
        if (problem := _wrong_names(model, arguments, batch)) is not None:
            raise InputError(problem) from error
        raise


def _wrong_names(model: nn.Module, arguments: dict[str, Any], batch: Mapping[str, Any]) -> str | None:
    """What is wrong with the names of the arguments, None if nothing is."""
    while isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    signature = inspect.signature(model.forward)
    try:
        signature.bind(**arguments)
        return None
    except TypeError as error:
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        taken = {name: value for name, value in signature.parameters.items() if value.kind not in kinds}
        held_back = [key for key in batch if key not in arguments and key in taken]
        held = f"; {_listed(held_back)} is kept back as the target" if held_back else ""
        return (
            f"The batch has {_listed(batch)}{held}, and {type(model).__name__} takes {_listed(taken)} ({error}): rename the "
            "keys, or pass forward=lambda model, batch: ..."
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def explained(model: nn.Module, inputs: Any, run: Callable[[], Result]) -> Result:
    """What a call of the model gives; what it raises because of the types of the inputs is said in words."""
    try:
        return run()
    except TangentlabError:
        raise
    except (TypeError, RuntimeError, ValueError) as error:
        inside_transform = torch._C._functorch.peek_interpreter_stack() is not None
        if not inside_transform and (problem := _wrong_types(model, inputs, error)) is not None:
            raise InputError(problem) from error
        raise


def _wrong_types(model: nn.Module, inputs: Any, error: Exception) -> str | None:
    """What is wrong with the types of the inputs if that is what an error is about, else None."""
    said = (str(error).splitlines() or [""])[0]
    if not re.search(r"dtype|datatype|[Ii]nput type|scalar type|Type promoting|implemented for", said):
        return None
    own = {p.dtype for p in model.parameters() if p.is_floating_point()}
    found = {tensor_of(part).dtype for part in parts_of(inputs)}
    named = {dtype for dtype in found if re.search(rf"\b({_NAMES.get(dtype, str(dtype))})\b", said)}
    if "mixed dtype" in said:
        named |= {dtype for dtype in found if dtype.is_floating_point}
    if foreign := named - own:
        real = {dtype for dtype in foreign if dtype.is_floating_point}
        way = f"convert the inputs, as with x.to({_types(own)})" + (
            f", or the model, by model.to({_types(real)})" * bool(real)
        )
    elif named and re.search(r"Long, Int", said):
        way = "indices, as of embeddings, are integers: convert them, as with x.long()"
    else:
        return None
    return f"The model has parameters of {_types(own)} and the batch holds {_types(found)} ({said}): {way}."


_NAMES = {
    torch.float64: "Double|double|DoubleTensor|torch.float64",
    torch.float32: "Float|float|FloatTensor|torch.float32",
    torch.float16: "Half|half|c10::Half|HalfTensor|torch.float16",
    torch.bfloat16: "BFloat16|bfloat16|c10::BFloat16|BFloat16Tensor|torch.bfloat16",
    torch.int64: "Long|long|long int|LongTensor|torch.int64",
    torch.int32: "Int|int|IntTensor|torch.int32",
    torch.uint8: "Byte|unsigned char|ByteTensor|torch.uint8",
    torch.bool: "Bool|bool|BoolTensor|torch.bool",
    torch.complex64: "ComplexFloat|c10::complex<float>|torch.complex64",
    torch.complex128: "ComplexDouble|c10::complex<double>|torch.complex128",
}
"""What torch calls its types in its errors."""


def _types(dtypes: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted(map(str, dtypes))) or "no type"
