# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as the training codes save them become what the server loads."""

import json

import numpy as np
import pytest
from conftest import ROOT
from normserve_convert.families import torchtitan
from normserve_convert.families.dyt import halves_from_pairs
from tensor_compare import assert_same_tensors

FIXTURES = ROOT / "tests" / "convert" / "fixtures"
PRENORM = {"dim": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "multiple_of": 8}
DYT = {"emb_dim": 16, "nheads": 4, "kvheads": 2, "nlayers": 2, "multiple_of": 8}
DYT |= {"hidden_grow_factor": 1.5, "max_expected_seq_len": 64, "norm_eps": 1e-6}


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def test_nanogpt_of_a_compiled_model(convert):
    code, folder, _ = convert(FIXTURES / "nanogpt.pt", "--quiet")
    assert code == 0
    assert_same_tensors(folder / "model.safetensors", FIXTURES / "nanogpt.safetensors")
    config = config_of(folder)
    assert (config["architecture"], config["torch_dtype"]) == ("nanogpt", "float32")
    assert config["model_args"]["block_size"] == 24 and config["model_args"]["bias"] is True


def test_simple_nanogpt_is_recognised_by_its_names(convert):
    code, folder, _ = convert(FIXTURES / "simple_nanogpt.pt", "--quiet")
    assert code == 0
    assert_same_tensors(folder / "model.safetensors", FIXTURES / "simple_nanogpt.safetensors")
    config = config_of(folder)
    assert (config["architecture"], config["torch_dtype"]) == ("simple_nanogpt", "bfloat16")


@pytest.mark.parametrize("file", ["prenorm.pt", "prenorm_nested.pt"])
def test_torchtitan_state_dict_in_one_file(convert, file):
    flags = ("--model", "llama2", "--model-args", json.dumps(PRENORM), "--norm-type", "layernorm")
    code, folder, error = convert(FIXTURES / file, *flags, "--quiet")
    assert (code, error) == (0, "")
    assert_same_tensors(folder / "model.safetensors", FIXTURES / "prenorm.safetensors")
    config = config_of(folder)
    assert config["architecture"] == "PrenormTransformer"
    assert config["model_args"]["norm_type"] == "layernorm"
    assert (config["model_args"]["max_seq_len"], config["model_args"]["vocab_size"]) == (20, 24)


def test_dyt_names_become_hugging_face_names(convert):
    code, folder, _ = convert(FIXTURES / "dyt.pt", "--model-args", json.dumps(DYT), "--quiet")
    assert code == 0
    assert_same_tensors(folder / "model.safetensors", FIXTURES / "dyt.safetensors")
    config = config_of(folder)
    assert (config["norm_type"], config["use_shared_scale"]) == ("dyt", True)
    assert (config["intermediate_size"], config["head_dim"]) == (24, 4)
    assert config["max_position_embeddings"] == 64 and not config["tie_word_embeddings"]


def test_reordered_rows_leave_every_attention_score_as_it_was():
    rng = np.random.default_rng(1)
    heads, dim, hidden = 3, 8, 5
    q_rows, k_rows = rng.normal(size=(2, heads * dim, hidden))
    x, y = rng.normal(size=(2, hidden))
    theta = 10000.0 ** (-np.arange(dim // 2) / (dim // 2))

    def in_pairs(v, position):
        turned = (v[..., ::2] + 1j * v[..., 1::2]) * np.exp(1j * position * theta)
        return np.stack([turned.real, turned.imag], -1).reshape(v.shape)

    def in_halves(v, position):
        turned = (v[..., : dim // 2] + 1j * v[..., dim // 2 :]) * np.exp(1j * position * theta)
        return np.concatenate([turned.real, turned.imag], -1)

    def scores(rotate, q, k):
        a, b = (q @ x).reshape(heads, dim), (k @ y).reshape(heads, dim)
        return np.sum(rotate(a, 11) * rotate(b, 3), -1)

    before = scores(in_pairs, q_rows, k_rows)
    after = scores(in_halves, halves_from_pairs(q_rows, heads), halves_from_pairs(k_rows, heads))
    np.testing.assert_allclose(after, before, rtol=1e-12)


@pytest.mark.parametrize(
    ("checkpoint", "flags", "sentence"),
    [
        ("nanogpt", ("--model", "simple_nanogpt"), "the tensors are those of nanogpt"),
        ("nanogpt", ("--model-args", '{"n_layer": 2}'), "'n_head' is missing"),
        ("prenorm", (), "--model is missing; a torchtitan checkpoint needs one of llama2"),
        ("prenorm", ("--model", "gpt5"), "--model is gpt5"),
        ("prenorm", ("--model", "llama2"), "--flavor is missing; llama2 has debugmodel"),
        ("prenorm", ("--model", "llama2", "--flavor", "9B"), "--flavor is 9B"),
        ("prenorm", ("--model", "llama2", "--flavor", "1B"), "has shape (24, 16)"),
        ("prenorm", ("--model", "llama2", "--model-args", "{"), "is no JSON"),
        ("dyt", (), "--flavor is missing; the DyT code has llama2_70b"),
        ("dyt", ("--flavor", "llama2_7b"), "cannot split"),
        ("views", (), "are of no known model"),
        ("complex64", (), "holds no dict of tensors"),
    ],
)
def test_what_is_not_known_is_refused(convert, checkpoint, flags, sentence):
    code, folder, error = convert(FIXTURES / f"{checkpoint}.pt", *flags, "--quiet")
    assert code == 1
    assert sentence in error
    assert error.count("\n") == 1
    assert not folder.exists()


def test_existing_output_is_never_overwritten(convert, tmp_path):
    (tmp_path / "out0").mkdir()
    (tmp_path / "out0" / "precious").write_text("x")
    code, folder, error = convert(FIXTURES / "nanogpt.pt", "--quiet")
    assert code == 1 and "exists already" in error
    assert [p.name for p in folder.iterdir()] == ["precious"]


def test_tokenizer_files_are_copied(convert, tmp_path):
    tokenizer = tmp_path / "tok"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.model").write_bytes(b"abc")
    (tokenizer / "unrelated.bin").write_bytes(b"no")
    code, folder, _ = convert(FIXTURES / "nanogpt.pt", "--tokenizer", tokenizer, "--quiet")
    assert code == 0
    names = ["config.json", "model.safetensors", "tokenizer.model"]
    assert sorted(p.name for p in folder.iterdir()) == names
    code, _, error = convert(FIXTURES / "nanogpt.pt", "--tokenizer", tokenizer / "unrelated.bin")
    assert code == 1 and "--tokenizer" in error


def test_flavor_table_gives_the_published_sizes():
    simplegpt_1b = {**torchtitan.DEFAULTS, **torchtitan.FLAVORS["llama2_simplegpt"]["1B"]}
    llama3_8b = {**torchtitan.DEFAULTS, **torchtitan.FLAVORS["llama3_simplegpt"]["8B"]}
    assert torchtitan.feed_forward_width(simplegpt_1b) == 5632
    assert torchtitan.feed_forward_width(llama3_8b) == 14336
    shapes = torchtitan.expected_shapes("SimpleGPT", {**llama3_8b, "vocab_size": 128256})
    assert shapes["layers.31.attention.snk.norm.weight"] == (1024,)
    assert sum(int(np.prod(s)) for s in shapes.values()) > 8.0e9
