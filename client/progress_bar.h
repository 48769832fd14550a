// SPDX-License-Identifier: Apache-2.0
// A one-line progress bar on standard error, drawn only on a terminal.
#pragma once

#include <cstdint>
#include <string>

namespace normserve::client {

// One thread.
class ProgressBar {
 public:
  // `enabled` false draws nothing.
  explicit ProgressBar(bool enabled) : enabled_(enabled) {}
  ~ProgressBar();  // ends the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // fraction in [0, 1]; redraws at most ten times a second.
  void Update(double fraction, const std::string& note, int64_t now_ns);

 private:
  bool enabled_;
  bool drawn_ = false;
  int64_t last_ns_ = 0;
};

}  // namespace normserve::client
