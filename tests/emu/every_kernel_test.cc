// SPDX-License-Identifier: Apache-2.0
// Every kernel in server/ is launched in the emulator by one of the tests of this folder. ctest runs those
// first, with a new record of what they launch (launched_kernels.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace {

const std::string kGlobal = "__global__", kBounds = "__launch_bounds__(", kSpace = "normserve::kernels::",
                  kWait = "WaitForLastKernel();";

bool InName(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Without what follows two slashes.
std::string Code(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string code, line;
  while (std::getline(in, line)) code += line.substr(0, line.find("//")) + "\n";
  return code;
}

// The name before the parenthesis that opens the parameters of the kernel declared at `at`.
std::string KernelName(const std::string& code, size_t at) {
  size_t open = code.find('(', at);
  const size_t bounds = code.find(kBounds, at);
  if (bounds < open) open = code.find('(', code.find(')', bounds));
  if (open == std::string::npos) return "";
  size_t begin = open;
  while (begin > at && InName(code[begin - 1])) --begin;
  return code.substr(begin, open - begin);
}

// Whether the body of the kernel declared at `at` begins with the wait that dependent launches need.
bool WaitsFirst(const std::string& code, size_t at) {
  const size_t body = code.find_first_not_of(" \n", code.find("{", at) + 1);
  return code.compare(body, kWait.size(), kWait) == 0;
}

std::multiset<std::string> Defined() {
  std::multiset<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("../server")) {
    if (!entry.is_regular_file()) continue;
    const std::string code = Code(entry.path());
    for (size_t at = code.find(kGlobal); at != std::string::npos; at = code.find(kGlobal, at + 1)) {
      names.insert(KernelName(code, at + kGlobal.size()));
      EXPECT_TRUE(WaitsFirst(code, at)) << KernelName(code, at + kGlobal.size()) << " must begin with " << kWait;
    }
  }
  return names;
}

// The kernels of the instances in the record: "void normserve::kernels::NormKernel<float, 1>(...)".
std::set<std::string> Launched(const char* record) {
  std::set<std::string> names;
  std::ifstream in(record);
  std::string line;
  while (std::getline(in, line)) {
    size_t begin = line.find(kSpace);
    if (begin == std::string::npos) continue;
    begin += kSpace.size();
    size_t end = begin;
    while (end < line.size() && InName(line[end])) ++end;
    names.insert(line.substr(begin, end - begin));
  }
  return names;
}

TEST(EveryKernel, IsEmulated) {
  const char* const record = std::getenv("NORMSERVE_LAUNCHED_KERNELS");
  ASSERT_NE(record, nullptr) << "run this test with ctest, which runs those it reads of first";
  const std::multiset<std::string> defined = Defined();
  EXPECT_FALSE(defined.empty());
  EXPECT_THAT(defined, testing::ElementsAreArray(Launched(record)))
      << "kernels that are defined, and those that are launched in the emulator";
  RecordProperty("kernels", static_cast<int>(defined.size()));
}

}  // namespace
