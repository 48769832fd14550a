// SPDX-License-Identifier: Apache-2.0
// Tests of client/score_command.h: what a pairs file may hold.
#include "client/score_command.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace normserve::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseScoreItems, ReadsAllFourForms) {
  const auto items = ParseScoreItems(
      "{\"context\": \"a\", \"continuation\": \" b\"}\n\n"
      "{\"context\": [1], \"continuation\": [2, 3]}\n"
      "{\"continuation\": [4]}\n{\"continuation\": \"c\"}\n{\"text\": \"d\"}\n"
      "{\"token_ids\": [5, 6]}\n");
  ASSERT_TRUE(items.ok()) << items.status();
  ASSERT_EQ(items->size(), 6u);
  EXPECT_EQ((*items)[0].text_pair().context(), "a");
  EXPECT_EQ((*items)[0].text_pair().continuation(), " b");
  EXPECT_THAT((*items)[1].token_pair().context().ids(), ElementsAre(1u));
  EXPECT_THAT((*items)[1].token_pair().continuation().ids(), ElementsAre(2u, 3u));
  EXPECT_EQ((*items)[2].token_pair().context().ids_size(), 0);
  EXPECT_EQ((*items)[3].text_pair().context(), "");
  EXPECT_EQ((*items)[4].text(), "d");
  EXPECT_THAT((*items)[5].token_ids().ids(), ElementsAre(5u, 6u));
}

TEST(ParseScoreItems, AFaultyLineIsNamed) {
  for (const char* line :
       {"x", "[]", "{}", "{\"context\": \"a\"}", "{\"context\": \"a\", \"continuation\": [1]}",
        "{\"context\": [1], \"continuation\": \"a\"}", "{\"token_ids\": [1.5]}"}) {
    const auto items = ParseScoreItems(std::string("{\"text\": \"fine\"}\n\n") + line);
    ASSERT_FALSE(items.ok()) << line;
    EXPECT_THAT(std::string(items.status().message()), HasSubstr("line 3")) << line;
  }
  EXPECT_FALSE(ParseScoreItems("").ok());
}

}  // namespace
}  // namespace normserve::client
