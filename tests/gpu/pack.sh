#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what tests/gpu/check.sh runs on a GPU (nvcc, no GPU needed) and gathers it in one folder that can be copied to
# a machine with a GPU, Python and PyTorch: programs, the libraries they need beside LibTorch and glibc, golden cases,
# and the check itself.
#   tests/gpu/pack.sh FOLDER
# ARCHITECTURE (default 90-real: H100, H200) names the GPU's generation.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=../../scripts/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/environment.sh"
MOST_MIB=64
PROGRAMS=(norm_bench golden_on_device engine_bench gpu_kernel_tests)
PLUGIN=normserve_cuda.so
# LibTorch's own and NVIDIA's come with the other machine's PyTorch; glibc is the other machine's.
NOT_PACKED='^(lib(torch|c10|cu|nv|gomp|shm)|lib(c|m|dl|rt|pthread|util)\.so|ld-linux|linux-vdso)'
# The compiler's libraries, in a folder of their own: they need a newer glibc than the programs do, and are used where
# that is there; else the other machine's must do.
COMPILERS='^lib(stdc\+\+|gcc_s)\.so'

[ $# -eq 1 ] || die "usage: tests/gpu/pack.sh FOLDER"
folder=$1
[ ! -e "$folder" ] || [ -e "$folder/packed.json" ] || die "$folder is there and no packed folder"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

build() {
  cd "$NORMSERVE_ROOT"
  [ -f build/gpu/build.ninja ] ||
    cmake --preset cuda-test -B build/gpu -DNORMSERVE_RPC=OFF "-DCMAKE_CUDA_ARCHITECTURES=${ARCHITECTURE:-90-real}"
  cmake --build build/gpu -j "$(build_jobs)" --target normserve_cuda "${PROGRAMS[@]}"
}

# Names and paths of the libraries that program $1 is linked with.
libraries_of() { LD_LIBRARY_PATH=$NORMSERVE_TORCH_DIR/lib ldd "$1" | sed -nE 's/^\s*(\S+) => (\/\S+) .*/\1 \2/p'; }

pack_programs() {
  local program name path
  rm -rf "$folder/bin" "$folder/lib" "$folder/lib-compiler"
  mkdir -p "$folder/bin" "$folder/lib" "$folder/lib-compiler"
  for program in "${PROGRAMS[@]}" "$PLUGIN"; do
    strip -o "$folder/bin/$program" "build/gpu/bin/$program"
    while read -r name path; do
      [[ $name =~ $COMPILERS ]] && cp -L "$path" "$folder/lib-compiler/$name" && continue
      [[ $name =~ $NOT_PACKED ]] || cp -L "$path" "$folder/lib/$name"
    done < <(libraries_of "build/gpu/bin/$program")
  done
}

pack_tests() {
  local part
  rm -rf "$folder/tests"
  mkdir -p "$folder/tests/gpu" "$folder/tests/bench/norms"
  cp tests/gpu/*.py tests/gpu/check.sh "$folder/tests/gpu/"
  cp tests/bench/norms/model_shapes.py "$folder/tests/bench/norms/"
  cp tests/bench/transformers_worker.py "$folder/tests/bench/"
  for part in golden golden_own; do
    cp -r "tests/$part" "$folder/tests/$part"
  done
  rm -rf "$folder/tests/golden/tools" "$folder/tests/golden/simplegpt_dcp"
}

newest_glibc() { objdump -T "$@" 2>/dev/null | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1 | cut -c 7-; }

build
pack_programs
pack_tests
printf '{"commit": "%s", "nvcc": "%s", "torch": "%s", "glibc": "%s", "glibc of lib-compiler": "%s"}\n' \
  "$(git rev-parse --short HEAD)" "$NVCC_VERSION" "$LIBTORCH_VERSION" \
  "$(newest_glibc "$folder"/bin/* "$folder"/lib/*)" \
  "$(newest_glibc "$folder"/lib-compiler/*)" >"$folder/packed.json"
mib=$(du -sm "$folder" | cut -f 1)
[ "$mib" -le "$MOST_MIB" ] || die "$folder has $mib MiB, more than $MOST_MIB"
say "$folder: $mib MiB. On the machine with the GPU: $(basename "$folder")/tests/gpu/check.sh"
