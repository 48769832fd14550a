# SPDX-License-Identifier: Apache-2.0
# Toolchain: Debian's cross compiler for aarch64 with the libraries of scripts/setup --with-neon, which are looked for
# in the environment's NORMSERVE_AARCH64_DIR, else where scripts/setup puts them. ctest runs what was built by qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(_libraries "$ENV{NORMSERVE_AARCH64_DIR}")
if(NOT _libraries)
  set(_libraries "$ENV{HOME}/.cache/normserve/aarch64-libtorch-2.11.0")
endif()
if(NOT EXISTS "${_libraries}/sysroot")
  message(FATAL_ERROR "${_libraries} has no libraries for aarch64: run scripts/setup --with-neon")
endif()
set(TORCH_WHEEL_DIR "${_libraries}/torch")
# The compiler has its own C and C++ libraries outside of it, and sees nothing else of this machine's.
set(CMAKE_SYSROOT "${_libraries}/sysroot")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} "${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")

# A processor that is sold, and whose only vectors are NEON's. qemu's default has every extension there is, so that
# LibTorch would choose kernels for SVE.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu neoverse-n1 -L "${CMAKE_SYSROOT}")
