# SPDX-License-Identifier: Apache-2.0
# Enables CUDA with the nvcc of scripts/setup --with-nvcc, of NORMSERVE_NVCC, or of the PATH.
if(NOT CMAKE_CUDA_COMPILER AND EXISTS "$ENV{NORMSERVE_NVCC}")
  set(CMAKE_CUDA_COMPILER "$ENV{NORMSERVE_NVCC}")
endif()
if(CMAKE_CUDA_COMPILER)
  # The wheels have lib/ where nvcc looks for lib64/.
  get_filename_component(_toolkit "${CMAKE_CUDA_COMPILER}/../.." ABSOLUTE)
  if(NOT EXISTS "${_toolkit}/lib64")
    string(APPEND CMAKE_CUDA_FLAGS_INIT " -L${_toolkit}/lib")
  endif()
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90-real 100-real)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # LibTorch::cudart, which is shared, instead
