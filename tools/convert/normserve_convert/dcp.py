# SPDX-License-Identifier: Apache-2.0
"""Reads a torch.distributed.checkpoint folder: .metadata and the ranks' .distcp files.

.metadata is a pickle that gives every tensor's type, shape and chunks (offset and size in the whole
tensor), and for every chunk the file, offset and length where a torch.save'd tensor lies. Entries
that are not tensors (train state, data loader) are listed by name and never opened.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from normserve_convert import dtypes
from normserve_convert.errors import ConvertError
from normserve_convert.pickle_machine import Global, PickleMachine, Record
from normserve_convert.tensor import LazyTensor, check_shape
from normserve_convert.torch_archive import TorchArchive, map_file

_METADATA = "torch.distributed.checkpoint.metadata."
_OLD_METADATA = "torch.distributed._shard.sharded_tensor.metadata."


def is_dcp_folder(path: str) -> bool:
    return os.path.isfile(os.path.join(path, ".metadata"))


class DcpFolder:
    """One checkpoint folder. `tensors` are named as stored; `others` are names of other entries."""

    def __init__(self, folder: str):
        self._folder = folder
        self._where = os.path.join(folder, ".metadata")
        self._files: dict[str, memoryview] = {}
        metadata = PickleMachine(map_file(self._where), self._where, _globals()).load()
        if not isinstance(metadata, Record) or metadata.name != _METADATA + "Metadata":
            raise ConvertError(f"{self._where}: holds no torch.distributed.checkpoint metadata")
        self._places = self._index(metadata.field("storage_data", 2))
        self.tensors: dict[str, LazyTensor] = {}
        self.others: list[str] = []
        entries = metadata.field("state_dict_metadata", 0)
        if not isinstance(entries, dict):
            raise ConvertError(f"{self._where}: state_dict_metadata is no dict")
        for name, entry in entries.items():
            if isinstance(entry, Record) and entry.name == _METADATA + "TensorStorageMetadata":
                self.tensors[str(name)] = self._tensor(str(name), entry)
            else:
                self.others.append(str(name))

    def _index(self, storage_data: Any) -> dict[tuple[str, tuple[int, ...]], Record]:
        if not isinstance(storage_data, dict):
            raise ConvertError(f"{self._where}: storage_data is no dict")
        places = {}
        for key, place in storage_data.items():
            if not isinstance(key, Record) or not isinstance(place, Record):
                raise ConvertError(f"{self._where}: storage_data is not as PyTorch writes it")
            # Entries that are no tensors have a fqn alone.
            offset = (
                key.state.get("offset") if isinstance(key.state, dict) else key.field("offset", 1)
            )
            places[(str(key.field("fqn", 0)), tuple(offset) if offset is not None else ())] = place
        return places

    def _tensor(self, name: str, entry: Record) -> LazyTensor:
        where = f"{self._where}: {name}"
        kind = entry.field("properties", 0).field("dtype", 0)
        dtype = kind.name.rsplit(".", 1)[1] if isinstance(kind, Global) else None
        if dtype not in dtypes.BY_NAME:
            raise ConvertError(f"{where}: its type is not known")
        shape = check_shape(entry.field("size", 1), where)
        chunks = []
        for chunk in entry.field("chunks", 2):
            offsets = check_shape(chunk.field("offsets", 0), where)
            sizes = check_shape(chunk.field("sizes", 1), where)
            if not len(offsets) == len(sizes) == len(shape) or any(
                at + size > whole for at, size, whole in zip(offsets, sizes, shape, strict=True)
            ):
                raise ConvertError(f"{where}: a chunk lies outside the tensor of shape {shape}")
            chunks.append((offsets, sizes))
        element = dtypes.BY_NAME[dtype]
        return LazyTensor(name, element, shape, lambda: self._read(name, element, shape, chunks))

    def _read(
        self,
        name: str,
        element: dtypes.DType,
        shape: tuple[int, ...],
        chunks: list[tuple[tuple[int, ...], tuple[int, ...]]],
    ) -> np.ndarray:
        if len(chunks) == 1 and chunks[0][1] == shape:
            return self._part(name, element, *chunks[0])
        whole = np.empty(shape, element.raw)
        written = np.zeros(shape, bool)
        for offsets, sizes in chunks:
            target = tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))
            whole[target] = self._part(name, element, offsets, sizes)
            written[target] = True
        if not written.all():
            raise ConvertError(f"{self._folder}: the chunks of {name} do not cover its {shape}")
        return whole

    def _part(
        self, name: str, element: dtypes.DType, offsets: tuple[int, ...], sizes: tuple[int, ...]
    ) -> np.ndarray:
        part = self._chunk(name, offsets)
        if part.dtype is not element or part.shape != sizes:
            raise ConvertError(
                f"{self._folder}: the chunk of {name} at {offsets} is {part.dtype.name} "
                f"{part.shape} instead of {element.name} {sizes}"
            )
        return part.read()

    def _chunk(self, name: str, offsets: tuple[int, ...]) -> LazyTensor:
        place = self._places.get((name, offsets)) or (
            self._places.get((name, ())) if not any(offsets) else None
        )
        if place is None:
            raise ConvertError(f"{self._where}: the chunk of {name} at {offsets} has no place")
        transforms = (
            place.state.get("transform_descriptors") if isinstance(place.state, dict) else 0
        )
        if transforms:
            raise ConvertError(f"{self._where}: {name} is stored compressed or encrypted")
        path, offset, length = (
            place.field(key, i) for i, key in enumerate(("relative_path", "offset", "length"))
        )
        data = self._file(str(path))
        if not isinstance(offset, int) or not isinstance(length, int) or offset < 0 or length < 0:
            raise ConvertError(f"{self._where}: {name} has an invalid offset or length")
        if offset + length > len(data):
            raise ConvertError(
                f"{os.path.join(self._folder, str(path))}: is cut short: {name} lies at bytes "
                f"{offset} to {offset + length}, the file has {len(data)}"
            )
        where = f"{os.path.join(self._folder, str(path))}: {name}"
        loaded = TorchArchive(data[offset : offset + length], where).load()
        if not isinstance(loaded, LazyTensor):
            raise ConvertError(f"{where}: the chunk holds no tensor")
        return loaded

    def _file(self, relative_path: str) -> memoryview:
        # A name with a folder in it could leave the checkpoint.
        if os.path.basename(relative_path) != relative_path or relative_path in ("", ".", ".."):
            raise ConvertError(f"{self._where}: names the file '{relative_path}', no plain name")
        if relative_path not in self._files:
            self._files[relative_path] = map_file(os.path.join(self._folder, relative_path))
        return self._files[relative_path]


def _globals() -> dict[str, Callable[..., Any]]:
    def record(name: str) -> Callable[..., Record]:
        return lambda *args: Record(name, args)

    def no_call(*_: Any) -> Any:
        raise ValueError("a type is called")

    table: dict[str, Callable[..., Any]] = {"torch.Size": lambda sizes=(): tuple(sizes)}
    records = [
        _METADATA + name
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "TensorProperties",
            "ChunkStorageMetadata",
            "MetadataIndex",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    ]
    records += [_OLD_METADATA + name for name in ("TensorProperties", "MEM_FORMAT_ENCODING")]
    records += [
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.serialization._get_layout",
        "pathlib.PosixPath",
        "pathlib.WindowsPath",
        "pathlib._local.PosixPath",
        "pathlib._local.WindowsPath",
    ]
    for name in records:
        table[name] = record(name)
    for name in dtypes.BY_NAME:
        table[f"torch.{name}"] = no_call
    return table
