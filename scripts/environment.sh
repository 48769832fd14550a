# SPDX-License-Identifier: Apache-2.0
# What every script here shares: where things are, how to speak, how to build. Sourced, never run; it
# installs nothing and starts nothing.

NORMSERVE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
NORMSERVE_CACHE=${NORMSERVE_CACHE:-$HOME/.cache/normserve}
LIBTORCH_VERSION=2.11.0
NVCC_VERSION=13.0.88
FLASHINFER_VERSION=0.6.18
export NORMSERVE_ROOT NORMSERVE_CACHE
export NORMSERVE_TORCH_DIR=${NORMSERVE_TORCH_DIR:-$NORMSERVE_CACHE/libtorch-$LIBTORCH_VERSION/torch}
export NORMSERVE_NVCC=${NORMSERVE_NVCC:-$NORMSERVE_CACHE/nvcc-$NVCC_VERSION/nvidia/cu13/bin/nvcc}
export NORMSERVE_FLASHINFER_DIR=${NORMSERVE_FLASHINFER_DIR:-$NORMSERVE_CACHE/flashinfer-$FLASHINFER_VERSION}
# LibTorch and the libraries around it for aarch64, of scripts/setup --with-neon.
export NORMSERVE_AARCH64_DIR=${NORMSERVE_AARCH64_DIR:-$NORMSERVE_CACHE/aarch64-libtorch-$LIBTORCH_VERSION}
# One cargo target folder for every clone and build type: the crates take minutes to compile.
export NORMSERVE_CARGO_TARGET_DIR=${NORMSERVE_CARGO_TARGET_DIR:-$NORMSERVE_CACHE/cargo-target}
# Let every clone use the same ccache entries, wherever it lies.
export CCACHE_BASEDIR=$NORMSERVE_ROOT CCACHE_NOHASHDIR=1
NORMSERVE_VENV=$NORMSERVE_CACHE/venv
LEAST_CARGO=1.85

say() { printf '== %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Whether version $1 is at least version $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

cargo_version() { "$1" --version 2>/dev/null | sed -E 's/^cargo ([0-9.]+).*/\1/'; }

# Puts a cargo of at least LEAST_CARGO first in PATH; fails when there is none. The folders are those
# of PATH, of rustup, and of Ubuntu's versioned packages.
find_cargo() {
  local candidate version
  for candidate in "$(command -v cargo)" "$HOME/.cargo/bin/cargo" /usr/bin/cargo \
    $(ls -d /usr/lib/rust-*/bin/cargo 2>/dev/null | sort -rV); do
    [ -x "$candidate" ] || continue
    version=$(cargo_version "$candidate")
    if [ -n "$version" ] && at_least "$version" "$LEAST_CARGO"; then
      PATH=$(dirname "$candidate"):$PATH
      export PATH
      return 0
    fi
  done
  return 1
}
find_cargo || true

# One compiler needs up to 2 GiB where LibTorch's headers are included.
build_jobs() {
  local cores memory_gib jobs
  cores=$(nproc)
  memory_gib=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
  jobs=$((memory_gib / 2))
  [ "$jobs" -lt 1 ] && jobs=1
  [ "$jobs" -gt "$cores" ] && jobs=$cores
  echo "$jobs"
}

# Configures (once) and builds preset $1 in build/$1; further arguments are ninja targets.
build_preset() {
  local preset=$1
  shift
  cd "$NORMSERVE_ROOT" || return 1
  if [ ! -f "build/$preset/build.ninja" ]; then
    cmake --preset "$preset" || return 1
  fi
  cmake --build "build/$preset" -j "$(build_jobs)" ${1:+--target "$@"}
}

# Whether port $1 of 127.0.0.1 cannot be bound: something listens on it or holds it, or this user may
# not have it. What is no port is not taken: the server has an error for that.
port_is_taken() {
  python3 - "$1" <<'EOF'
import socket
import sys

with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: not for TIME_WAIT
    try:
        probe.bind(("127.0.0.1", int(sys.argv[1])))
    except OSError:
        sys.exit(0)
    except (ValueError, OverflowError):
        pass
sys.exit(1)
EOF
}

# Waits until file $1 exists, for at most $2 seconds and while process $3 lives.
wait_for_file() {
  local file=$1 tenths=$(($2 * 10)) pid=$3
  while [ ! -s "$file" ]; do
    kill -0 "$pid" 2>/dev/null || return 1
    [ "$tenths" -gt 0 ] || return 1
    tenths=$((tenths - 1))
    sleep 0.1
  done
}

# The number under key $2 of the ready file $1.
ready_port() { sed -nE "s/.*\"$2\"[[:space:]]*:[[:space:]]*([0-9]+).*/\1/p" "$1" | head -n 1; }

# Asks process $1 to end, and waits at most $2 seconds for it; its exit status, or 124.
stop_process() {
  local pid=$1 tenths=$(($2 * 10))
  kill -TERM "$pid" 2>/dev/null
  while kill -0 "$pid" 2>/dev/null; do
    if [ "$tenths" -le 0 ]; then
      kill -KILL "$pid" 2>/dev/null
      return 124
    fi
    tenths=$((tenths - 1))
    sleep 0.1
  done
  wait "$pid" 2>/dev/null
}
