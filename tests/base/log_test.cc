// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace normserve::base {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What `write` puts on the log's descriptor.
template <typename Write>
std::string Written(LogLevel least, Write write) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  write(Log(least, ends[1]));
  close(ends[1]);
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) out.append(buffer, n);
  close(ends[0]);
  return out;
}

TEST(LogTest, OneLineOfKeysAndValues) {
  const std::string line = Written(LogLevel::kInfo, [](const Log& log) {
    log.Warning("slow_step", {{"model", "demo"}, {"tokens", 12}, {"seconds", 0.5}, {"cpu", true}});
  });
  EXPECT_THAT(line, StartsWith("time="));
  EXPECT_THAT(line, HasSubstr(" level=warning event=slow_step model=demo tokens=12 seconds=0.5"));
  EXPECT_THAT(line, EndsWith(" cpu=true\n"));
}

TEST(LogTest, ValuesCannotForgeLinesOrFields) {
  const std::string line = Written(LogLevel::kInfo, [](const Log& log) {
    log.Info("request", {{"id", "a b=\"c\"\nlevel=error"}});
  });
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_THAT(line, HasSubstr(R"(id="a b=\"c\"\n)"));
}

TEST(LogTest, LowerLevelsAreLeftOut) {
  EXPECT_EQ(Written(LogLevel::kWarning, [](const Log& log) { log.Info("quiet"); }), "");
}

}  // namespace
}  // namespace normserve::base
