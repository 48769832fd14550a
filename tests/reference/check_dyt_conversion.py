#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts random checkpoints of the DyT authors' own Llama and compares the logits.

Their model runs on the checkpoint as it is, own_models.py on what normserve-convert makes of it: so
the row order of q and k, the split of fused weights and the embedding's scalar are all seen to be
right.

Needs torch, safetensors, `pip install --no-deps ibm-fms==0.0.8` (their base library at the version
whose module names their code uses) and a checkout of jiachenzhu/DyT.
usage: check_dyt_conversion.py DYT_REPOSITORY
"""

import json
import pathlib
import sys
import tempfile

import own_models
import torch
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOLERANCE = 1e-5
SIZES = {
    "src_vocab_size": 96,
    "emb_dim": 64,
    "nheads": 4,
    "kvheads": 2,
    "nlayers": 3,
    "hidden_grow_factor": 1.5,
    "multiple_of": 16,
    "max_expected_seq_len": 64,
}


def check(llama, llama_config, folder: pathlib.Path, fused: bool) -> float:
    """Largest difference of a logit."""
    from normserve_convert.cli import main as convert

    model = llama(llama_config(**SIZES, fused_weights=fused)).eval()
    model.reset_parameters()
    for name, parameter in model.named_parameters():
        mean = 1.0 if name.endswith(("ln.weight", "norm.weight")) else 0.0
        parameter.copy_(torch.randn_like(parameter) * 0.2 + mean)
    model.shared_scale.fill_(3.0)
    torch.save({"step": 1, "model_state": model.state_dict()}, folder / "checkpoint.pth")
    out = folder / "converted"
    flags = ["--model-args", json.dumps(SIZES), "--quiet"]
    if convert([str(folder / "checkpoint.pth"), str(out), *flags]) != 0:
        raise SystemExit("not converted")
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    ids = torch.randint(0, SIZES["src_vocab_size"], (20,))
    own = own_models.Llama(config, load_file(out / "model.safetensors")).forward(ids)
    return float((model(ids[None])[0] - own).abs().max())


def main() -> int:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.path[:0] = [f"{sys.argv[1]}/other_tasks/LLaMA", str(ROOT / "tools" / "convert")]
    from fms_fsdp.models.llama import LLaMA, LLaMAConfig

    torch.set_grad_enabled(False)
    torch.manual_seed(3)
    worst = 0.0
    for fused in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            difference = check(LLaMA, LLaMAConfig, pathlib.Path(folder), fused)
        print(f"fused weights {fused}: logits differ by {difference:.1e}")
        worst = max(worst, difference)
    return 1 if not worst <= TOLERANCE else 0


if __name__ == "__main__":
    sys.exit(main())
