// SPDX-License-Identifier: Apache-2.0
// The compute threads of one engine: a fixed set that spins for microseconds, then sleeps, so that an
// idle server costs nothing and a busy machine is not fought over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace normserve::kernels {

// Owned by main, one per engine; used by that engine's thread only (calls must not nest or overlap).
class ThreadPool {
 public:
  // `threads` >= 1 counts the calling thread: ThreadPool(1) starts none. Thread i stays on cpus[i % size], the calling
  // one from PinCaller on; with no `cpus`, and where a CPU is refused, the system places threads.
  explicit ThreadPool(int threads, std::vector<int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Called once by the thread that calls ParallelFor.
  void PinCaller();

  // Runs body(begin, end) over [0, count) split into chunks that are multiples of `grain` but towards the
  // end, on all threads, and returns when all are done. How work is split never changes a result.
  void ParallelFor(int64_t count, int64_t grain,
                   const std::function<void(int64_t begin, int64_t end)>& body);

  // Working memory of the kernel that runs now, at least `floats` long and 64-byte aligned. Kept
  // between calls and only ever grown; its contents last until the next call of Scratch.
  float* Scratch(size_t floats);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The pool that CPU kernels called from this thread use; without one they run on the calling thread.
// The dispatcher's signatures have no place for a pool, hence this one thread-local (docs/adr).
class ScopedPool {
 public:
  explicit ScopedPool(ThreadPool* pool);
  ~ScopedPool();
  ScopedPool(const ScopedPool&) = delete;
  ScopedPool& operator=(const ScopedPool&) = delete;

 private:
  ThreadPool* previous_;
};
ThreadPool* CurrentPool();

}  // namespace normserve::kernels
