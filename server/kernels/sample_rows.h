// SPDX-License-Identifier: Apache-2.0
// Rows of logits to decisions on a device: what one row asks for and what it gets, as plain data. The
// engine fills the tasks, cuda_rows.h has the function. No torch.
#pragma once

#include <cstdint>

namespace normserve::kernels {

inline constexpr int kMaxSampledTop = 32;  // top_logprobs that the device gives; more is the host's work
inline constexpr int64_t kMaxSampledVocabulary = 1 << 22;  // what an id may take of the kernel's keys

// One token id of a row whose logit is changed before the draw: bias, then the repetition penalty where
// kRepeated, then presence and frequency penalties where generated > 0, then the lowest float where kBanned.
struct TokenAdjustment {
  static constexpr uint32_t kRepeated = 1, kBanned = 2;
  int32_t id = 0;  // < vocab; the ids of one row are distinct
  float bias = 0.0f;
  int32_t generated = 0;  // occurrences in the output so far
  uint32_t flags = 0;
};

// One row; lies in device memory.
struct SampleTask {
  double uniform = 0.0;      // the draw's number in [0, 1)
  float temperature = 0.0f;  // 0: the largest adjusted logit, nothing is drawn
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint32_t top_k = 0;   // 0: all
  int32_t target = -1;  // >= 0: scoring of this id (< vocab), nothing is drawn or adjusted
  int32_t first_adjustment = 0, adjustments = 0;  // a range of SampleArgs::adjustments
  int32_t logprob = 0;       // not 0: the decision's log-probability is wanted; with top_logprobs it always is
  int32_t top_logprobs = 0;  // alternatives wanted, <= kMaxSampledTop
};

struct SampledRow {
  int32_t id = 0;
  int32_t finite = 0;     // 0: the row had NaN or Inf, the rest is meaningless
  int32_t is_argmax = 0;  // whether `id` is the row's largest logit, the first of equals
  float logprob = 0.0f;
  int32_t top_ids[kMaxSampledTop] = {};  // most probable first, -1 beyond those wanted or there
  float top_logprobs[kMaxSampledTop] = {};
};

struct SampleArgs {
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  int64_t vocab = 0;                  // 1 to kMaxSampledVocabulary
  const SampleTask* tasks = nullptr;  // [rows]
  const TokenAdjustment* adjustments = nullptr;
  float* work = nullptr;          // [rows, vocab]; a row's part is used when it draws or has adjustments
  SampledRow* results = nullptr;  // [rows]
};

}  // namespace normserve::kernels
