// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <algorithm>

namespace normserve::text {
namespace {

struct Sequence {
  size_t length;  // bytes of the whole character by its first byte; 0: no character begins so
  size_t good;    // bytes present that fit it, 1..length
};

Sequence FirstSequence(std::string_view s) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {1, 1};
  if (lead < 0xC2 || lead > 0xF4) return {0, 0};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range shuts out overlong forms, surrogates and values past U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  size_t good = 1;
  while (good < length && good < s.size()) {
    const bool second = good == 1;
    if (at(good) < (second ? low : 0x80) || at(good) > (second ? high : 0xBF)) break;
    ++good;
  }
  return {length, good};
}

}  // namespace

size_t ValidUtf8Prefix(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    const Sequence next = FirstSequence(bytes.substr(i));
    if (next.length == 0 || next.good < next.length) break;
    i += next.length;
  }
  return i;
}

size_t IncompleteUtf8Tail(std::string_view bytes) {
  const size_t most = std::min<size_t>(3, bytes.size());
  for (size_t tail = 1; tail <= most; ++tail) {
    const std::string_view end = bytes.substr(bytes.size() - tail);
    const bool continuation = (static_cast<unsigned char>(end[0]) & 0xC0) == 0x80;
    if (continuation) continue;
    const Sequence last = FirstSequence(end);
    return last.length > tail && last.good == tail ? tail : 0;
  }
  return 0;
}

}  // namespace normserve::text
