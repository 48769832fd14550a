// SPDX-License-Identifier: Apache-2.0
// See kernel_plugin.h.
#include "kernels/kernel_plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace normserve::kernels {

absl::Status OpenKernelPlugin(const std::string& file) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path path = self.parent_path() / file;
  if (error || !std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat("there is no ", path.string()));
  }
  // Never closed: the dispatcher keeps pointers into it.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::FailedPreconditionError(dlerror());
  const auto devices = reinterpret_cast<int (*)()>(dlsym(library, "normserve_plugin_devices"));
  if (devices == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path.string(), " is no plugin of normserve"));
  }
  if (devices() < 1) return absl::FailedPreconditionError("no device was found");
  return absl::OkStatus();
}

}  // namespace normserve::kernels
