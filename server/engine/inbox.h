// SPDX-License-Identifier: Apache-2.0
// The hand-off from callers to the engine thread: submissions and cancels, bounded, on a condition
// variable. It also answers whether a request may come in, since only the door sees every caller.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/request.h"

namespace normserve::engine {

struct Submission {
  uint64_t handle = 0;  // grows with arrival
  Request request;
  std::shared_ptr<Outbox> outbox;
  absl::Time submitted;
};

// Post, Cancel, Drain, Stop: any thread. The rest: the engine thread.
class Inbox {
 public:
  // `clock` outlives this.
  Inbox(uint32_t max_waiting, uint64_t max_waiting_tokens, const base::Clock* clock);

  // Ok: the request waits for the engine. RESOURCE_EXHAUSTED: the queue is full. UNAVAILABLE:
  // draining. A request larger than max_waiting_tokens by itself may wait alone, so that a retry
  // can succeed.
  absl::StatusOr<uint64_t> Post(Request request, std::shared_ptr<Outbox> outbox);
  void Cancel(uint64_t handle);
  // Refuses from now on, and returns when every request has ended and its last delta is delivered.
  // At `deadline` the engine is told to end the rest.
  void Drain(absl::Time deadline);
  // Refuses from now on and tells the engine to end everything and return.
  void Stop();

  struct Mail {
    std::vector<Submission> submissions;
    std::vector<uint64_t> cancels;
    bool end_all = false;
    bool stop = false;
  };
  // Everything that came in. With `wait`, blocks until there is something or `deadline` is reached.
  Mail Take(bool wait, absl::Time deadline);

  // The request no longer counts towards the queue's bounds.
  void LeftQueue(uint32_t prompt_tokens);
  // The request has ended; its last delta is yet to be delivered.
  void Ended(uint64_t handle);
  // All last deltas of ended requests are delivered.
  void Delivered();
  // Requests accepted and not ended.
  uint32_t live() const;

 private:
  absl::Status Admissible(uint64_t prompt_tokens) const;

  const uint32_t max_waiting_;
  const uint64_t max_waiting_tokens_;
  const base::Clock* const clock_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable arrived_;
  std::condition_variable quiet_;
  Mail mail_;
  std::unordered_map<uint64_t, bool> live_;  // handle -> cancel asked
  uint64_t last_handle_ = 0;
  uint32_t waiting_ = 0;
  uint64_t waiting_tokens_ = 0;
  uint32_t undelivered_ = 0;
  bool draining_ = false;
};

}  // namespace normserve::engine
