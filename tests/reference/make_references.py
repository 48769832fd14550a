#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden_own: small random checkpoints with what they must compute.

For models without authors' code the numbers come from own_models.py (float64); for stock Llama
options (rope scalings, biases, head_dim, storage) from transformers' LlamaForCausalLM (float32).
The files have the format of tests/golden. A seed is taken only if every greedy step is decided by a
margin of at least 0.01.

Needs torch, transformers 4.51.3, safetensors. usage: make_references.py [OUTPUT_FOLDER] [CASE ...]
"""

import json
import pathlib
import sys

import own_models
import torch
import transformers
from safetensors.torch import save_file

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, CONTEXT = 128, 64, 3, 4, 2, 16, 48, 64
PROMPT, STEPS, BATCH = 10, 32, 2
MIN_MARGIN = 0.01
TOP = pathlib.Path(__file__).resolve().parents[1] / "golden_own"


def llama_config(**changes) -> dict:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    return config | changes


def random(*shape: int, std: float = 0.2, mean: float = 0.0) -> torch.Tensor:
    return torch.randn(*shape) * std + mean


def gain(width: int) -> torch.Tensor:
    return random(width, std=0.3, mean=1.0)


def llama_weights(config: dict, norms: tuple[str, ...], extra) -> dict[str, torch.Tensor]:
    """Every tensor of a Llama; `extra(module)` gives a norm's other parameters by suffix."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    q_width = config["num_attention_heads"] * config["head_dim"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]
    linears = {
        "self_attn.q_proj": (q_width, hidden, config["attention_bias"]),
        "self_attn.k_proj": (kv_width, hidden, config["attention_bias"]),
        "self_attn.v_proj": (kv_width, hidden, config["attention_bias"]),
        "self_attn.o_proj": (hidden, q_width, config["attention_bias"]),
        "mlp.gate_proj": (ffn, hidden, config["mlp_bias"]),
        "mlp.up_proj": (ffn, hidden, config["mlp_bias"]),
        "mlp.down_proj": (hidden, ffn, config["mlp_bias"]),
    }
    weights = {"model.embed_tokens.weight": random(config["vocab_size"], hidden, std=1.0)}
    if config.get("use_shared_scale"):
        weights["model.shared_scale"] = torch.tensor([1.7])
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = random(config["vocab_size"], hidden)
    modules = ["model.norm"]
    for layer in range(config["num_hidden_layers"]):
        for name, (rows, columns, bias) in linears.items():
            weights[f"model.layers.{layer}.{name}.weight"] = random(rows, columns)
            if bias:
                weights[f"model.layers.{layer}.{name}.bias"] = random(rows)
        modules += [f"model.layers.{layer}.{name}" for name in norms]
    for module in modules:
        weights[f"{module}.weight"] = gain(hidden)
        for suffix, value in extra(module).items():
            weights[f"{module}.{suffix}"] = value
    return weights


