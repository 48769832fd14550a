// SPDX-License-Identifier: Apache-2.0
// Which SIMD target the CPU's kernels use: Highway's best of this machine, or less where it is limited.
#pragma once

#include <string>

namespace normserve::kernels {

// The name of the target in use: Highway's ("AVX3", "AVX2", "SSE4", "NEON", ...), or "AVX3_DOT" for AVX-512 with what
// this CPU has of the dot products below.
std::string SimdTargetName();
// Restricts run-time dispatch to targets no better than `name`; false if this machine or build does not have it. Call
// before any kernel runs.
bool LimitSimdTarget(const char* name);
// The names that LimitSimdTarget takes here, best first: "AVX3_DOT, AVX3, AVX2, SSE4, SSSE3, SCALAR".
std::string SimdTargetList();

// Dot products of the target in use: of bfloat16 pairs (AVX512-BF16), for WeightFormat::kBFloat16Dot and attention over
// a bfloat16 cache; of 8-bit integers (AVX512-VNNI), for quantised weights, whose inputs then have 8 bits.
bool HasBFloat16Dot();
bool HasVnni();

}  // namespace normserve::kernels
