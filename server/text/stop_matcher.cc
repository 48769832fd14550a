// SPDX-License-Identifier: Apache-2.0
#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace normserve::text {
namespace {

struct Found {
  size_t end = std::string::npos;
  const std::string* stop = nullptr;
};

// The occurrence in `text` that ends first, but past `from`; of several that end there, the
// longest.
Found FirstToEnd(const std::vector<std::string>& stops, const std::string& text, size_t from) {
  Found first;
  for (const std::string& stop : stops) {
    const size_t begin = from + 1 > stop.size() ? from + 1 - stop.size() : 0;
    const size_t at = text.find(stop, begin);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    const bool longer = end == first.end && stop.size() > first.stop->size();
    if (end < first.end || longer) first = {end, &stop};
  }
  return first;
}

// Bytes of the longest end of `text` that is the beginning of a stop string, but not all of it.
size_t PossibleBeginning(const std::vector<std::string>& stops, const std::string& text) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t size = std::min(stop.size() - 1, text.size()); size > longest; --size) {
      if (text.compare(text.size() - size, size, stop, 0, size) == 0) longest = size;
    }
  }
  return longest;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop) {
  stops_.erase(std::remove(stops_.begin(), stops_.end(), std::string()), stops_.end());
}

StopMatcher::Result StopMatcher::Append(std::string_view text, bool allow_match) {
  Result result;
  const size_t old = held_.size();
  std::string all = std::move(held_);
  held_.clear();
  all += text;
  if (allow_match) {
    const Found found = FirstToEnd(stops_, all, old);
    if (found.stop != nullptr) {
      all.resize(include_stop_ ? found.end : found.end - found.stop->size());
      result.emit = std::move(all);
      result.matched = true;
      result.match = *found.stop;
      return result;
    }
  }
  const size_t keep = PossibleBeginning(stops_, all);
  held_ = all.substr(all.size() - keep);
  all.resize(all.size() - keep);
  result.emit = std::move(all);
  return result;
}

std::string StopMatcher::Flush() { return std::exchange(held_, std::string()); }

}  // namespace normserve::text
