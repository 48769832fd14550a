// SPDX-License-Identifier: Apache-2.0
// Finds stop strings in streamed text and holds back whatever may be the beginning of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace normserve::text {

// One per request; used by one thread.
class StopMatcher {
 public:
  // With include_stop the matched string stays in the emitted text; else the text is cut before it.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  struct Result {
    std::string emit;  // safe to send now
    bool matched = false;
    std::string match;  // which stop string, when matched
  };
  // Feeds decoded text. The match that is complete first wins, at once; of several that end at the
  // same place the longest. (So a stop string that begins with a shorter one never gets its turn.)
  // With `allow_match` false (min_new_tokens) text passes, but is still held and never matched; a
  // match must end in text that was fed with `allow_match`, and may begin before it.
  // After a match the object is spent.
  Result Append(std::string_view text, bool allow_match);
  // The held rest, at the end without a match.
  std::string Flush();

 private:
  std::vector<std::string> stops_;
  bool include_stop_;
  std::string held_;
};

}  // namespace normserve::text
