// SPDX-License-Identifier: Apache-2.0
// A step's rows as the sampling kernel of a device takes them (kernels/sample_rows.h), and its results
// as the engine takes them. Copies nothing to a device: no torch here.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/runner.h"
#include "kernels/sample_rows.h"

namespace normserve::engine {

// Scratch is reused between steps. Used by one thread.
class SampleTasks {
 public:
  explicit SampleTasks(uint32_t vocab) : vocab_(vocab) {}

  // Describes `tasks`. False when one of them is the host's work: more alternatives than the kernel
  // gives, or a vocabulary larger than it takes.
  bool Describe(absl::Span<const RowTask> tasks);

  // What the last Describe made, until the next one.
  absl::Span<const kernels::SampleTask> tasks() const { return tasks_; }
  absl::Span<const kernels::TokenAdjustment> adjustments() const { return adjustments_; }

 private:
  void AddAdjustments(const RowTask& task);
  kernels::TokenAdjustment* AdjustmentOf(uint32_t id);

  uint32_t vocab_;
  std::vector<kernels::SampleTask> tasks_;
  std::vector<kernels::TokenAdjustment> adjustments_;
  std::vector<uint32_t> places_;  // per id: 1 + its place in adjustments_; all zero between rows
};

RowResult FromSampled(const kernels::SampledRow& row, const RowTask& task);

}  // namespace normserve::engine
