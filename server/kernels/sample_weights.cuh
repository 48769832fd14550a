// SPDX-License-Identifier: Apache-2.0
// The numbers of sampling, one element at a time: adjusted logits, weights, and weights as integers. The
// same operations in the same order as in engine/sampler.cc.
#pragma once

#include "kernels/block_select.cuh"
#include "kernels/sample_rows.h"

namespace normserve::kernels {

// exp(x), x <= 0, by the operations of ExpVec in simd-inl.h: the weights are, bit for bit, those of the
// CPU's sampler on targets with fused multiply-add, and so is their order.
__device__ inline float ExpOfRow(float x) {
  x = fmaxf(x, -104.0f);
  const float n = rintf(x * 1.44269504088896341f);
  const float r = fmaf(-n, -2.12194440054690583e-4f, fmaf(-n, 0.693359375f, x));
  float p = 1.0f / 5040.0f;
  p = fmaf(p, r, 1.0f / 720.0f);
  p = fmaf(p, r, 1.0f / 120.0f);
  p = fmaf(p, r, 1.0f / 24.0f);
  p = fmaf(p, r, 1.0f / 6.0f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  const int whole = static_cast<int>(n), half = whole >> 1;
  const float first = __uint_as_float(static_cast<uint32_t>(half + 127) << 23);
  const float second = __uint_as_float(static_cast<uint32_t>(whole - half + 127) << 23);
  return p * first * second;
}

// A weight in [0, 1] as a multiple of 2^-40, rounded. In two halves, because conversions to 64 bits are
// slow. Sums stay below 2^62.
struct Mass {
  __device__ U64 operator()(float weight) const {
    const float scaled = weight * 0x1p20f;
    const uint32_t high = static_cast<uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(high);
    return (U64{high} << 20) + static_cast<uint32_t>(rintf(rest * 0x1p20f));
  }
};
struct MassFrom {
  float least;
  __device__ U64 operator()(float weight) const { return weight >= least ? Mass()(weight) : 0; }
};
constexpr float kLeastMass = 0x1p-41f;  // lesser weights have none

__device__ inline float Finite(float x) { return fminf(fmaxf(x, kLowestFloat), -kLowestFloat); }

__device__ inline float Adjusted(float x, const TokenAdjustment& a, const SampleTask& task) {
  x = Finite(x + a.bias);
  if ((a.flags & TokenAdjustment::kRepeated) != 0) {
    x = Finite(x > 0.0f ? x / task.repetition_penalty : x * task.repetition_penalty);
  }
  if (a.generated > 0) {
    const float times = static_cast<float>(a.generated);
    x = Finite(x - task.presence_penalty - task.frequency_penalty * times);
  }
  return (a.flags & TokenAdjustment::kBanned) != 0 ? kLowestFloat : x;
}

}  // namespace normserve::kernels
