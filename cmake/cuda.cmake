# SPDX-License-Identifier: Apache-2.0
# Enables CUDA with the nvcc of NORMSERVE_NVCC, of scripts/setup --with-nvcc, or of the PATH; needs no GPU.
# Comes before LibTorch is looked for, which takes CUDA's headers from NORMSERVE_CUDA_INCLUDE.
if(NOT CMAKE_CUDA_COMPILER AND EXISTS "$ENV{NORMSERVE_NVCC}")
  set(CMAKE_CUDA_COMPILER "$ENV{NORMSERVE_NVCC}")
endif()
set(_cached "$ENV{HOME}/.cache/normserve/nvcc-13.0.88/nvidia/cu13/bin/nvcc")
if(NOT CMAKE_CUDA_COMPILER AND EXISTS "${_cached}")
  set(CMAKE_CUDA_COMPILER "${_cached}")
endif()
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc)
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "NORMSERVE_CUDA needs nvcc: run scripts/setup --with-nvcc, or set NORMSERVE_NVCC")
endif()
get_filename_component(_toolkit "${CMAKE_CUDA_COMPILER}" REALPATH)
get_filename_component(_toolkit "${_toolkit}/../.." ABSOLUTE)
# The wheels have lib/ where nvcc looks for lib64/.
if(NOT EXISTS "${_toolkit}/lib64")
  string(APPEND CMAKE_CUDA_FLAGS_INIT " -L${_toolkit}/lib")
endif()
# LibTorch's wheels bring a part of CUDA's headers, too small for its own of ATen/cuda.
set(NORMSERVE_CUDA_INCLUDE "${_toolkit}/include")

# FlashInfer's headers, of scripts/setup --with-nvcc; without them the plugin has no --attention flashinfer.
find_path(NORMSERVE_FLASHINFER include/flashinfer/attention/prefill.cuh
  HINTS "$ENV{NORMSERVE_FLASHINFER_DIR}" "$ENV{HOME}/.cache/normserve/flashinfer-0.6.18")
if(NORMSERVE_FLASHINFER)
  message(STATUS "FlashInfer's headers: ${NORMSERVE_FLASHINFER}")
else()
  message(STATUS "FlashInfer's headers: none, so no --attention flashinfer; scripts/setup --with-nvcc brings them")
endif()

# Machine code of one device generation each, no PTX: A100, L40 and RTX 40, H100 and H200, B200.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90-real 100-real)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # LibTorch::cudart, which is shared, instead
