// SPDX-License-Identifier: Apache-2.0
#include "scheduler/prompt_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace normserve::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PromptLookupTest, GivesWhatFollowedTheLatestOccurrence) {
  EXPECT_THAT(LookUpNext({1, 2, 3, 1, 2, 4, 1, 2}, 1), ElementsAre(4));
  EXPECT_THAT(LookUpNext({1, 2, 3, 1, 2, 4, 1, 2}, 9), ElementsAre(4, 1, 2));
}

TEST(PromptLookupTest, ALongerMatchWinsOverALaterOne) {
  EXPECT_THAT(LookUpNext({9, 1, 2, 3, 7, 1, 2, 4, 9, 1, 2}, 2), ElementsAre(3, 7));
}

TEST(PromptLookupTest, MatchesMayOverlap) {
  EXPECT_THAT(LookUpNext({1, 1, 1, 1}, 5), ElementsAre(1));
  EXPECT_THAT(LookUpNext({1, 2, 1, 2, 1, 2}, 2), ElementsAre(1, 2));
}

TEST(PromptLookupTest, NothingFollowsFromOneTokenOrFromNone) {
  EXPECT_THAT(LookUpNext({}, 4), IsEmpty());
  EXPECT_THAT(LookUpNext({1}, 4), IsEmpty());
  EXPECT_THAT(LookUpNext({1, 1}, 4), IsEmpty());
  EXPECT_THAT(LookUpNext({2, 3, 2}, 4), IsEmpty());  // one token recurs: too little to guess from
  EXPECT_THAT(LookUpNext({1, 2, 3, 1, 2}, 0), IsEmpty());
}

}  // namespace
}  // namespace normserve::scheduler
