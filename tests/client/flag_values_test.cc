// SPDX-License-Identifier: Apache-2.0
// Tests of client/flag_values.h.
#include "client/flag_values.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace normserve::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseTokenRange, OneNumberOrTwo) {
  const auto one = ParseTokenRange("--x", "128");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->low, 128u);
  EXPECT_EQ(one->high, 128u);
  const auto two = ParseTokenRange("--x", "1:512");
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->low, 1u);
  EXPECT_EQ(two->high, 512u);
}

TEST(ParseTokenRange, RefusesWhatIsNotARangeNamingTheFlag) {
  for (const char* text : {"", "0", "5:4", "1:2:3", "a", "1:", "-1", "1:99999999"}) {
    const auto range = ParseTokenRange("--prompt-tokens", text);
    ASSERT_FALSE(range.ok()) << text;
    EXPECT_THAT(std::string(range.status().message()), HasSubstr("--prompt-tokens")) << text;
  }
}

TEST(ParseTokenIds, ReadsAListAndRefusesNegatives) {
  const auto ids = ParseTokenIds("--token-ids", "3, 17,4294967295");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(3u, 17u, 4294967295u));
  EXPECT_FALSE(ParseTokenIds("--token-ids", "3,-1").ok());
  EXPECT_FALSE(ParseTokenIds("--token-ids", "3,,4").ok());
}

TEST(ParseLogitBias, ReadsPairs) {
  const auto bias = ParseLogitBias({"5=-100", "7=0.5"});
  ASSERT_TRUE(bias.ok()) << bias.status();
  EXPECT_EQ(bias->at(5), -100.0f);
  EXPECT_EQ(bias->at(7), 0.5f);
  EXPECT_FALSE(ParseLogitBias({"5"}).ok());
  EXPECT_FALSE(ParseLogitBias({"x=1"}).ok());
  EXPECT_FALSE(ParseLogitBias({"5=y"}).ok());
}

}  // namespace
}  // namespace normserve::client
