// SPDX-License-Identifier: Apache-2.0
// SIGTERM and SIGINT as something to wait for, in place of handlers.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace normserve::app {

// Made by main before any other thread, so that all inherit the blocked signals. The first signal
// is what Wait waits for; a second one ends the process at once.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool Received() const;
  void Wait();

 private:
  void Listen();

  int signals_fd_ = -1;
  int end_fd_ = -1;  // written by the destructor
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool received_ = false;
  std::thread thread_;
};

}  // namespace normserve::app
