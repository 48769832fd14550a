# SPDX-License-Identifier: Apache-2.0
"""A checkpoint cannot run anything: crafted pickles are refused by name, in .pt and .metadata."""

import io
import os
import pickle
import struct
import subprocess
import zipfile

import pytest
from normserve_convert.errors import ConvertError
from normserve_convert.pickle_machine import PickleMachine

TABLE = {"collections.OrderedDict": dict}


class Call:
    """Pickles as a call of any function."""

    def __init__(self, function, *args):
        self._reduced = (function, args)

    def __reduce__(self):
        return self._reduced


ATTACKS = {
    "os.system": (Call(os.system, "touch attacked"), "posix.system"),
    "eval": (Call(eval, "open('attacked','w')"), "builtins.eval"),
    "getattr": (Call(getattr, "x", "upper"), "builtins.getattr"),
    "subprocess": (Call(subprocess.getoutput, "touch attacked"), "subprocess.getoutput"),
    "import": (Call(__import__, "os"), "builtins.__import__"),
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("attack", ATTACKS)
def test_call_in_a_pt_file_is_refused_by_name(convert, tmp_path, monkeypatch, attack, protocol):
    monkeypatch.chdir(tmp_path)
    payload, name = ATTACKS[attack]
    data = pickle.dumps({"model": payload}, protocol)
    with zipfile.ZipFile("evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", data)
    code, folder, error = convert("evil.pt")
    if protocol == 2:  # pickle writes Python 2's names there
        name = name.replace("builtins", "__builtin__").replace("subprocess", "commands")
    assert code == 1
    assert f"names '{name}', which is not allowed" in error
    assert not folder.exists() and not (tmp_path / "attacked").exists()


def test_call_in_dcp_metadata_is_refused_by_name(convert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step").mkdir()
    payload, name = ATTACKS["os.system"]
    (tmp_path / "step" / ".metadata").write_bytes(pickle.dumps(payload))
    code, _, error = convert("step")
    assert code == 1 and f"names '{name}', which is not allowed" in error
    assert not (tmp_path / "attacked").exists()


def run(data):
    return PickleMachine(data, "crafted", TABLE).load()


def test_plain_data_of_every_protocol_round_trips():
    value = {
        "a": [1, 255, 65535, -7, 2**40, -(2**40), True, False, None, 1.5],
        "b": (1, (2, 3), ()),
        "c": {"x", "y"},
        "d": b"bytes" * 100,
        "e": "text \u00e9\u4e16" * 100,
        "f": frozenset([1, 2]),
    }
    value["g"] = value["a"]
    for protocol in (4, 5):
        assert run(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"(S'x'\nios\nsystem\n.", "opcode 0x53"),
        (b"\x80\x02cos\nsystem\n.", "'os.system'"),
        (b"\x80\x02(ios\nsystem\n.", "opcode 0x69"),
        (b"\x80\x02}R.", "pops an empty stack"),
        (b"\x80\x02}}R.", "calls something that is not an allowed global"),
        (b"\x80\x02]}b.", "sets the state of something that has none"),
        (b"\x80\x02]Q.", "persistent id"),
        (b"\x80\x02Px\n.", "opcode 0x50"),
        (b"\x80\x02\x82\x01.", "opcode 0x82"),
        (b"\x80\x06N.", "protocol 6"),
        (b"\x80\x04N", "ends too early"),
        (b"\x80\x04u.", "no mark|pops an empty stack"),
        (b"\x80\x04" + b"\x8e" + struct.pack("<Q", 1 << 62) + b"x.", "ends too early"),
        (b"\x80\x02h\x05.", "recalls memo 5"),
        (b"\x80\x02]]K\x01s.", "adds to something that is no dict"),
        (b"\x80\x02}]K\x01s.", "is malformed"),
    ],
)
def test_malformed_pickle_is_one_sentence(data, sentence):
    with pytest.raises(ConvertError, match=sentence):
        run(data)


def test_huge_memo_index_costs_no_memory():
    # Python's own unpickler would allocate room for 2^32 entries here.
    assert run(b"\x80\x02Nr\xff\xff\xff\xff.") is None


def test_bytes_of_a_real_pickle_flipped_never_raise_anything_else():
    data = bytearray(pickle.dumps({"a": [1, 2.5, "x", (1, 2)], "b": {"c": None}}, 2))
    for at in range(len(data)):
        for bit in range(8):
            changed = bytes(data[:at]) + bytes([data[at] ^ (1 << bit)]) + bytes(data[at + 1 :])
            try:
                run(changed)
            except ConvertError:
                pass


def test_tensor_shapes_from_a_file_are_checked(tmp_path):
    from normserve_convert.torch_archive import TorchArchive

    # torch._utils._rebuild_tensor_v2(storage, 0, (size,), (1,), False, {}) with a bad size.
    for size in (b"J\xff\xff\xff\xff", b"\x8a\x08" + struct.pack("<q", 1 << 60), b"\x88"):
        data = (
            b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n"
            b"FloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQK\x00"
            + size
            + b"\x85K\x01\x85\x89}tR."
        )
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x/data.pkl", data)
        with pytest.raises(ConvertError, match="shape"):
            TorchArchive(memoryview(file.getvalue()), "x.pt").load()
