# SPDX-License-Identifier: Apache-2.0
"""The one exception of this package: its text is the sentence that the user sees."""


class ConvertError(Exception):
    """Why a checkpoint is not converted, as one sentence that names the file, tensor or key."""
