# SPDX-License-Identifier: Apache-2.0
"""CTranslate2 in process: a static batch; a callback per token says when it came."""

import pathlib
import time

from engines import base

NAME = "ctranslate2"
FOLDER = "ctranslate2"
MODULE = "ctranslate2"
INSTALL = "ctranslate2==4.8.5 numpy"
VARIANTS = {"int8": "int8", "float32": "float32"}
SUFFIX = ".ctranslate2"


def convert(model: str, target: str, variant: str) -> None:
    import ctranslate2
    import numpy
    from ctranslate2.specs import common_spec, transformer_spec
    from engines import checkpoint

    config = checkpoint.config_of(model)
    checkpoint.check_plain_llama(config)
    tensors = checkpoint.tensors_of(model)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"],
        heads,
        activation=common_spec.Activation.SWISH,
        pre_norm=True,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        rotary_base=config.get("rope_theta", 10000.0),
        num_heads_kv=None if kv_heads == heads else kv_heads,
    )
    spec.decoder.scale_embeddings = False
    spec.decoder.embeddings.weight = tensors["model.embed_tokens.weight"]
    spec.decoder.layer_norm.gamma = tensors["model.norm.weight"]
    head = "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight"
    spec.decoder.projection.weight = tensors[head]
    for number, layer in enumerate(spec.decoder.layer):
        get = lambda name: tensors[f"model.layers.{number}.{name}.weight"]
        attention, mlp = layer.self_attention, layer.ffn
        attention.layer_norm.gamma = get("input_layernorm")
        parts = [get(f"self_attn.{part}_proj") for part in "qkv"]
        attention.linear[0].weight = numpy.concatenate(parts)
        attention.linear[1].weight = get("self_attn.o_proj")
        mlp.layer_norm.gamma = get("post_attention_layernorm")
        mlp.linear_0.weight, mlp.linear_0_noact.weight = get("mlp.gate_proj"), get("mlp.up_proj")
        mlp.linear_1.weight = get("mlp.down_proj")
    # A token is its number: prompts here are ids.
    spec.register_vocabulary([str(number) for number in range(config["vocab_size"])])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = "0"
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    spec.validate()
    spec.optimize(quantization=None if variant == "float32" else variant)
    pathlib.Path(target).mkdir(parents=True, exist_ok=True)
    spec.save(target)


class Engine(base.Engine):
    def start(self) -> None:
        import ctranslate2

        self.version = ctranslate2.__version__
        self.generator = ctranslate2.Generator(
            self.model, device="cpu", compute_type=self.variant, intra_threads=self.threads, inter_threads=1
        )

    def generate(self, prompts, output):
        times, ids = [[] for _ in prompts], [[] for _ in prompts]

        def on_token(result) -> bool:
            times[result.batch_id].append(time.perf_counter())
            ids[result.batch_id].append(int(result.token_id))
            return False

        self.generator.generate_batch(
            [[str(token) for token in prompt] for prompt in prompts],
            max_length=output,
            min_length=output,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            end_token=[],
            max_batch_size=0,
            callback=on_token,
        )
        return times, ids
