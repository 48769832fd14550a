# SPDX-License-Identifier: Apache-2.0
"""Converts PyTorch training checkpoints to the folders that normserve loads.

PyTorch itself is neither needed nor used: the formats are read here, and pickles are interpreted by
a machine that can build data and nothing else (see pickle_machine.py).
"""
