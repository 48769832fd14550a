// SPDX-License-Identifier: Apache-2.0
// See progress_bar.h.
#include "client/progress_bar.h"

#include <algorithm>
#include <cstdio>

namespace normserve::client {
namespace {

constexpr int kCells = 30;
constexpr int64_t kRedrawNs = 100'000'000;

}  // namespace

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputc('\n', stderr);
}

void ProgressBar::Update(double fraction, const std::string& note, int64_t now_ns) {
  if (!enabled_ || (drawn_ && now_ns - last_ns_ < kRedrawNs)) return;
  const int full = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * kCells);
  const std::string bar = std::string(full, '#') + std::string(kCells - full, '.');
  // Carriage return and "erase to the end of the line", so that a shorter note leaves no rest.
  std::fprintf(stderr, "\r[%s] %3d%% %s\033[K", bar.c_str(), static_cast<int>(fraction * 100),
               note.c_str());
  std::fflush(stderr);
  drawn_ = true;
  last_ns_ = now_ns;
}

}  // namespace normserve::client
