# SPDX-License-Identifier: Apache-2.0
"""`python -m normserve_convert`, the same as the console script normserve-convert."""

import sys

from normserve_convert.cli import main

if __name__ == "__main__":
    sys.exit(main())
