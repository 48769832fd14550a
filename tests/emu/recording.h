// SPDX-License-Identifier: Apache-2.0
// What a CUDA graph is on a device: launches put down in order, with their arguments as they were, to be run
// later and again. A launch that reads something else when it runs than when it was recorded (a value on the
// host, memory that has moved) shows as it would there.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace emu {

class Recording {
 public:
  void Add(std::function<void()> launch) { launches_.push_back(std::move(launch)); }
  // Memory that the launches use and nobody else holds.
  void Keep(std::shared_ptr<const void> memory) { kept_.push_back(std::move(memory)); }
  void Run() const {
    for (const std::function<void()>& launch : launches_) launch();
  }

 private:
  std::vector<std::function<void()>> launches_;
  std::vector<std::shared_ptr<const void>> kept_;
};

// Where this thread's launches go; null: they run at once.
inline Recording*& ActiveRecording() {
  static thread_local Recording* active = nullptr;
  return active;
}

// One kernel at a time: the emulated device is one for all threads.
inline std::mutex& DeviceMutex() {
  static std::mutex mutex;
  return mutex;
}

template <class Launch>
void RunOrRecord(Launch launch) {
  const auto run = [launch = std::move(launch)] {
    const std::lock_guard<std::mutex> lock(DeviceMutex());
    launch();
  };
  if (Recording* recording = ActiveRecording()) return recording->Add(run);
  run();
}

}  // namespace emu
