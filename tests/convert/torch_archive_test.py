# SPDX-License-Identifier: Apache-2.0
"""Files that PyTorch wrote are read bit for bit; malformed ones end in one sentence."""

import zipfile

import numpy as np
import pytest
from conftest import ROOT
from normserve_convert import dtypes
from normserve_convert.errors import ConvertError
from normserve_convert.torch_archive import TorchArchive
from tensor_compare import read_bits

FIXTURES = ROOT / "tests" / "convert" / "fixtures"


def load(path):
    return TorchArchive(memoryview(path.read_bytes()), path.name).load()


def test_every_type_stride_and_shared_storage():
    tensors = load(FIXTURES / "views.pt")
    expected = read_bits(FIXTURES / "views.safetensors")
    assert sorted(tensors) == sorted(expected)
    for name, (dtype, shape, data) in expected.items():
        tensor = tensors[name]
        assert (tensor.dtype.safetensors, tensor.shape) == (dtype, shape), name
        assert tensor.read().tobytes() == data, name


def test_complex_tensor():
    values = load(FIXTURES / "complex64.pt")
    assert values.dtype is dtypes.BY_NAME["complex64"]
    np.testing.assert_allclose(values.read(), np.exp(1j * np.arange(3)), rtol=1e-6)


def rewritten(tmp_path, change, compression=zipfile.ZIP_STORED):
    """views.pt with its parts passed through `change(name, data)`; None drops a part."""
    path = tmp_path / "changed.pt"
    source = zipfile.ZipFile(FIXTURES / "views.pt")
    with source, zipfile.ZipFile(path, "w", compression) as target:
        for name in source.namelist():
            data = change(name, source.read(name))
            if data is not None:
                target.writestr(name, data)
    return path


def test_tensor_beyond_its_storage_is_refused(tmp_path):
    path = rewritten(tmp_path, lambda n, d: d[:8] if n.endswith("/data/0") else d)
    with pytest.raises(ConvertError, match="reaches beyond storage '0'"):
        load(path)["base"].read()


def test_missing_storage_is_named(tmp_path):
    path = rewritten(tmp_path, lambda n, d: None if n.endswith("/data/0") else d)
    with pytest.raises(ConvertError, match="has no part 'views/data/0'"):
        load(path)["base"].read()


def test_compressed_parts_are_refused(tmp_path):
    path = rewritten(tmp_path, lambda n, d: d, zipfile.ZIP_DEFLATED)
    with pytest.raises(ConvertError, match="is compressed"):
        load(path)


def test_big_endian_file_is_refused(tmp_path):
    path = rewritten(tmp_path, lambda n, d: b"big" if n.endswith("byteorder") else d)
    with pytest.raises(ConvertError, match="big-endian"):
        load(path)


@pytest.mark.parametrize("data", [b"PK\x03\x04", b"\x80\x02}.", b"x" * 100])
def test_what_is_no_zip_is_refused(tmp_path, data):
    path = tmp_path / "old.pt"
    path.write_bytes(data)
    with pytest.raises(ConvertError, match="no zip file"):
        load(path)


def test_truncated_file_is_refused_at_every_length(tmp_path):
    data = (FIXTURES / "views.pt").read_bytes()
    path = tmp_path / "cut.pt"
    for length in range(1, len(data) - 1, 211):
        path.write_bytes(data[:length])
        with pytest.raises(ConvertError):
            load(path)
