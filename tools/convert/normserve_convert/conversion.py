# SPDX-License-Identifier: Apache-2.0
"""What a family makes of a checkpoint: tensors to write and the config that describes them.

Checking is strict in both directions: a tensor that the model needs and the checkpoint lacks, and
one that the checkpoint has and the model does not, are both errors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from normserve_convert import dtypes
from normserve_convert.errors import ConvertError
from normserve_convert.tensor import LazyTensor


@dataclass
class Options:
    """What the command line says beside the paths. None: not said."""

    model: str | None = None
    flavor: str | None = None
    model_args: dict[str, Any] | None = None
    norm_type: str | None = None
    max_seq_len: int | None = None


@dataclass
class Conversion:
    """The result, not yet written. `notes` are facts that the checkpoint does not hold."""

    config: dict[str, Any]
    tensors: list[LazyTensor]
    notes: list[str] = field(default_factory=list)


def check_tensors(
    tensors: Mapping[str, LazyTensor], expected: Mapping[str, tuple[int, ...]], model: str
) -> None:
    """Refuses a difference between what the checkpoint has and what the model needs."""
    for name, tensor in tensors.items():
        if name not in expected:
            raise ConvertError(f"tensor '{name}' {tensor.shape} is not part of {model}")
    for name, shape in expected.items():
        if name not in tensors:
            raise ConvertError(f"tensor '{name}' {shape} of {model} is missing in the checkpoint")
        if tensors[name].shape != shape:
            raise ConvertError(
                f"tensor '{name}' has shape {tensors[name].shape}; {model} has {shape} there"
            )
        if tensors[name].dtype.name not in dtypes.SERVED:
            raise ConvertError(
                f"tensor '{name}' is {tensors[name].dtype.name}; the server loads "
                f"{', '.join(dtypes.SERVED)}"
            )


def main_dtype(tensors: list[LazyTensor]) -> str:
    """The type that holds most elements: what config.json calls torch_dtype."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        counts[tensor.dtype.name] = counts.get(tensor.dtype.name, 0) + tensor.element_count
    return max(counts, key=lambda name: counts[name])


def merge_args(defaults: Mapping[str, Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`given` over `defaults`; an unknown key or a value of another kind is an error."""
    merged = dict(defaults)
    for key, value in given.items():
        if key not in defaults:
            raise ConvertError(f"{where}: '{key}' is not known; known: {', '.join(defaults)}")
        like = defaults[key]
        fits = value is None or like is None or _same_kind(value, like)
        if not fits:
            raise ConvertError(
                f"{where}: '{key}' is {json.dumps(value)}; a {type(like).__name__} is needed"
            )
        merged[key] = value
    return merged


def need_positive(args: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    """Refuses sizes that are no positive integers."""
    for key in keys:
        value = args[key]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
            raise ConvertError(
                f"{where}: '{key}' is {json.dumps(value)}; 1 to 2147483647 is needed"
            )


def _same_kind(value: Any, like: Any) -> bool:
    if isinstance(like, bool):
        return isinstance(value, bool)
    if isinstance(like, (int, float)):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, type(like))
