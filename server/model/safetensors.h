// SPDX-License-Identifier: Apache-2.0
// One safetensors file, mapped read-only. The header is checked before any byte of data is looked at;
// a file that is not exactly right is refused with one sentence naming file and tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace normserve::model {

struct TensorEntry {
  std::string dtype;  // as the header spells it: "F32", "BF16", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data
  uint64_t end = 0;
  int64_t elements = 0;
};

// Checks a header's text against the size of the data that follows it, without any file: known dtype,
// begin <= end <= data size, shape x dtype == span with no wrap, no overlap, no gap, no name twice.
absl::StatusOr<std::map<std::string, TensorEntry>> ParseSafetensorsHeader(std::string_view header,
                                                                          uint64_t data_bytes,
                                                                          const std::string& file);

// Used by one thread. Tensors it hands out must not outlive it.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorEntry>& entries() const { return entries_; }

  // The tensor over the mapped bytes, or a copy of them where the file does not align them.
  // InvalidArgument for a dtype that no weight may have; NotFound if absent.
  absl::StatusOr<at::Tensor> Tensor(const std::string& name) const;

  // Gives the memory of all pages read so far back to the system. Tensors stay valid: their pages are
  // read again, mostly from the system's file cache.
  void ReleasePages() const;

 private:
  SafetensorsFile() = default;

  std::string path_;
  void* map_ = nullptr;  // owned; the whole file
  uint64_t file_bytes_ = 0;
  const char* data_ = nullptr;
  std::map<std::string, TensorEntry> entries_;
};

}  // namespace normserve::model
