# SPDX-License-Identifier: Apache-2.0
"""Writes the converted folder, whole or not at all.

Everything goes to a hidden sibling folder first, is flushed to disk, and takes its name at the end.
Tensors are streamed, so no more than one is in memory.
"""

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable

from normserve_convert.conversion import Conversion
from normserve_convert.errors import ConvertError
from normserve_convert.tensor import LazyTensor

# What a tokenizer may consist of, and the generation defaults beside it.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)


def write_folder(
    folder: str,
    conversion: Conversion,
    tokenizer: list[str],
    progress: Callable[[str, int], None],
) -> None:
    """Creates `folder` with model.safetensors, config.json and the tokenizer's files."""
    folder = os.path.abspath(folder)
    if os.path.exists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise ConvertError(f"{folder}: exists already and is no empty folder")
    copies = _tokenizer_copies(tokenizer)
    parent, name = os.path.split(folder)
    try:
        os.makedirs(parent, exist_ok=True)
        partial = tempfile.mkdtemp(prefix=f".{name}.partial-", dir=parent)
    except OSError as error:
        raise ConvertError(f"{parent}: cannot be written ({error.strerror})") from None
    try:
        write_safetensors(os.path.join(partial, "model.safetensors"), conversion.tensors, progress)
        with open(os.path.join(partial, "config.json"), "w", encoding="utf-8") as file:
            file.write(json.dumps(conversion.config, indent=1) + "\n")
            _flush(file)
        for source, target in copies:
            shutil.copyfile(source, os.path.join(partial, target))
        os.chmod(partial, 0o755)
        os.rename(partial, folder)
        _flush_folder(parent)
    except OSError as error:
        raise ConvertError(f"{folder}: cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_safetensors(
    path: str, tensors: list[LazyTensor], progress: Callable[[str, int], None]
) -> None:
    """One safetensors file; larger elements first, so that all are aligned."""
    ordered = sorted(tensors, key=lambda t: (-t.dtype.raw.itemsize, t.name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in ordered:
        header[tensor.name] = {
            "dtype": tensor.dtype.safetensors,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.byte_count],
        }
        offset += tensor.byte_count
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in ordered:
            values = tensor.read()
            if values.shape != tensor.shape or values.dtype != tensor.dtype.raw:
                raise ConvertError(f"tensor '{tensor.name}' is not read as {tensor.shape}")
            file.write(memoryview(values.reshape(-1)).cast("B") if values.size else b"")
            progress(tensor.name, tensor.byte_count)
        _flush(file)


def _tokenizer_copies(paths: list[str]) -> list[tuple[str, str]]:
    copies: dict[str, str] = {}
    for path in paths:
        if os.path.isdir(path):
            found = [n for n in TOKENIZER_FILES if os.path.isfile(os.path.join(path, n))]
            if not found:
                raise ConvertError(f"{path}: holds none of {', '.join(TOKENIZER_FILES)}")
            copies.update({n: os.path.join(path, n) for n in found})
        elif os.path.isfile(path) and os.path.basename(path) in TOKENIZER_FILES:
            copies[os.path.basename(path)] = path
        else:
            raise ConvertError(
                f"--tokenizer {path}: is no folder and none of {', '.join(TOKENIZER_FILES)}"
            )
    return [(source, target) for target, source in copies.items()]


def _flush(file) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
