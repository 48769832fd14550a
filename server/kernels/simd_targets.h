// SPDX-License-Identifier: Apache-2.0
// Which Highway targets the row kernels are compiled for. Included before any Highway header by every
// file that is compiled once per target; it decides nothing else.
#pragma once

// Arrays of vectors need vectors of fixed size, so the scalable targets are out. On x86 the targets
// above AVX3 (bits 0..7 in every Highway version: AVX3_DL, AVX3_ZEN4, AVX3_SPR, ...) add nothing to
// float32 arithmetic and would only double the build time.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | 0xFFLL)
