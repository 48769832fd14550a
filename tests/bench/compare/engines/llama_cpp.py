# SPDX-License-Identifier: Apache-2.0
"""llama.cpp as a library in process: the shared libraries that node-llama-cpp ships, without node.

They have a CPU backend per processor generation; the best one for this machine is loaded.
"""

import pathlib
import sys

from engines import base

NAME = "llama.cpp"
FOLDER = "llama.cpp"
MODULE = "gguf"
INSTALL = "numpy gguf"
# In the environment's folder, too: the shared libraries, in package/bins/linux-x64.
INSTALL_ALSO = "npm pack @node-llama-cpp/linux-x64@3.22.1 && tar xzf node-llama-cpp-linux-x64-3.22.1.tgz"
# The numbers are llama.cpp's file types.
VARIANTS = {"bf16": 32, "f16": 1, "q8_0": 7, "q4_0": 2}
SUFFIX = ".gguf"


def api():
    from engines import llama_abi

    return llama_abi.Api(pathlib.Path(sys.prefix) / "package" / "bins" / "linux-x64")


def convert(model: str, target: str, variant: str) -> None:
    """The checkpoint as bfloat16 GGUF, then llama.cpp's own quantisation with its defaults."""
    import ctypes

    from engines import gguf_file

    source = pathlib.Path(target + ".source")
    gguf_file.write(model, source)
    if variant == "bf16":
        source.rename(target)
        return
    library = api()
    parameters = library.llama_model_quantize_default_params()
    parameters.ftype = VARIANTS[variant]
    code = library.llama_model_quantize(str(source).encode(), target.encode(), ctypes.byref(parameters))
    source.unlink()
    if code != 0:
        raise RuntimeError(f"llama_model_quantize: {code}")


def make(*arguments) -> base.Engine:
    from engines import lockstep

    class Engine(lockstep.LockstepEngine):
        def start(self) -> None:
            from engines import llama_abi

            library = api()
            self.version = f"{llama_abi.RELEASE}, library"
            parameters = library.llama_model_default_params()
            parameters.n_gpu_layers = 0
            self.load(library, library.llama_model_load_from_file(self.model.encode(), parameters))

        def set_flash_attention(self, parameters) -> None:
            parameters.flash_attn_type = 1

        def clear_cache(self) -> None:
            self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    return Engine(*arguments)
