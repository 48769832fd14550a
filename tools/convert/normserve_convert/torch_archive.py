# SPDX-License-Identifier: Apache-2.0
"""Reads what torch.save writes: a zip file of one pickle (data.pkl) and one file per storage.

The zip's parts are used in place (mapped, not copied), which is possible because torch stores them
uncompressed. The format from before PyTorch 1.6, which is no zip, is refused.
"""

import io
import mmap
import os
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from normserve_convert import dtypes
from normserve_convert.errors import ConvertError
from normserve_convert.pickle_machine import Global, PickleMachine, Record
from normserve_convert.tensor import LazyTensor, check_shape

_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")


class _View(io.RawIOBase):
    """A part of a mapped file as a file, for zipfile."""

    def __init__(self, view: memoryview):
        self._view = view
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._view)}[whence]
        if base + offset < 0:
            raise OSError("seek before the start")
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = len(self._view) if size is None or size < 0 else self._at + size
        piece = bytes(self._view[self._at : end])
        self._at += len(piece)
        return piece


def map_file(path: str) -> memoryview:
    """The file's bytes, mapped read-only."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ConvertError(f"{path}: the file is empty")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ConvertError(f"{path}: cannot be read ({error.strerror})") from None


@dataclass(frozen=True)
class _Storage:
    dtype: str | None  # None: untyped bytes
    key: str


class TorchArchive:
    """One torch.save'd object. Tensors in it are LazyTensor values named ""."""

    def __init__(self, data: memoryview, where: str):
        self._data = data
        self._where = where
        try:
            with zipfile.ZipFile(_View(data)) as archive:
                self._entries = {entry.filename: entry for entry in archive.infolist()}
        except zipfile.BadZipFile:
            raise ConvertError(
                f"{where}: is no zip file as torch.save writes since PyTorch 1.6, or is cut short"
            ) from None
        except (struct.error, ValueError, OSError, NotImplementedError) as error:
            raise ConvertError(f"{where}: the zip directory is malformed ({error})") from None
        pickles = [name for name in self._entries if name.split("/")[1:] == ["data.pkl"]]
        if len(pickles) != 1:
            raise ConvertError(f"{where}: holds {len(pickles)} data.pkl files instead of one")
        self._root = pickles[0].split("/")[0]
        order = f"{self._root}/byteorder"
        if order in self._entries and bytes(self._part(order)) != b"little":
            raise ConvertError(f"{where}: was written on a big-endian machine")

    def load(self) -> Any:
        """The object: dicts, lists and scalars as they are, tensors as LazyTensor."""
        return PickleMachine(
            self._part(f"{self._root}/data.pkl"), self._where, self._globals(), self._storage
        ).load()

    def _part(self, name: str) -> memoryview:
        entry = self._entries.get(name)
        if entry is None:
            raise ConvertError(f"{self._where}: has no part '{name}'")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 0x1:
            raise ConvertError(f"{self._where}: part '{name}' is compressed or encrypted")
        header_end = entry.header_offset + _LOCAL_HEADER.size
        if entry.header_offset < 0 or header_end > len(self._data):
            raise ConvertError(f"{self._where}: part '{name}' lies outside the file")
        fields = _LOCAL_HEADER.unpack(self._data[entry.header_offset : header_end])
        start = header_end + fields[9] + fields[10]
        if fields[0] != b"PK\x03\x04" or start + entry.file_size > len(self._data):
            raise ConvertError(f"{self._where}: part '{name}' lies outside the file")
        return self._data[start : start + entry.file_size]

    def _storage(self, persistent_id: Any) -> _Storage:
        if (
            not isinstance(persistent_id, tuple)
            or len(persistent_id) != 5
            or persistent_id[0] != "storage"
            or not isinstance(persistent_id[1], Global)
            or not isinstance(persistent_id[2], str)
        ):
            raise ConvertError(f"{self._where}: a storage is not described as torch.save does")
        kind = persistent_id[1].name.rsplit(".", 1)[1]
        if kind == "UntypedStorage":
            return _Storage(None, persistent_id[2])
        if kind not in dtypes.BY_STORAGE:
            raise ConvertError(f"{self._where}: storage type '{kind}' is not known")
        return _Storage(dtypes.BY_STORAGE[kind], persistent_id[2])

    def _tensor(self, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> LazyTensor:
        dtype = None
        if isinstance(storage, _Storage):
            dtype = storage.dtype
        if len(rest) >= 4 and isinstance(rest[3], Global):  # _rebuild_tensor_v3: rest is
            dtype = rest[2].name.rsplit(".", 1)[1]  # requires_grad, hooks, dtype, metadata
        elif len(rest) >= 3 and isinstance(rest[2], Global):
            dtype = rest[2].name.rsplit(".", 1)[1]
        if not isinstance(storage, _Storage) or dtype not in dtypes.BY_NAME:
            raise ConvertError(f"{self._where}: a tensor has no storage of a known type")
        shape = check_shape(size, self._where)
        strides = check_shape(stride, self._where)
        if len(strides) != len(shape) or not isinstance(offset, int) or offset < 0:
            raise ConvertError(f"{self._where}: a tensor's offset or strides are invalid")
        kind = dtypes.BY_NAME[dtype]
        return LazyTensor(
            "", kind, shape, lambda: self._read(storage.key, kind, offset, shape, strides)
        )

    def _read(
        self,
        key: str,
        kind: dtypes.DType,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> np.ndarray:
        part = self._part(f"{self._root}/data/{key}")
        available = len(part) // kind.raw.itemsize
        if 0 in shape:
            return np.empty(shape, kind.raw)
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if last >= available:
            raise ConvertError(
                f"{self._where}: a tensor of shape {shape} reaches beyond storage '{key}', which "
                f"has {available} elements"
            )
        flat = np.frombuffer(part, kind.raw, count=available)
        view = np.lib.stride_tricks.as_strided(
            flat[offset:], shape, [step * kind.raw.itemsize for step in strides], writeable=False
        )
        return np.ascontiguousarray(view)

    def _globals(self) -> dict[str, Callable[..., Any]]:
        table: dict[str, Callable[..., Any]] = {
            "collections.OrderedDict": _ordered_dict,
            "builtins.set": lambda items=(): set(items),
            "__builtin__.set": lambda items=(): set(items),
            "_codecs.encode": lambda text, _encoding=None: text,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._tensor,
            "torch._utils._rebuild_parameter": _parameter,
            "torch.Size": lambda sizes=(): tuple(sizes),
            "torch.device": lambda *args: Record("torch.device", args),
            "torch.storage.UntypedStorage": _no_call,
        }
        # Training state beside the model: numpy numbers, and the bytes that torchtitan keeps.
        for name in ("dtype", "core.multiarray.scalar", "_core.multiarray.scalar"):
            table[f"numpy.{name}"] = _record_maker(f"numpy.{name}")
        table["_io.BytesIO"] = _record_maker("_io.BytesIO")
        for name in dtypes.BY_STORAGE:
            table[f"torch.{name}"] = _no_call
            table[f"torch.cuda.{name}"] = _no_call
        for name in dtypes.BY_NAME:
            table[f"torch.{name}"] = _no_call
        return table


def _ordered_dict(items: Any = ()) -> OrderedDict:
    return OrderedDict(tuple(pair) for pair in items)


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _no_call(*_: Any) -> Any:
    raise ValueError("a type is called")


def _record_maker(name: str) -> Callable[..., Record]:
    return lambda *args: Record(name, args)
