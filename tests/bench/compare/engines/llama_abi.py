# SPDX-License-Identifier: Apache-2.0
"""The part of llama.cpp's C API that is used here, for one release of its shared libraries.

Its structures change between releases and carry no version: load() refuses libraries whose default
values do not lie where they should.
"""

import ctypes
import pathlib
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_size_t, c_uint32, c_void_p

RELEASE = "v0.5.0"


class llama_batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


def _fields(kind, names: str) -> list:
    return [(name, kind) for name in names.split()]


class llama_context_params(ctypes.Structure):
    _fields_ = [
        *_fields(c_uint32, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq"),
        *_fields(c_int32, "n_threads n_threads_batch"),
        *_fields(c_int, "ctx_type rope_scaling_type pooling_type attention_type flash_attn_type"),
        *_fields(c_float, "rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor"),
        *_fields(c_float, "yarn_beta_fast yarn_beta_slow"),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        *_fields(c_void_p, "cb_eval cb_eval_user_data"),
        *_fields(c_int, "type_k type_v"),
        *_fields(c_void_p, "abort_callback abort_callback_data"),
        *_fields(c_bool, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]


class llama_model_params(ctypes.Structure):
    _fields_ = [
        *_fields(c_void_p, "devices tensor_buft_overrides"),
        ("n_gpu_layers", c_int32),
        *_fields(c_int, "split_mode load_mode lazy_mode"),
        ("main_gpu", c_int32),
        *_fields(c_void_p, "tensor_split progress_callback progress_callback_user_data kv_overrides"),
        *_fields(c_bool, "vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp"),
    ]


class llama_model_quantize_params(ctypes.Structure):
    _fields_ = [
        ("nthread", c_int32),
        *_fields(c_int, "ftype output_tensor_type token_embedding_type"),
        *_fields(c_bool, "allow_requantize quantize_output_tensor only_copy pure keep_split dry_run"),
        *_fields(c_void_p, "imatrix kv_overrides tt_overrides prune_layers"),
        ("max_buf_size", c_size_t),
    ]


# name: (result, arguments)
FUNCTIONS = {
    "llama_backend_init": (None, []),
    "llama_model_default_params": (llama_model_params, []),
    "llama_context_default_params": (llama_context_params, []),
    "llama_model_quantize_default_params": (llama_model_quantize_params, []),
    "llama_model_quantize": (c_uint32, [c_char_p, c_char_p, POINTER(llama_model_quantize_params)]),
    "llama_model_load_from_file": (c_void_p, [c_char_p, llama_model_params]),
    "llama_init_from_model": (c_void_p, [c_void_p, llama_context_params]),
    "llama_free": (None, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_clear": (None, [c_void_p, c_bool]),
    "llama_decode": (c_int32, [c_void_p, llama_batch]),
    "llama_get_logits_ith": (POINTER(c_float), [c_void_p, c_int32]),
}


class Api:
    llama_batch = llama_batch

    def __init__(self, folder: pathlib.Path):
        """folder: with libllama, libggml and the backends, of which the processor's best is taken."""
        library = ctypes.CDLL(str(next(folder.glob("libllama.*so"))))
        backends = ctypes.CDLL(str(next(folder.glob("libggml.*so"))))
        backends.ggml_backend_load_all_from_path.argtypes = [c_char_p]
        backends.ggml_backend_load_all_from_path(str(folder).encode())
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self._check_layouts()
        self.llama_backend_init()

    def _check_layouts(self) -> None:
        context, model = self.llama_context_default_params(), self.llama_model_default_params()
        quantize = self.llama_model_quantize_default_params()
        lies_right = (
            (context.n_ctx, context.n_batch, context.n_ubatch) == (512, 2048, 512)
            and (context.flash_attn_type, context.yarn_orig_ctx, context.type_k) == (-1, 0, 1)
            and context.abort_callback_data is None
            and (context.samplers, context.n_samplers, context.ctx_other) == (None, 0, None)
            and (context.offload_kqv, context.no_perf) == (True, True)
            and (model.main_gpu, model.use_extra_bufts, model.check_tensors) == (0, True, False)
            and (quantize.quantize_output_tensor, quantize.only_copy) == (True, False)
        )
        if not lies_right:
            raise RuntimeError(f"these llama.cpp libraries have other structures than release {RELEASE}")
