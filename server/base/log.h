// SPDX-License-Identifier: Apache-2.0
// Structured one-line logs (logfmt) on standard error. Passed around by reference; no global logger.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace normserve::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// One key=value of a line. Values with spaces or quotes are quoted and escaped.
struct LogField {
  LogField(std::string_view key, std::string_view value);
  LogField(std::string_view key, const char* value) : LogField(key, std::string_view(value)) {}
  LogField(std::string_view key, const std::string& value)
      : LogField(key, std::string_view(value)) {}
  LogField(std::string_view key, int64_t value);
  LogField(std::string_view key, uint64_t value);
  LogField(std::string_view key, int value) : LogField(key, static_cast<int64_t>(value)) {}
  LogField(std::string_view key, unsigned value) : LogField(key, static_cast<uint64_t>(value)) {}
  LogField(std::string_view key, double value);
  LogField(std::string_view key, bool value) : LogField(key, value ? "true" : "false") {}
  std::string text;  // "key=value"
};

// Any thread. One write(2) per line, so lines never mix.
class Log {
 public:
  explicit Log(LogLevel least = LogLevel::kInfo, int fd = 2) : least_(least), fd_(fd) {}
  // time=2026-01-01T00:00:00.000Z level=info event=<event> key=value ...
  void Write(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) const;
  void Info(std::string_view event, std::initializer_list<LogField> fields = {}) const {
    Write(LogLevel::kInfo, event, fields);
  }
  void Warning(std::string_view event, std::initializer_list<LogField> fields = {}) const {
    Write(LogLevel::kWarning, event, fields);
  }
  void Error(std::string_view event, std::initializer_list<LogField> fields = {}) const {
    Write(LogLevel::kError, event, fields);
  }

 private:
  LogLevel least_;
  int fd_;
};

}  // namespace normserve::base
