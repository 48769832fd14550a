# SPDX-License-Identifier: Apache-2.0
"""Writes a Llama checkpoint as GGUF: matrices in bfloat16, norms in float32, no vocabulary.

The prompts here are token ids, so no engine needs the vocabulary.
"""

import gguf
import numpy
from engines import checkpoint

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
MODEL_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in MODEL_NAMES:
        return f"{MODEL_NAMES[stem]}.weight"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{LAYER_NAMES[part]}.weight"


def interleave(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """GGUF rotates neighbouring elements of a head, checkpoints rotate its halves: reorder the rows."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def bfloat16(values: numpy.ndarray) -> numpy.ndarray:
    """Rounded to nearest even, as raw 16-bit words."""
    bits = numpy.ascontiguousarray(values).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def write(model: str, target) -> None:
    config = checkpoint.config_of(model)
    checkpoint.check_plain_llama(config)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    writer = gguf.GGUFWriter(str(target), "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(checkpoint.head_dim(config))
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for name, values in checkpoint.tensors_of(model).items():
        if name.endswith("q_proj.weight"):
            values = interleave(values, heads)
        if name.endswith("k_proj.weight"):
            values = interleave(values, kv_heads)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
        else:
            # The writer takes bfloat16 as bytes.
            raw = bfloat16(values).view(numpy.uint8)
            writer.add_tensor(gguf_name(name), raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
