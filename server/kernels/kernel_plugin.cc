// SPDX-License-Identifier: Apache-2.0
// See kernel_plugin.h.
#include "kernels/kernel_plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace normserve::kernels {

absl::StatusOr<std::unique_ptr<Accelerator>> OpenKernelPlugin(const std::string& file, int index) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path path = self.parent_path() / file;
  if (error || !std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat("there is no ", path.string()));
  }
  // Never closed: the dispatcher keeps pointers into it.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(file, " cannot be loaded: ", dlerror(), " (see docs/cuda.md)"));
  }
  const auto open =
      reinterpret_cast<OpenAcceleratorFunction*>(dlsym(library, "normserve_open_accelerator"));
  if (open == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path.string(), " is no plugin of normserve"));
  }
  std::string why;
  std::unique_ptr<Accelerator> accelerator(open(index, &why));
  if (accelerator == nullptr) return absl::FailedPreconditionError(why);
  return accelerator;
}

}  // namespace normserve::kernels
