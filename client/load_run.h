// SPDX-License-Identifier: Apache-2.0
// Sends a load and measures it. Closed loop: a fixed number of workers with one request in flight
// each, which back off from a server that refuses (workers.h). Open loop, which never backs off: at
// times set beforehand (arrivals.h), and latency counts from those times, so that a client that
// falls behind shows it instead of hiding it.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "client/arrivals.h"
#include "client/connection.h"
#include "client/stream_call.h"
#include "client/workers.h"

namespace normserve::client {

struct LoadPlan {
  // Absent: closed loop.
  std::optional<double> rate_per_s;
  ArrivalKind arrival = ArrivalKind::kConstant;
  // Closed loop: requests in flight, >= 1. Open loop: most in flight, 0 = no limit; a request that
  // waits for a place is late, and that is measured.
  uint32_t concurrency = 1;
  uint64_t requests = 0;  // 0 = until duration_s
  double duration_s = 0;  // 0 = until `requests` were sent
  uint32_t warmup = 0;    // requests before the run that are not measured
  double drain_s = 60;    // wait this long for what is in flight at the end, then cancel it
  uint64_t seed = 0;      // of the arrivals
};

struct LoadOutcome {
  std::vector<CallRecord> records;  // every call sent, in order of their ends
  uint64_t offered = 0;             // sent + unsent
  uint64_t unsent = 0;              // due before the end, but never sent
  int64_t start_ns = 0;             // as the times of records
  double seconds = 0;               // from the start to the last call's end
  bool interrupted = false;         // by Stop
};

// Run: one thread, once. Stop: any thread.
class LoadRun final : private CallListener {
 public:
  struct Progress {
    double fraction = 0;
    uint64_t ended = 0;
    uint64_t in_flight = 0;
    uint64_t output_tokens = 0;
  };
  // Called about ten times a second, or more often, on Run's thread; may call Stop.
  using OnProgress = std::function<void(const Progress&)>;

  // `stubs` (>= 1) and `requests` (>= 1, used in turn) outlive the run.
  LoadRun(ConnectionOptions connection, LoadPlan plan,
          const std::vector<std::unique_ptr<Stub>>& stubs,
          const std::vector<v1::GenerateRequest>& requests);

  // The status is the first failure of the warm-up; a measured call's failure is in its record.
  absl::StatusOr<LoadOutcome> Run(const OnProgress& on_progress);

  // Sends nothing more and cancels what is in flight.
  void Stop();

 private:
  using Lock = std::unique_lock<std::mutex>;
  void RunLoop(const OnProgress& on_progress);
  // When the next request may go, INT64_MAX: not before a call ends; nullopt: the run has no more
  // to send.
  std::optional<int64_t> NextSendNs(int64_t now_ns) const;
  int64_t EndNs() const;  // of duration_s; INT64_MAX without one
  void Send(Lock* lock, int64_t intended_ns);
  void CallEnding(StreamCall* call) override;
  void CallEnded(CallRecord record) override;
  void WaitUntil(Lock* lock, int64_t wake_ns, const OnProgress& on_progress);
  void Drain(Lock* lock, const OnProgress& on_progress);
  void CountUnsent(int64_t now_ns);
  Progress CurrentProgress(int64_t now_ns) const;

  const ConnectionOptions connection_;
  LoadPlan plan_;
  const std::vector<std::unique_ptr<Stub>>& stubs_;
  const std::vector<v1::GenerateRequest>& requests_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // All below under mutex_.
  bool stop_ = false;
  std::unordered_set<StreamCall*> active_;  // may be cancelled
  uint64_t in_flight_ = 0;                  // sent and not ended; >= active_.size()
  std::optional<Arrivals> arrivals_;        // open loop
  std::optional<Workers> workers_;          // closed loop
  int64_t start_ns_ = 0;
  uint64_t sent_ = 0;
  uint64_t next_request_ = 0;  // goes on from the warm-up, so that its prompts are not repeated
  uint64_t output_tokens_ = 0;
  LoadOutcome outcome_;
};

}  // namespace normserve::client
