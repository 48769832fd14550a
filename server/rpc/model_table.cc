// SPDX-License-Identifier: Apache-2.0
#include "rpc/model_table.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/string_view.h"

namespace normserve::rpc {
namespace {

std::string KnownNames(const std::vector<ServedModel>& models) {
  return absl::StrJoin(models, ", ", [](std::string* out, const ServedModel& model) {
    out->append(model.card.name);
  });
}

}  // namespace

void ModelTable::Publish(std::vector<ServedModel> models) {
  models_ = std::move(models);
  published_.store(true, std::memory_order_release);
}

const std::vector<ServedModel>* ModelTable::models() const {
  return published_.load(std::memory_order_acquire) ? &models_ : nullptr;
}

absl::StatusOr<const ServedModel*> ModelTable::Find(std::string_view name) const {
  const std::vector<ServedModel>* models = this->models();
  if (models == nullptr) return absl::UnavailableError("the server is still loading its models");
  if (name.empty()) {
    if (models->size() == 1) return &models->front();
    return absl::InvalidArgumentError(
        absl::StrCat("model: empty, but this server has several; allowed: ", KnownNames(*models)));
  }
  for (const ServedModel& model : *models) {
    if (model.card.name == name) return &model;
  }
  return absl::NotFoundError(
      absl::StrCat("model: no model '", base::Absl(name), "'; known: ", KnownNames(*models)));
}

}  // namespace normserve::rpc