PRE_NORMS = ("input_layernorm", "post_attention_layernorm")
PERI_NORMS = (*PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def nothing(_module: str) -> dict:
    return {}


def alpha(_module: str) -> dict:
    return {"alpha": 0.5 + torch.rand(1)}


def alpha_and_bias(module: str) -> dict:
    return alpha(module) | {"bias": random(HIDDEN)}


def lam(module: str) -> dict:
    return {} if module == "model.norm" else {"lam": 4.0 + 2.0 * torch.rand(1)}


def own_llama(norms=PRE_NORMS, extra=nothing, embed_norm=False, **changes):
    config = llama_config(**changes)

    def make() -> tuple[dict, dict, own_models.Model]:
        weights = llama_weights(config, norms, extra)
        if embed_norm:
            weights["model.embed_layernorm.weight"] = gain(HIDDEN)
        return config, weights, own_models.Llama(config, weights)

    return make


def nanogpt(architecture: str, bias: bool):
    args = {
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_embd": HIDDEN,
        "block_size": CONTEXT,
        "bias": bias,
        "vocab_size": VOCAB,
        "dropout": 0.0,
    }
    config = {
        "architecture": architecture,
        "model_name": architecture,
        "torch_dtype": "float32",
        "model_args": args,
    }
    simple = architecture == "simple_nanogpt"

    def make() -> tuple[dict, dict, own_models.Model]:
        weights = {
            "transformer.wte.weight": random(VOCAB, HIDDEN, std=0.4),
            "transformer.wpe.weight": random(CONTEXT, HIDDEN),
        }
        shapes = {f"attn.{name}": (HIDDEN, HIDDEN) for name in "qkv"}
        if not simple:
            shapes = {"attn.c_attn": (3 * HIDDEN, HIDDEN)}
        shapes |= {"attn.c_proj": (HIDDEN, HIDDEN), "mlp.c_fc": (4 * HIDDEN, HIDDEN)}
        shapes |= {"mlp.c_proj": (HIDDEN, 4 * HIDDEN)}
        norms = {"transformer.ln_f": HIDDEN}
        for layer in range(LAYERS):
            prefix = f"transformer.h.{layer}."
            for name, (rows, columns) in shapes.items():
                linear = f"{prefix}{name}.lin" if simple else f"{prefix}{name}"
                weights[f"{linear}.weight"] = random(rows, columns)
                if bias:
                    weights[f"{linear}.bias"] = random(rows)
                if simple:
                    norms[f"{prefix}{name}.norm"] = rows
            if not simple:
                norms |= {f"{prefix}ln_1": HIDDEN, f"{prefix}ln_2": HIDDEN}
        for module, width in norms.items():
            weights[f"{module}.weight"] = gain(width)
            if bias and not simple:
                weights[f"{module}.bias"] = random(width)
        kind = own_models.SimpleNanoGpt if simple else own_models.NanoGpt
        return config, weights, kind(config, weights)

    return make


class Stock:
    """transformers' LlamaForCausalLM behind the interface of own_models."""

    def __init__(self, config: dict, weights: dict):
        self.seen: dict[str, torch.Tensor] = {}
        settings = {k: v for k, v in config.items() if k not in ("architectures", "model_type")}
        hf_config = transformers.LlamaConfig(**json.loads(json.dumps(settings)))
        hf_config._attn_implementation = "eager"
        self.model = transformers.LlamaForCausalLM(hf_config).eval()
        state = {name: value.float() for name, value in weights.items()}
        if config["tie_word_embeddings"]:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        self.model.load_state_dict(state, strict=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out = self.model(ids[None], output_hidden_states=True)
        states = [state[0] for state in out.hidden_states]
        names = ["hidden.embed"] + [f"hidden.{i}" for i in range(len(states) - 2)]
        # The last layer's output is not among them: transformers returns it after the final norm.
        self.seen = dict(zip(names, states[:-1], strict=True)) | {"norm": states[-1]}
        return out.logits[0]


def stock_llama(dtype=torch.float32, **changes):
    changes["torch_dtype"] = str(dtype).split(".")[1]
    config = llama_config(**changes)

    def make() -> tuple[dict, dict, Stock]:
        weights = llama_weights(config, PRE_NORMS, nothing)
        weights = {name: value.to(dtype) for name, value in weights.items()}
        return config, weights, Stock(config, weights)

    return make


YARN = {"rope_type": "yarn", "factor": 4.0}
YARN_ALL = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 8.0,
    "beta_slow": 2.0,
    "mscale": 1.2,
    "mscale_all_dim": 0.7,
}
# name: (maker, note)
CASES = {
    "lns": (own_llama(norm_type="lns"), "LayerNorm Scaling"),
    "peri": (own_llama(PERI_NORMS, norm_type="peri"), "Peri-LN"),
    "peri_embed_tied": (
        own_llama(PERI_NORMS, embed_norm=True, norm_type="peri", tie_word_embeddings=True),
        "Peri-LN with a norm on the embeddings, tied head",
    ),
    "dyt": (
        own_llama(extra=alpha, norm_type="dyt", use_shared_scale=True),
        "Dynamic Tanh with the embedding's scalar",
    ),
    "dyt_bias_tied": (
        own_llama(extra=alpha_and_bias, norm_type="dyt", tie_word_embeddings=True, mlp_bias=True),
        "Dynamic Tanh with norm biases, mlp_bias, tied head",
    ),
    "bhytstar_mean": (
        own_llama(extra=lam, norm_type="bhytstar_mean", last_layer_lam=0.0),
        "BHyT* with mean and standard deviation",
    ),
    "bhytstar_mean_decay": (
        own_llama(
            extra=lam, norm_type="bhytstar_mean", bhyt_kappa_schedule="decay", bhyt_kappa=6.0
        ),
        "the same with a kappa schedule",
    ),
    "nanogpt": (nanogpt("nanogpt", bias=True), "GPT-2's shape with biases"),
    "nanogpt_no_bias": (nanogpt("nanogpt", bias=False), "GPT-2's shape without biases"),
    "simple_nanogpt": (nanogpt("simple_nanogpt", bias=False), "SimpleGPT on nanoGPT"),
    "llama_yarn": (stock_llama(rope_scaling=YARN), "rope_scaling yarn"),
    "llama_yarn_all_keys": (
        stock_llama(rope_scaling=YARN_ALL),
        "rope_scaling yarn with the older type key and every option",
    ),
    "llama_linear": (
        stock_llama(rope_scaling={"type": "linear", "factor": 2.5}),
        "rope_scaling linear with the older type key",
    ),
    "llama_dynamic": (
        stock_llama(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
        "rope_scaling dynamic, within max_position_embeddings",
    ),
    "llama_head_dim": (
        stock_llama(head_dim=24, num_key_value_heads=1),
        "heads * head_dim is not hidden_size; one kv head",
    ),
    "llama_biases": (
        stock_llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
        "attention_bias, mlp_bias, tied head",
    ),
    "llama_f16": (stock_llama(torch.float16), "weights stored in float16, computed in float32"),
    "llama_sharded": (stock_llama(), "two safetensors files with an index"),
}


def generate(model, prompt: torch.Tensor) -> tuple[dict, torch.Tensor]:
    """Greedy ids by recomputing the whole sequence at every step, and the logits of each step."""
    ids, rows = prompt.tolist(), []
    for _ in range(STEPS):
        rows.append(model.forward(torch.tensor(ids))[-1])
        ids.append(int(rows[-1].argmax()))
    logits = torch.stack(rows)
    chosen = ids[len(prompt) :]
    top = logits.double().topk(2, -1).values
    logprobs = logits.double().log_softmax(-1)[torch.arange(STEPS), torch.tensor(chosen)]
    margins = (top[:, 0] - top[:, 1]).tolist()
    return {
        "prompt_ids": prompt.tolist(),
        "generated_ids": chosen,
        "logprobs": logprobs.tolist(),
        "top1_minus_top2_logit": margins,
        "min_margin": min(margins),
        "settings": {"max_new_tokens": STEPS, "eos": None, "do_sample": False},
    }, logits


def write_weights(folder: pathlib.Path, weights: dict, shards: int) -> None:
    plain = {name: value.contiguous() for name, value in weights.items()}
    if shards == 1:
        save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, where = sorted(plain), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: plain[name] for name in names[shard::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        where |= {name: file for name in part}
    total = sum(value.numel() * value.element_size() for value in plain.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_case(top: pathlib.Path, name: str) -> None:
    maker, note = CASES[name]
    for seed in range(1000, 1200):
        torch.manual_seed(seed)
        config, weights, model = maker()
        ids = torch.randint(3, VOCAB, (BATCH, PROMPT))
        generation, logits = generate(model, ids[0])
        if generation["min_margin"] >= MIN_MARGIN and len(set(generation["generated_ids"])) > 8:
            break
    else:
        raise SystemExit(f"{name}: no seed with clear margins and varied ids")
    arrays = {"input_ids": ids, "gen_logits": logits[:16]}
    passes = []
    for row in ids:
        out = model.forward(row)
        passes.append(dict(model.seen) | {"logits": out})
    arrays |= {key: torch.stack([one[key] for one in passes]) for key in passes[0]}
    folder = top / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_weights(folder, weights, 2 if name == "llama_sharded" else 1)
    stored = {k: v if k == "input_ids" else v.float() for k, v in arrays.items()}
    save_file({k: v.contiguous().clone() for k, v in stored.items()}, folder / "golden.safetensors")
    stock = isinstance(model, Stock)
    golden = {
        "case": name,
        "family": "nanogpt" if "model_args" in config else "llama",
        "source": "transformers 4.51.3" if stock else "formula",
        "code": "LlamaForCausalLM" if stock else "tests/reference/own_models.py",
        "compute_dtype": "float32" if stock else "float64",
        "weights_dtype": config["torch_dtype"],
        "seed": seed,
        "note": note,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "generation": generation,
    }
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{name}: seed {seed}, smallest margin {generation['min_margin']:.3f}", flush=True)


def main() -> None:
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    top = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else TOP
    for name in sys.argv[2:] or CASES:
        write_case(top, name)


if __name__ == "__main__":
    main()
