// SPDX-License-Identifier: Apache-2.0
#include "base/regular_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace normserve::base {

// Looked at before it is opened: opening is what a FIFO blocks. Not opened with O_NONBLOCK instead,
// which fails on a file that somebody holds a lease on.
absl::Status CheckRegularFile(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, uint64_t max_bytes) {
  NS_RETURN_IF_ERROR(CheckRegularFile(path));
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  }
  const std::streamoff size = file.tellg();
  if (size < 0) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  if (static_cast<uint64_t>(size) > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", size, " bytes; allowed: at most ", max_bytes));
  }
  std::string text(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(text.data(), size)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  }
  return text;
}

}  // namespace normserve::base
