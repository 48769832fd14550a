// SPDX-License-Identifier: Apache-2.0
// See thread_pool.h. Workers wait passively: some 50 microseconds of spinning, then a condition
// variable. OpenMP's pool is not used anywhere, since its spinning threads starve a busy machine.
#include "kernels/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/large_mapping.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace normserve::kernels {
namespace {

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// About 50 us on the machines at hand: longer than one thread waits for another at the end of a kernel (waking a thread
// that sleeps costs as much), shorter than anything a user could notice.
constexpr int kSpins = 3000;
// A thread takes this part of its share of what is left, down to one grain, and of the last grains a share: few chunks,
// and the last ones even out what uneven rows (causal attention) leave.
constexpr int64_t kPartsPerThread = 2;

thread_local ThreadPool* current_pool = nullptr;

}  // namespace

// The state word: generation in the high half, then whether that generation still takes workers, then
// how many are inside. A worker that the system wakes late finds the door shut and is not waited for.
struct ThreadPool::State {
  static constexpr uint64_t kGeneration = uint64_t{1} << 32;
  static constexpr uint64_t kOpen = uint64_t{1} << 31;

  std::vector<std::thread> workers;
  std::vector<int> cpus;  // fixed before the workers start

  // The task of the open generation: written before the word, read by workers that entered it.
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  int64_t count = 0;
  int64_t grain = 0;
  std::atomic<int64_t> next{0};

  std::atomic<uint64_t> word{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable wake;  // a new generation, or stop
  std::condition_variable done;  // nobody is inside
  int sleepers = 0;              // workers inside wake.wait; under mutex

  std::unique_ptr<LargeMapping> scratch;
  size_t scratch_floats = 0;

  // Here, not in ~ThreadPool: the system may refuse a thread in the middle of the constructor.
  ~State() {
    stop.store(true);
    Open();
    for (std::thread& worker : workers) worker.join();
  }

  static uint64_t Generation(uint64_t word) { return word / kGeneration; }
  static bool Idle(uint64_t word) { return word % kOpen == 0; }

  void Drain() {
    const int64_t threads = static_cast<int64_t>(workers.size()) + 1, parts = kPartsPerThread * threads;
    int64_t begin = next.load(std::memory_order_relaxed);
    while (begin < count) {
      const int64_t left = count - begin, grains = left / (grain * parts);
      // Where less than a grain is left for each: in equal parts, so that nobody has a whole one while others have none.
      const int64_t some = grains > 0 ? grains * grain : std::min(grain, (left + threads - 1) / threads);
      const int64_t end = std::min(begin + some, count);
      if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      (*body)(begin, end);
      begin = next.load(std::memory_order_relaxed);
    }
  }

  // Waits for a generation other than `seen` and returns it.
  uint64_t AwaitGeneration(uint64_t seen) {
    for (int i = 0; i < kSpins; ++i) {
      const uint64_t now = Generation(word.load(std::memory_order_acquire));
      if (now != seen) return now;
      Pause();
    }
    std::unique_lock<std::mutex> lock(mutex);
    ++sleepers;
    wake.wait(lock, [&] { return Generation(word.load(std::memory_order_acquire)) != seen; });
    --sleepers;
    return Generation(word.load(std::memory_order_acquire));
  }

  bool Enter(uint64_t generation) {
    uint64_t now = word.load(std::memory_order_acquire);
    while (Generation(now) == generation && (now & kOpen) != 0) {
      if (word.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  void Leave() {
    const uint64_t now = word.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if ((now & kOpen) == 0 && Idle(now)) {
      // The lock orders this with the caller's check before it sleeps.
      std::lock_guard<std::mutex> lock(mutex);
      done.notify_one();
    }
  }

  void Work() {
    uint64_t seen = 0;
    for (;;) {
      seen = AwaitGeneration(seen);
      if (stop.load()) return;
      if (!Enter(seen)) continue;
      Drain();
      Leave();
    }
  }

  // The calling thread is thread `index`. Refused where the CPU was taken away from the process meanwhile: it then runs
  // where the system puts it.
  void Pin(size_t index) const {
    if (cpus.empty()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpus[index % cpus.size()]), &set);
    sched_setaffinity(0, sizeof(set), &set);
  }

  // Nobody is inside when this is called.
  void Open() {
    bool sleeping;
    {
      std::lock_guard<std::mutex> lock(mutex);
      const uint64_t generation = Generation(word.load(std::memory_order_relaxed)) + 1;
      word.store(generation * kGeneration + kOpen, std::memory_order_release);
      sleeping = sleepers > 0;
    }
    if (sleeping) wake.notify_all();
  }

  void CloseAndAwait() {
    word.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int i = 0; i < kSpins; ++i) {
      if (Idle(word.load(std::memory_order_acquire))) return;
      Pause();
    }
    std::unique_lock<std::mutex> lock(mutex);
    done.wait(lock, [&] { return Idle(word.load(std::memory_order_acquire)); });
  }
};

ThreadPool::ThreadPool(int threads, std::vector<int> cpus) : state_(std::make_unique<State>()) {
  state_->cpus = std::move(cpus);
  for (int i = 1; i < threads; ++i) {
    state_->workers.emplace_back([state = state_.get(), i] {
      state->Pin(static_cast<size_t>(i));
      state->Work();
    });
  }
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::PinCaller() { state_->Pin(0); }

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::ParallelFor(int64_t count, int64_t grain,
                             const std::function<void(int64_t begin, int64_t end)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (state_->workers.empty() || count <= grain) return body(0, count);
  state_->body = &body;
  state_->count = count;
  state_->grain = grain;
  state_->next.store(0, std::memory_order_relaxed);
  state_->Open();
  state_->Drain();
  state_->CloseAndAwait();
}

float* ThreadPool::Scratch(size_t floats) {
  if (floats > state_->scratch_floats) {
    state_->scratch = nullptr;
    state_->scratch_floats = 0;
    state_->scratch = std::make_unique<LargeMapping>(floats * sizeof(float));
    state_->scratch_floats = floats;
  }
  return state_->scratch ? reinterpret_cast<float*>(state_->scratch->begin()) : nullptr;
}

ScopedPool::ScopedPool(ThreadPool* pool) : previous_(current_pool) { current_pool = pool; }
ScopedPool::~ScopedPool() { current_pool = previous_; }
ThreadPool* CurrentPool() { return current_pool; }

}  // namespace normserve::kernels
