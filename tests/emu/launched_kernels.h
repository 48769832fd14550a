// SPDX-License-Identifier: Apache-2.0
// The names of the kernels that a test program launches, one a line, added to the file that
// NORMSERVE_LAUNCHED_KERNELS names: every_kernel_test.cc reads it. Names are those of the program's
// symbols, so the program is linked with its symbols exported.
#pragma once

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

namespace emu {

inline void NoteLaunch(void* kernel) {
  static const char* const file = std::getenv("NORMSERVE_LAUNCHED_KERNELS");
  static std::set<void*> noted;
  if (file == nullptr || !noted.insert(kernel).second) return;
  Dl_info info;
  if (dladdr(kernel, &info) == 0 || info.dli_saddr != kernel) return;
  int status = 0;
  char* name = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  if (name != nullptr) std::ofstream(file, std::ios::app) << std::string(name) + "\n";
  std::free(name);
}

}  // namespace emu
