// SPDX-License-Identifier: Apache-2.0
// UTF-8 at the byte level: what the tokenizers and the detokenizer need of it, nothing of Unicode.
#pragma once

#include <cstddef>
#include <string_view>

namespace normserve::text {

// U+FFFD, which decoders write for what is not UTF-8.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes of the valid characters at the front of `bytes`; bytes.size() when all of it is UTF-8
// (shortest forms only, no surrogates, at most U+10FFFF).
size_t ValidUtf8Prefix(std::string_view bytes);

// Bytes at the end of `bytes` (0 to 3) that are the beginning of a character and lack its rest.
size_t IncompleteUtf8Tail(std::string_view bytes);

}  // namespace normserve::text
