// SPDX-License-Identifier: Apache-2.0
// A checkpoint folder: one safetensors file or shards with an index, and which tensors have been used.
// At the end of loading every tensor must have been consumed or be known to carry nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/safetensors.h"
#include "norm/norm_inputs.h"

namespace normserve::model {

// Used by one thread. Tensors it hands out must not outlive it.
class Checkpoint : public norm::TensorSource {
 public:
  // model.safetensors, else model.safetensors.index.json and the shards it names.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& directory);

  bool Has(const std::string& name) const override;
  absl::StatusOr<at::Tensor> Parameter(const std::string& name,
                                       const std::vector<int64_t>& shape) override;
  absl::StatusOr<float> Scalar(const std::string& name) override;
  absl::StatusOr<at::Tensor> LinearWeight(const std::string& name, int64_t rows,
                                          int64_t columns) override;
  // LinearWeight, and it counts as consumed.
  absl::StatusOr<at::Tensor> TakeWeight(const std::string& name, int64_t rows, int64_t columns);

  // Consumes a tensor that carries nothing, if it is there and has this shape.
  absl::Status Ignore(const std::string& name, const std::vector<int64_t>& shape);

  // InvalidArgument names the first tensor that was neither consumed nor ends in an ignored suffix;
  // `reason` says for whom it is unknown ("norm_type rms of architecture llama").
  absl::Status CheckAllUsed(const std::vector<std::string>& ignored_suffixes,
                            const std::string& reason) const;

  // See SafetensorsFile::ReleasePages, of all shards.
  void ReleasePages() const;

  uint64_t consumed_elements() const { return consumed_elements_; }

 private:
  Checkpoint() = default;
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenSharded(const std::string& directory,
                                                                 const std::string& index_path);
  absl::Status AddShard(const std::string& path);
  // The file of a tensor with exactly this shape and a floating dtype.
  absl::StatusOr<const SafetensorsFile*> Locate(const std::string& name,
                                                const std::vector<int64_t>& shape) const;
  absl::Status Missing(const std::string& name) const;
  void MarkConsumed(const std::string& name, int64_t elements);

  std::string place_;  // the folder's file or index, for messages about what is missing
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> home_;  // tensor -> its file, owned by files_
  std::set<std::string> consumed_;
  uint64_t consumed_elements_ = 0;
};

}  // namespace normserve::model
