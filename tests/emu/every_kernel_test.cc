// SPDX-License-Identifier: Apache-2.0
// Every kernel in server/ is launched in the emulator by one of the tests of this folder. ctest runs those
// first, with a new record of what they launch (launched_kernels.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace {

using Names = std::multiset<std::string>;

std::string Contents(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The first group of every match.
Names Matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  Names names;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    names.insert(it->str(1));
  }
  return names;
}

Names Defined() {
  Names names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("../server")) {
    if (!entry.is_regular_file()) continue;
    std::string code = Contents(entry.path());
    if (code.find("__global__") == std::string::npos) continue;
    code = std::regex_replace(code, std::regex("//.*"), "");
    const Names found = Matches(
        code, R"(__global__\s+void\s+(?:__launch_bounds__\([^()]*\)\s+)?(\w+)\s*\()");
    EXPECT_EQ(found.size(), Matches(code, "(__global__)").size())
        << entry.path() << ": a kernel that this test cannot read";
    names.insert(found.begin(), found.end());
  }
  return names;
}

TEST(EveryKernel, IsEmulated) {
  const char* const record = std::getenv("NORMSERVE_LAUNCHED_KERNELS");
  ASSERT_NE(record, nullptr) << "run this test with ctest, which runs those it reads of first";
  const Names defined = Defined();
  const Names of_instances =
      Matches(Contents(record), R"((?:^|\n)(?:void )?normserve::kernels::(\w+)[<(])");
  const std::set<std::string> launched(of_instances.begin(), of_instances.end());
  EXPECT_THAT(defined, testing::ElementsAreArray(launched)) << "defined, and launched in the emulator";
  EXPECT_FALSE(defined.empty());
  RecordProperty("kernels", static_cast<int>(defined.size()));
}

}  // namespace
