// SPDX-License-Identifier: Apache-2.0
#include "text/stop_matcher.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace normserve::text {
namespace {

struct Piece {
  std::string text;
  bool allow;
};

struct Outcome {
  std::string text;
  bool matched = false;
  std::string match;
  bool operator==(const Outcome& o) const {
    return text == o.text && matched == o.matched && match == o.match;
  }
};

std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << '"' << o.text << "\" " << o.matched << " \"" << o.match << '"';
}

Outcome Stream(const std::vector<std::string>& stops, bool include, const std::vector<Piece>& in) {
  StopMatcher matcher(stops, include);
  Outcome outcome;
  for (const Piece& piece : in) {
    const StopMatcher::Result result = matcher.Append(piece.text, piece.allow);
    outcome.text += result.emit;
    if (result.matched) {
      outcome.matched = true;
      outcome.match = result.match;
      return outcome;
    }
  }
  outcome.text += matcher.Flush();
  return outcome;
}

// The rule read off the whole text: the first end past `forbidden`, and there the longest.
Outcome Naive(const std::vector<std::string>& stops, bool include, const std::string& text,
              size_t forbidden) {
  for (size_t end = forbidden + 1; end <= text.size(); ++end) {
    const std::string* best = nullptr;
    for (const std::string& stop : stops) {
      if (stop.empty() || stop.size() > end) continue;
      const bool here = text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (here && (best == nullptr || stop.size() > best->size())) best = &stop;
    }
    if (best != nullptr) {
      return {text.substr(0, include ? end : end - best->size()), true, *best};
    }
  }
  return {text, false, ""};
}

TEST(StopMatcher, AgreesWithTheWholeTextHoweverItIsSplit) {
  std::mt19937 random(7);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  const auto word = [&](size_t longest) {
    std::string text;
    for (size_t n = below(longest + 1); n > 0; --n) text += "ab\xC3"[below(3)];
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = below(4); n > 0; --n) stops.push_back(word(5));
    const std::string text = word(24);
    const bool include = below(2) == 0;
    const size_t forbidden = below(3) == 0 ? below(text.size() + 1) : 0;
    std::vector<Piece> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t end = at < forbidden ? forbidden : text.size();
      const size_t size = 1 + below(end - at);
      pieces.push_back({text.substr(at, size), at >= forbidden});
      at += size;
    }
    const Outcome want = Naive(stops, include, text, forbidden);
    matches += want.matched ? 1 : 0;
    ASSERT_EQ(Stream(stops, include, pieces), want) << "round " << round;
  }
  EXPECT_GT(matches, 5000);
}

// vllm#3574: the pieces DEF and G of the stop string DEFGHIJ were sent before it was recognised.
TEST(StopMatcher, NoPieceOfAStopStringLeaks) {
  StopMatcher matcher({"DEFGHIJ"}, false);
  EXPECT_EQ(matcher.Append("ABCDEF", true).emit, "ABC");
  EXPECT_EQ(matcher.Append("G", true).emit, "");
  const StopMatcher::Result end = matcher.Append("HIJKL", true);
  EXPECT_EQ(end.emit, "");
  EXPECT_TRUE(end.matched);
  EXPECT_EQ(end.match, "DEFGHIJ");
}

TEST(StopMatcher, GivesBackWhatTurnedOutToBeNoStop) {
  StopMatcher matcher({"</end>"}, false);
  EXPECT_EQ(matcher.Append("a</e", true).emit, "a");
  EXPECT_EQ(matcher.Append("x</", true).emit, "</ex");
  EXPECT_EQ(matcher.Flush(), "</");
}

TEST(StopMatcher, MatchesAtOnceThoughALongerOneCouldFollow) {
  StopMatcher matcher({"ab", "abc"}, false);
  const StopMatcher::Result result = matcher.Append("xab", true);
  EXPECT_TRUE(result.matched);
  EXPECT_EQ(result.match, "ab");
}

TEST(StopMatcher, OfSeveralThatEndTogetherTheLongest) {
  StopMatcher matcher({"d", "bcd", "cd"}, false);
  const StopMatcher::Result result = matcher.Append("abcdcd", true);
  EXPECT_EQ(result.emit, "a");
  EXPECT_EQ(result.match, "bcd");
}

TEST(StopMatcher, IncludedStopStringStaysInTheText) {
  StopMatcher matcher({"\n\n"}, true);
  EXPECT_EQ(matcher.Append("one\n", true).emit, "one");
  EXPECT_EQ(matcher.Append("\ntwo", true).emit, "\n\n");
}

// Before min_new_tokens a whole stop string passes; one that is completed later counts.
TEST(StopMatcher, AMatchMustEndInAllowedText) {
  StopMatcher passed({"END"}, false);
  EXPECT_EQ(passed.Append("END", false).emit, "END");
  EXPECT_FALSE(passed.Append("x", true).matched);

  StopMatcher completed({"END"}, false);
  EXPECT_EQ(completed.Append("aEN", false).emit, "a");
  EXPECT_TRUE(completed.Append("D", true).matched);
}

TEST(StopMatcher, EmptyStopStringsAreIgnored) {
  StopMatcher matcher({""}, false);
  const StopMatcher::Result result = matcher.Append("text", true);
  EXPECT_EQ(result.emit, "text");
  EXPECT_FALSE(result.matched);
}

}  // namespace
}  // namespace normserve::text
