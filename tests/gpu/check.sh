#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks and measures the CUDA device of this machine: see check.py beside this, and docs/cuda.md.
#   tests/gpu/check.sh [--dry-run] [--out FOLDER] [--bin FOLDER] [--seconds N] [--rows ROW...]
# Runs in a checkout with a build, or in a folder that pack.sh made. PYTHON names the Python whose LibTorch is used.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  { echo "check.sh: $python is older than Python 3.10" >&2; exit 1; }
export PYTHONDONTWRITEBYTECODE=1
exec "$python" "$here/check.py" "$@"
