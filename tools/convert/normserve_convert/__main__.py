# SPDX-License-Identifier: Apache-2.0
"""`python -m normserve_convert` and the console script normserve-convert: cli.main, or one sentence
where the package that it needs is not installed."""

import sys


def main() -> int:
    """Runs the command; returns its exit code."""
    try:
        # Here and not above: the import itself needs numpy.
        from normserve_convert import cli
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        print(
            "normserve-convert: the Python package numpy is missing; install it with "
            f"'{sys.executable} -m pip install numpy' in a virtual environment, or on Debian and Ubuntu "
            "with 'apt-get install python3-numpy'",
            file=sys.stderr,
        )
        return 1
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
