// SPDX-License-Identifier: Apache-2.0
#include "app/stop_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace normserve::app {

StopSignal::StopSignal() {
  // A client or a log reader that leaves must not end the server.
  signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_fd_ = signalfd(-1, &set, SFD_CLOEXEC);
  end_fd_ = eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this] { Listen(); });
}

StopSignal::~StopSignal() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(end_fd_, &one, sizeof(one));
  thread_.join();
  close(signals_fd_);
  close(end_fd_);
}

void StopSignal::Listen() {
  pollfd fds[] = {{signals_fd_, POLLIN, 0}, {end_fd_, POLLIN, 0}};
  while (true) {
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info{};
    if (read(signals_fd_, &info, sizeof(info)) != sizeof(info)) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (received_) _exit(128 + static_cast<int>(info.ssi_signo));
    received_ = true;
    changed_.notify_all();
  }
}

bool StopSignal::Received() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return received_;
}

void StopSignal::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return received_; });
}

}  // namespace normserve::app
