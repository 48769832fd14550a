// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/string_view.h"

namespace normserve::base {
namespace {

bool NeedsQuotes(std::string_view value) {
  if (value.empty()) return true;
  for (const unsigned char c : value) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7f) return true;
  }
  return false;
}

std::string Quoted(std::string_view value) {
  std::string out = "\"";
  for (const unsigned char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c < ' ' || c == 0x7f) {
      absl::StrAppendFormat(&out, "\\x%02x", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + '"';
}

constexpr std::string_view kLevelNames[] = {"debug", "info", "warning", "error"};

}  // namespace

LogField::LogField(std::string_view key, std::string_view value)
    : text(absl::StrCat(Absl(key), "=", NeedsQuotes(value) ? Quoted(value) : std::string(value))) {}
LogField::LogField(std::string_view key, int64_t value) : text(absl::StrCat(Absl(key), "=", value)) {}
LogField::LogField(std::string_view key, uint64_t value) : text(absl::StrCat(Absl(key), "=", value)) {}
LogField::LogField(std::string_view key, double value)
    : text(absl::StrFormat("%s=%.6g", Absl(key), value)) {}

void Log::Write(LogLevel level, std::string_view event,
                std::initializer_list<LogField> fields) const {
  if (level < least_) return;
  std::string line = absl::StrCat(
      "time=", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()),
      " level=", Absl(kLevelNames[static_cast<int>(level)]), " event=", Absl(event));
  for (const LogField& field : fields) absl::StrAppend(&line, " ", field.text);
  line += '\n';
  // A full or closed standard error must not stop the server.
  [[maybe_unused]] const ssize_t written = write(fd_, line.data(), line.size());
}

}  // namespace normserve::base
