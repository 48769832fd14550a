# SPDX-License-Identifier: Apache-2.0
"""ik_llama.cpp, the fork with faster CPU kernels, as a library in process, from its wheel."""

from engines import base

NAME = "ik_llama.cpp"
FOLDER = "ik_llama.cpp"
MODULE = "ik_llama_cpp"
INSTALL = "ik-llama-cpp-python==0.1.5 numpy"
VARIANTS = {"q8_0": "q8_0", "q4_0": "q4_0"}
# It reads the files that llama.cpp's adapter makes.
CONVERTED_BY = "llama.cpp"


def make(*arguments) -> base.Engine:
    from engines import lockstep

    class Engine(lockstep.LockstepEngine):
        def start(self) -> None:
            from importlib import metadata

            from ik_llama_cpp import _ctypes_api as api

            self.version = f"wheel {metadata.version('ik-llama-cpp-python')}, library"
            api.llama_backend_init()
            parameters = api.llama_model_default_params()
            parameters.n_gpu_layers = 0
            # Its fastest layout; it cannot be had of a mapped file.
            parameters.repack_tensors, parameters.use_mmap = True, False
            self.load(api, api.llama_model_load_from_file(self.model.encode(), parameters))

        def set_flash_attention(self, parameters) -> None:
            parameters.flash_attn = True

        def clear_cache(self) -> None:
            self.api.llama_kv_cache_clear(self.context)

    return Engine(*arguments)
