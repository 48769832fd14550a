// SPDX-License-Identifier: Apache-2.0
#include "app/device.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/kernel_plugin.h"
#include "kernels/ops.h"

namespace normserve::app {
namespace {

constexpr char kCudaPlugin[] = "normserve_cuda.so";
constexpr char kEmulatedPlugin[] = "normserve_cuda_emulated.so";

absl::StatusOr<std::unique_ptr<kernels::Accelerator>> Open(const std::string& plugin, int index) {
  NS_ASSIGN_OR_RETURN(auto accelerator, kernels::OpenKernelPlugin(plugin, index));
  const std::vector<std::string> missing = kernels::MissingKernels(accelerator->device().type());
  if (missing.empty()) return accelerator;
  return absl::InternalError(absl::StrCat(plugin, " lacks kernels for ", absl::StrJoin(missing, ", ")));
}

// "cuda" is "cuda:0"; options.cc has checked the form.
int IndexOf(const std::string& device) {
  int index = 0;
  const size_t colon = device.find(':');
  if (colon != std::string::npos && !absl::SimpleAtoi(device.substr(colon + 1), &index)) return -1;
  return index;
}

absl::StatusOr<Device> Open(const Options& options) {
  Device device;
  if (options.device == "cpu") return device;
  const bool emulated = options.device == "cuda-emulated";
  const bool any = options.device == "auto";
  auto opened = Open(emulated ? kEmulatedPlugin : kCudaPlugin, IndexOf(options.device));
  if (opened.ok()) {
    device.accelerator = *std::move(opened);
    return device;
  }
  const std::string why(opened.status().message());
  const std::string sentence =
      absl::IsNotFound(opened.status()) && !emulated ? "this build has no CUDA plugin (" + why + ")" : why;
  if (!any) {
    return absl::Status(opened.status().code(),
                        absl::StrCat("--device ", options.device, ": ", sentence, "; allowed here: cpu, auto"));
  }
  device.why_cpu = sentence;
  return device;
}

}  // namespace

absl::StatusOr<Device> OpenDevice(const Options& options) {
  NS_ASSIGN_OR_RETURN(Device device, Open(options));
  if (!options.dependent_launch) return device;
  const std::string fault =
      device.accelerator != nullptr ? device.accelerator->UseDependentLaunch()
      : device.why_cpu.empty()      ? "not on cpu"
                                    : absl::StrCat("not on cpu, which --device auto took: ", device.why_cpu);
  if (fault.empty()) return device;
  return absl::FailedPreconditionError(absl::StrCat("--dependent-launch: ", fault, "; leave it out"));
}

}  // namespace normserve::app
