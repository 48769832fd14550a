// SPDX-License-Identifier: Apache-2.0
// Maps a safetensors file and hands out its tensors.
#include "model/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/regular_file.h"
#include "base/status_macros.h"

namespace normserve::model {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference library's limit

// Dtypes that a weight or norm parameter may have.
std::optional<at::ScalarType> WeightDtype(const std::string& dtype) {
  if (dtype == "F32") return at::kFloat;
  if (dtype == "F16") return at::kHalf;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "I64") return at::kLong;
  return std::nullopt;
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  NS_RETURN_IF_ERROR(base::CheckRegularFile(path));
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be opened: ", strerror(errno)));
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  const uint64_t bytes = static_cast<uint64_t>(info.st_size);
  if (bytes < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", bytes, " bytes; a safetensors file starts with 8 of length"));
  }
  void* map = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (map == MAP_FAILED) {
    return absl::InternalError(absl::StrCat(path, ": cannot be mapped: ", strerror(errno)));
  }
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  file->map_ = map;
  file->file_bytes_ = bytes;
  const unsigned char* base = static_cast<const unsigned char*>(map);
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | base[i];
  const uint64_t room = bytes - kLengthBytes;
  if (header_bytes > room || header_bytes > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": header length is ", header_bytes, "; allowed: at most ",
                     std::min(room, kMaxHeaderBytes)));
  }
  const char* header = static_cast<const char*>(map) + kLengthBytes;
  file->data_ = header + header_bytes;
  NS_ASSIGN_OR_RETURN(file->entries_,
                      ParseSafetensorsHeader({header, header_bytes}, room - header_bytes, path));
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (map_ != nullptr) munmap(map_, file_bytes_);
}

void SafetensorsFile::ReleasePages() const { madvise(map_, file_bytes_, MADV_DONTNEED); }

absl::StatusOr<at::Tensor> SafetensorsFile::Tensor(const std::string& name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": tensor ", name, " is missing"));
  }
  const TensorEntry& entry = it->second;
  const std::optional<at::ScalarType> dtype = WeightDtype(entry.dtype);
  if (!dtype) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", name, " has dtype ",
                                                   entry.dtype, "; allowed: F32, F16, BF16"));
  }
  const char* bytes = data_ + entry.begin;
  const auto options = at::TensorOptions().dtype(*dtype);
  if (reinterpret_cast<uintptr_t>(bytes) % c10::elementSize(*dtype) == 0 && entry.elements > 0) {
    return at::from_blob(const_cast<char*>(bytes), entry.shape, options);
  }
  at::Tensor copy = at::empty(entry.shape, options);
  if (entry.elements > 0) std::memcpy(copy.data_ptr(), bytes, entry.end - entry.begin);
  return copy;
}

}  // namespace normserve::model
