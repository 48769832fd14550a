# SPDX-License-Identifier: Apache-2.0
"""Opens a checkpoint of any known container and hands out its model tensors by their own names.

Wrappers that training adds to names are taken off here; optimizer, scheduler and data-loader state
is left behind. Which model it is, is not decided here.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from normserve_convert.dcp import DcpFolder, is_dcp_folder
from normserve_convert.errors import ConvertError
from normserve_convert.tensor import LazyTensor
from normserve_convert.torch_archive import TorchArchive, map_file

# Added by torch.compile, activation checkpointing, FSDP and DDP.
_WRAPPERS = re.compile(r"(^|(?<=\.))(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
_MODEL_PREFIXES = ("model.", "model_state.")
# Top-level names of a full training checkpoint that are no part of the model.
_TRAINING_STATE = (
    "optimizer",
    "optimizer_state",
    "lr_scheduler",
    "dataloader",
    "train_state",
)


@dataclass
class Source:
    """Model tensors by name, and the model_args dict that nanoGPT saves beside them."""

    tensors: dict[str, LazyTensor]
    model_args: Any = None


def open_source(path: str) -> Source:
    """Reads the directory of a DCP folder or of a .pt file, not yet the numbers."""
    if os.path.isdir(path):
        if not is_dcp_folder(path):
            raise ConvertError(
                f"{path}: has no .metadata file, so it is no torch.distributed.checkpoint folder"
            )
        return Source(_from_dcp(path))
    if not os.path.isfile(path):
        raise ConvertError(f"{path}: does not exist")
    return _from_archive(path)


def _is_training_state(name: str) -> bool:
    top = name.split(".", 1)[0]
    return top in _TRAINING_STATE or re.fullmatch(r"lr_scheduler_\d+", top) is not None


def _from_dcp(path: str) -> dict[str, LazyTensor]:
    folder = DcpFolder(path)
    for name in folder.others:
        if not _is_training_state(name):
            raise ConvertError(f"{path}: entry '{name}' is no tensor and no known training state")
    prefix = next(
        (p for p in _MODEL_PREFIXES if any(name.startswith(p) for name in folder.tensors)), ""
    )
    chosen = []
    for name, tensor in folder.tensors.items():
        if name.startswith(prefix):
            chosen.append((name[len(prefix) :], tensor))
        elif not _is_training_state(name):
            raise ConvertError(f"{path}: tensor '{name}' is neither model nor training state")
    return _unwrapped(chosen, path)


def _from_archive(path: str) -> Source:
    loaded = TorchArchive(map_file(path), path).load()
    if not isinstance(loaded, dict):
        raise ConvertError(f"{path}: holds no dict of tensors")
    state: Any = loaded
    for key in ("model", "model_state"):
        if isinstance(loaded.get(key), dict):
            state = loaded[key]
            break
    args = loaded.get("model_args") if state is not loaded else None
    chosen = []
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, LazyTensor):
            raise ConvertError(f"{path}: entry '{name}' of the state dict is no tensor")
        prefix = "model." if state is loaded and name.startswith("model.") else ""
        chosen.append((name[len(prefix) :], value))
    return Source(_unwrapped(chosen, path), args)


def _unwrapped(items: Iterable[tuple[str, LazyTensor]], path: str) -> dict[str, LazyTensor]:
    tensors: dict[str, LazyTensor] = {}
    for name, tensor in items:
        plain = _WRAPPERS.sub("", name)
        if plain in tensors:
            raise ConvertError(f"{path}: tensor '{plain}' is there twice")
        tensors[plain] = tensor.renamed(plain)
    if not tensors:
        raise ConvertError(f"{path}: holds no model tensors")
    return tensors
