// SPDX-License-Identifier: Apache-2.0
// Opens single and sharded checkpoints and hands out tensors by name, shape checked first.
#include "model/checkpoint.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/regular_file.h"
#include "base/status_macros.h"
#include "model/json_fields.h"

namespace normserve::model {
namespace {

constexpr uint64_t kMaxIndexBytes = 100'000'000;

std::string Shape(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// A shard is named by its file name alone: an index must not reach outside its folder.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name != "." && name != ".." &&
         name.find('\0') == std::string::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory) {
  const std::string single = directory + "/model.safetensors";
  const std::string index = directory + "/model.safetensors.index.json";
  std::error_code error;
  if (std::filesystem::exists(single, error)) {
    std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
    checkpoint->place_ = single;
    NS_RETURN_IF_ERROR(checkpoint->AddShard(single));
    return checkpoint;
  }
  if (std::filesystem::exists(index, error)) return OpenSharded(directory, index);
  return absl::NotFoundError(absl::StrCat(
      directory, ": has neither model.safetensors nor model.safetensors.index.json"));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::OpenSharded(
    const std::string& directory, const std::string& index_path) {
  NS_ASSIGN_OR_RETURN(const std::string text, base::ReadRegularFile(index_path, kMaxIndexBytes));
  NS_ASSIGN_OR_RETURN(const nlohmann::json index, ParseJsonObject(text, index_path));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": has no object weight_map"));
  }
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->place_ = index_path;
  std::map<std::string, std::string> shard_of;
  std::set<std::string> shards;
  for (const auto& [tensor, file] : map->items()) {
    const std::string* name = file.get_ptr<const std::string*>();
    if (name == nullptr || !IsPlainFileName(*name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          index_path, ": weight_map gives tensor ", tensor, " no plain file name"));
    }
    shard_of[tensor] = *name;
    shards.insert(*name);
  }
  for (const std::string& shard : shards) {
    const std::string path = directory + "/" + shard;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      return absl::NotFoundError(
          absl::StrCat(index_path, ": names shard ", shard, ", which is missing"));
    }
    NS_RETURN_IF_ERROR(checkpoint->AddShard(path));
  }
  for (const auto& [tensor, shard] : shard_of) {
    const auto it = checkpoint->home_.find(tensor);
    if (it == checkpoint->home_.end() || it->second->path() != directory + "/" + shard) {
      return absl::InvalidArgumentError(absl::StrCat(
          directory, "/", shard, ": tensor ", tensor, " is missing, which the index says it has"));
    }
  }
  return checkpoint;
}

absl::Status Checkpoint::AddShard(const std::string& path) {
  NS_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  for (const auto& [name, entry] : file->entries()) {
    const auto [it, added] = home_.emplace(name, file.get());
    if (!added) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", name, " is in ", it->second->path(), " too"));
    }
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

void Checkpoint::ReleasePages() const {
  for (const std::unique_ptr<SafetensorsFile>& file : files_) file->ReleasePages();
}

bool Checkpoint::Has(const std::string& name) const { return home_.count(name) > 0; }

absl::Status Checkpoint::Missing(const std::string& name) const {
  return absl::NotFoundError(absl::StrCat(place_, ": tensor ", name, " is missing"));
}

void Checkpoint::MarkConsumed(const std::string& name, int64_t elements) {
  if (consumed_.insert(name).second) consumed_elements_ += static_cast<uint64_t>(elements);
}

absl::StatusOr<const SafetensorsFile*> Checkpoint::Locate(
    const std::string& name, const std::vector<int64_t>& shape) const {
  const auto it = home_.find(name);
  if (it == home_.end()) return Missing(name);
  const TensorEntry& entry = it->second->entries().at(name);
  if (entry.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(it->second->path(), ": tensor ", name,
                                                   " has shape ", Shape(entry.shape),
                                                   "; the config asks for ", Shape(shape)));
  }
  if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
    return absl::InvalidArgumentError(absl::StrCat(it->second->path(), ": tensor ", name,
                                                   " has dtype ", entry.dtype,
                                                   "; allowed: F32, F16, BF16"));
  }
  return it->second;
}

absl::StatusOr<at::Tensor> Checkpoint::Parameter(const std::string& name,
                                                 const std::vector<int64_t>& shape) {
  NS_ASSIGN_OR_RETURN(const SafetensorsFile* file, Locate(name, shape));
  NS_ASSIGN_OR_RETURN(const at::Tensor stored, file->Tensor(name));
  MarkConsumed(name, stored.numel());
  return stored.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

absl::StatusOr<float> Checkpoint::Scalar(const std::string& name) {
  const auto it = home_.find(name);
  if (it == home_.end()) return Missing(name);
  const std::vector<int64_t>& stored = it->second->entries().at(name).shape;
  const std::vector<int64_t> shape = stored.empty() ? stored : std::vector<int64_t>{1};
  NS_ASSIGN_OR_RETURN(const at::Tensor value, Parameter(name, shape));
  const float number = value.reshape({1}).item<float>();
  if (!std::isfinite(number)) {
    return absl::InvalidArgumentError(
        absl::StrCat(it->second->path(), ": tensor ", name, " is ", number, "; allowed: finite"));
  }
  return number;
}

absl::StatusOr<at::Tensor> Checkpoint::LinearWeight(const std::string& name, int64_t rows,
                                                    int64_t columns) {
  NS_ASSIGN_OR_RETURN(const SafetensorsFile* file, Locate(name, {rows, columns}));
  return file->Tensor(name);
}

absl::StatusOr<at::Tensor> Checkpoint::TakeWeight(const std::string& name, int64_t rows,
                                                  int64_t columns) {
  NS_ASSIGN_OR_RETURN(at::Tensor weight, LinearWeight(name, rows, columns));
  MarkConsumed(name, weight.numel());
  return weight;
}

absl::Status Checkpoint::Ignore(const std::string& name, const std::vector<int64_t>& shape) {
  if (!Has(name)) return absl::OkStatus();
  NS_RETURN_IF_ERROR(Locate(name, shape).status());
  consumed_.insert(name);
  return absl::OkStatus();
}

absl::Status Checkpoint::CheckAllUsed(const std::vector<std::string>& ignored_suffixes,
                                      const std::string& reason) const {
  for (const auto& [name, file] : home_) {
    if (consumed_.count(name) > 0) continue;
    const bool ignored =
        std::any_of(ignored_suffixes.begin(), ignored_suffixes.end(),
                    [&](const std::string& suffix) { return absl::EndsWith(name, suffix); });
    if (ignored) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file->path(), ": tensor ", name, " is unknown to ", reason));
  }
  return absl::OkStatus();
}

}  // namespace normserve::model
