# SPDX-License-Identifier: Apache-2.0
"""The authors' torch.distributed.checkpoint folders convert to exactly the stored tensors."""

import json
import shutil

import pytest
import safetensors.numpy
from conftest import ROOT
from tensor_compare import assert_same_tensors

GOLDEN = ROOT / "tests" / "golden" / "simplegpt_dcp"
STEP = "checkpoint/llama3_simplegpt_debugmodel/AdamW/step-10"
FULL = GOLDEN / "outputs" / STEP
WEIGHTS_ONLY = GOLDEN / "outputs_weights_only_bf16" / STEP
FLAGS = ("--model", "llama3_simplegpt", "--model-args", GOLDEN / "config.json", "--quiet")
ARGS = json.loads((GOLDEN / "config.json").read_text())["model_args"]


def test_full_checkpoint_of_two_ranks_with_uneven_shards(convert):
    code, folder, error = convert(FULL, *FLAGS)
    assert (code, error) == (0, "")
    assert_same_tensors(folder / "model.safetensors", GOLDEN / "model.safetensors")
    assert json.loads((folder / "config.json").read_text()) == json.loads(
        (GOLDEN / "config.json").read_text()
    )
    assert len(safetensors.numpy.load_file(folder / "model.safetensors")) == 31


def test_weights_only_bfloat16_checkpoint(convert):
    code, folder, _ = convert(WEIGHTS_ONLY, *FLAGS)
    assert code == 0
    assert_same_tensors(
        folder / "model.safetensors", GOLDEN / "model.weights_only_bf16.safetensors"
    )
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_context_and_vocabulary_come_from_the_checkpoint(convert):
    sizes = {k: v for k, v in ARGS.items() if k not in ("vocab_size", "max_seq_len", "norm_type")}
    flags = ("--model", "llama3_simplegpt", "--model-args", json.dumps(sizes), "--quiet")
    code, folder, error = convert(FULL, *flags)
    assert code == 0
    assert json.loads((folder / "config.json").read_text())["model_args"] == ARGS
    assert "norm_type rmsnorm is assumed" in error


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rope_theta": 10000}, "'freqs_cis' was not made with rope_theta 10000"),
        ({"n_heads": 8, "n_kv_heads": 4}, "'freqs_cis' is complex64"),
        ({"n_layers": 1}, "is not part of SimpleGPT"),
        ({"n_layers": 3}, "'layers.2.attention.snq.lin.weight' (64, 64) of SimpleGPT"),
        ({"n_kv_heads": 4}, "'layers.0.attention.snk.lin.weight' has shape (32, 64)"),
        ({"multiple_of": 256}, "'layers.0.feed_forward.sn1.lin.weight' has shape"),
        ({"norm_type": "np_layernorm"}, "'layers.0.attention.snq.norm.weight' (64,) is not part"),
        ({"norm_type": "batchnorm"}, "norm_type is 'batchnorm'; known: rmsnorm"),
        ({"rope_scaling": 1}, "'rope_scaling' is not known"),
        ({"dim": "64"}, "'dim' is \"64\"; a int is needed"),
        ({"dim": -64}, "'dim' is -64"),
        ({"n_heads": 3}, "do not divide one another"),
    ],
)
def test_wrong_model_args_are_refused(convert, change, sentence):
    flags = ("--model", "llama3_simplegpt", "--model-args", json.dumps({**ARGS, **change}))
    code, folder, error = convert(FULL, *flags, "--quiet")
    assert code == 1
    assert sentence in error
    assert error.count("\n") == 1, "one sentence"
    assert not folder.exists()


def test_another_architecture_is_refused(convert):
    code, _, error = convert(FULL, "--model", "llama3", *FLAGS[2:])
    assert code == 1
    assert "is not part of PrenormTransformer" in error


def copy_of(source, tmp_path):
    return shutil.copytree(source, tmp_path / "step-10")


def test_truncated_rank_file_leaves_no_folder_behind(convert, tmp_path):
    folder = copy_of(FULL, tmp_path)
    data = (folder / "__1_0.distcp").read_bytes()
    (folder / "__1_0.distcp").write_bytes(data[: len(data) // 2])
    code, out, error = convert(folder, *FLAGS)
    assert code == 1
    assert "__1_0.distcp" in error and "cut short" in error
    assert not out.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["step-10"], "no partial folder is left"


def test_missing_rank_file_is_named(convert, tmp_path):
    folder = copy_of(FULL, tmp_path)
    (folder / "__0_0.distcp").unlink()
    code, _, error = convert(folder, *FLAGS)
    assert code == 1 and "__0_0.distcp" in error


def test_file_names_that_leave_the_folder_are_refused(convert, tmp_path):
    folder = copy_of(WEIGHTS_ONLY, tmp_path)
    metadata = (folder / ".metadata").read_bytes()
    assert metadata.count(b"__0_0.distcp") >= 1
    (folder / ".metadata").write_bytes(metadata.replace(b"__0_0.distcp", b"../_0.distcp"))
    shutil.copy(folder / "__0_0.distcp", tmp_path / "_0.distcp")
    code, _, error = convert(folder, *FLAGS)
    assert code == 1 and "'../_0.distcp', no plain name" in error


def test_truncated_metadata_is_refused_at_every_length(convert, tmp_path):
    folder = copy_of(WEIGHTS_ONLY, tmp_path)
    metadata = (folder / ".metadata").read_bytes()
    for length in range(1, len(metadata) - 1, 97):
        (folder / ".metadata").write_bytes(metadata[:length])
        code, _, error = convert(folder, *FLAGS)
        assert code == 1 and error.startswith("normserve-convert: "), length
