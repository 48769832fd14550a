// SPDX-License-Identifier: Apache-2.0
// Tests of client/prompts.h.
#include "client/prompts.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace normserve::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParsePrompts, TextHasOnePerNonEmptyLine) {
  const auto prompts = ParsePrompts("In the beginning\r\n\n  and it came\n");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].text, "In the beginning");
  EXPECT_EQ((*prompts)[1].text, "  and it came");
}

TEST(ParsePrompts, JsonLinesHaveTextOrIds) {
  const auto prompts = ParsePrompts(
      "\n{\"text\": \"a\", \"max_new_tokens\": 3}\n{\"prompt\": \"b\"}\n{\"token_ids\": [1, 2]}\n");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 3u);
  EXPECT_EQ((*prompts)[0].text, "a");
  EXPECT_EQ((*prompts)[0].max_new_tokens, 3u);
  EXPECT_EQ((*prompts)[1].text, "b");
  EXPECT_FALSE((*prompts)[1].max_new_tokens.has_value());
  EXPECT_THAT((*prompts)[2].ids, ElementsAre(1u, 2u));
}

TEST(ParsePrompts, AFaultyLineIsNamed) {
  for (const char* line : {"{\"text\": 3}", "{\"token_ids\": []}", "{\"token_ids\": [-1]}", "{}",
                           "{\"text\": \"a\"", "{\"text\": \"a\", \"max_new_tokens\": -2}"}) {
    const auto prompts = ParsePrompts(std::string("{\"text\": \"fine\"}\n") + line);
    ASSERT_FALSE(prompts.ok()) << line;
    EXPECT_THAT(std::string(prompts.status().message()), HasSubstr("line 2")) << line;
  }
  EXPECT_FALSE(ParsePrompts("\n\n").ok());
}

TEST(SyntheticPrompts, LengthsAndIdsAreInRangeAndRepeatable) {
  SyntheticSpec spec;
  spec.prompt_tokens = {2, 9};
  spec.output_tokens = {5, 6};
  spec.count = 500;
  spec.vocab_size = 10;
  const std::vector<Prompt> prompts = SyntheticPrompts(spec);
  ASSERT_EQ(prompts.size(), 500u);
  std::vector<int> lengths(10), ids(10);
  for (const Prompt& prompt : prompts) {
    ASSERT_LE(prompt.ids.size(), 9u);
    ++lengths[prompt.ids.size()];
    ASSERT_TRUE(*prompt.max_new_tokens == 5 || *prompt.max_new_tokens == 6);
    for (const uint32_t id : prompt.ids) {
      ASSERT_LT(id, 10u);
      ++ids[id];
    }
  }
  EXPECT_EQ(lengths[0] + lengths[1], 0);
  for (int n = 2; n <= 9; ++n) EXPECT_GT(lengths[n], 0) << n;
  for (int id = 0; id < 10; ++id) EXPECT_GT(ids[id], 0) << id;
  EXPECT_EQ(SyntheticPrompts(spec)[77].ids, prompts[77].ids);
}

}  // namespace
}  // namespace normserve::client
