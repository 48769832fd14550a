# SPDX-License-Identifier: Apache-2.0
"""One file per family of checkpoints: its tensors with their shapes, and its config.json."""
