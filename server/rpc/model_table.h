// SPDX-License-Identifier: Apache-2.0
// The models by name. Empty while they load; filled once, then constant.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/served_model.h"

namespace normserve::rpc {

// Any thread. Owned by main, outlives the server.
class ModelTable {
 public:
  // Makes the models visible to calls. Called once.
  void Publish(std::vector<ServedModel> models);

  // Null before Publish.
  const std::vector<ServedModel>* models() const;

  // The model of a request. An empty name is the only model's. UNAVAILABLE while loading, NOT_FOUND
  // (lists the known names), INVALID_ARGUMENT for an empty name among several models.
  absl::StatusOr<const ServedModel*> Find(std::string_view name) const;

 private:
  std::vector<ServedModel> models_;
  std::atomic<bool> published_{false};
};

}  // namespace normserve::rpc
