"""Records' clipped gradients of a PyTorch model, for sums with epsilon per record.

    sums = record_gradients(model, torch.nn.functional.cross_entropy, X, y, clip=1.0)

replaces `loss.backward()` in a training loop. It computes per-record gradients by `torch.func`,
clips each, and sums them so that one record changes the sum by at most `clip`. Needs the extra
`torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.checks import optional_module
from blindsight.core.errors import InvalidParameter
from blindsight.federated.noise import clipped_sum

if TYPE_CHECKING:
    import torch

__all__ = ["load_arrays", "named_arrays", "record_gradients"]

Arrays = dict[str, NDArray[Any]]


def named_arrays(model: torch.nn.Module, names: Collection[str] | None = None) -> Arrays:
    """Return the arrays of a model that a federation shares.

    Parameters:
        model: the model.
        names: names of parameters or prefixes of them ("classifier.", "lora_"); by default all
            parameters that require a gradient, so that frozen layers are not shared.

    Returns:
        Arrays by name, in the model's order.

    Raises:
        InvalidParameter: no parameter has such a name.
    """
    chosen = {
        name: parameter.detach().cpu().numpy()
        for name, parameter in model.named_parameters()
        if (parameter.requires_grad if names is None else name.startswith(tuple(names)))
    }
    if not chosen:
        raise InvalidParameter("no parameter of the model is named so, or requires a gradient.")
    return chosen


def load_arrays(model: torch.nn.Module, arrays: Arrays) -> None:
    """Copy arrays into the parameters of the same names; other parameters are not changed.

    Parameters:
        model: the model.
        arrays: arrays in the form that `named_arrays` returns.
    """
    import torch

    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, array in arrays.items():
            parameters[name].copy_(torch.from_numpy(np.array(array)))


def record_gradients(
    model: torch.nn.Module,
    loss: Callable[..., torch.Tensor],
    X: torch.Tensor,
    y: torch.Tensor,
    *,
    clip: float,
    names: Collection[str] | None = None,
    batch: int = 64,
) -> Arrays:
    """Return the sum of all records' gradients, each clipped to an l2 norm.

    A record's gradient must not depend on other records, so layers that mix a batch (BatchNorm in
    training mode) are refused.

    Parameters:
        model: the model.
        loss: of the model's output and the targets of a batch, for example
            `torch.nn.functional.cross_entropy`.
        X: the records.
        y: their targets.
        clip: the largest norm of one record's gradient, over all chosen parameters together.
        names: which parameters, as in `named_arrays`.
        batch: how many records' gradients are in memory at once.

    Returns:
        Sums by parameter, as float64.

    Raises:
        InvalidParameter: a layer mixes the records of a batch.
    """
    torch = optional_module("torch", extra="torch")
    checks.positive("clip", clip)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training:
            raise InvalidParameter(
                f"{type(module).__name__} in training mode mixes records: use GroupNorm, or call "
                "model.eval() and train other layers."
            )
    chosen = set(named_arrays(model, names))
    parameters = dict(model.named_parameters())
    moving = {name: p.detach() for name, p in parameters.items() if name in chosen}
    fixed = {name: p.detach() for name, p in parameters.items() if name not in chosen}
    fixed |= {name: buffer.detach() for name, buffer in model.named_buffers()}

    def of_record(values: dict[str, Any], x: Any, target: Any) -> Any:
        output = torch.func.functional_call(model, {**fixed, **values}, (x.unsqueeze(0),))
        return loss(output, target.unsqueeze(0))

    gradients = torch.func.vmap(
        torch.func.grad(of_record), in_dims=(None, 0, 0), randomness="different"
    )
    sizes = [parameter.numel() for parameter in moving.values()]
    total, lost = np.zeros(sum(sizes)), np.zeros(sum(sizes))
    for start in range(0, len(X), checks.whole("batch", batch)):
        parts = gradients(moving, X[start : start + batch], y[start : start + batch])
        rows = torch.cat([parts[name].flatten(1) for name in moving], dim=1)
        # Kahan's sum over the batches: see `blindsight.privacy.door.added`.
        block = clipped_sum(rows.detach().cpu().numpy().astype(np.float64), clip) - lost
        grown = total + block
        lost = (grown - total) - block
        total = grown
    ends = np.cumsum(sizes)[:-1]
    return {
        name: part.reshape(tuple(moving[name].shape))
        for name, part in zip(moving, np.split(total, ends), strict=True)
    }
