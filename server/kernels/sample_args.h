// SPDX-License-Identifier: Apache-2.0
// The sampling kernel's arguments out of tensors, for the plugins. Private to this folder and to plugins.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "kernels/accelerator.h"
#include "kernels/sample_rows.h"

namespace normserve::kernels {

template <class T>
T* ItemsOf(const char* name, const at::Tensor& bytes) {
  TORCH_CHECK(bytes.scalar_type() == at::kByte && bytes.dim() == 2 && bytes.is_contiguous() &&
                  bytes.size(1) == static_cast<int64_t>(sizeof(T)),
              name, ": expected packed items of ", sizeof(T), " bytes, got ", bytes.sizes());
  return reinterpret_cast<T*>(bytes.data_ptr<uint8_t>());
}

inline SampleArgs ToSampleArgs(const SampleTensors& tensors) {
  const int64_t rows = tensors.tasks.size(0), vocab = tensors.logits.size(1);
  TORCH_CHECK(tensors.logits.size(0) == rows && tensors.logits.is_contiguous(), "logits: expected [", rows,
              ", vocab], got ", tensors.logits.sizes());
  TORCH_CHECK(tensors.work.sizes() == tensors.logits.sizes() && tensors.work.is_contiguous(),
              "work: expected the shape of logits, got ", tensors.work.sizes());
  TORCH_CHECK(vocab > 0 && vocab <= kMaxSampledVocabulary, "vocabulary: ", vocab, ", allowed 1 to ",
              kMaxSampledVocabulary);
  SampleArgs args;
  args.logits = tensors.logits.const_data_ptr<float>();
  args.logits_stride = vocab;
  args.vocab = vocab;
  args.tasks = ItemsOf<SampleTask>("tasks", tensors.tasks);
  args.adjustments = ItemsOf<TokenAdjustment>("adjustments", tensors.adjustments);
  args.work = tensors.work.data_ptr<float>();
  args.results = ItemsOf<SampledRow>("results", tensors.results);
  TORCH_CHECK(tensors.results.size(0) == rows, "results: expected ", rows, " rows");
  return args;
}

}  // namespace normserve::kernels
