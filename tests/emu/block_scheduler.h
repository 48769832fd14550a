// SPDX-License-Identifier: Apache-2.0
// The threads of one block as fibers on one OS thread: each runs until it waits for its warp or
// its block, in one fixed order or in that order reversed. Test-only, and the one place that
// throws: a kernel that breaks the rules ends in an emu::Fault out of launch().
//
// Finds: barriers and warp collectives that do not match, shuffles from lanes that take no part or
// have exited, misaligned vectors, shared memory read before it is written (NaN), writes past its
// end. A missing barrier shows when the two orders give different bits: every test runs both.
// Cannot see: a race that both orders hide, memory ordering between blocks (they run one after
// another), anything about speed, occupancy or registers.
#pragma once

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace emu {

namespace ctx = boost::context;
constexpr int kWarpSize = 32;
constexpr size_t kMaxThreads = 1024;
constexpr size_t kMaxShared = 227 * 1024;
constexpr size_t kCanary = 256;  // bytes after shared memory that nobody may write
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStack = 256 * 1024;
#else
constexpr size_t kStack = 64 * 1024;  // per CUDA thread; its pages are touched as they are used
#endif

struct Fault : std::logic_error {
  using std::logic_error::logic_error;
};
[[noreturn]] inline void Die(const char* what) { throw Fault(std::string("emulator: ") + what); }

// What tells AddressSanitizer that the stack changes. Each side keeps one.
struct StackSwitch {
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  void Leave(const void* bottom, size_t size, bool for_good = false) {
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, bottom, size);
  }
  void Back(const void** old_bottom = nullptr, size_t* old_size = nullptr) {
    __sanitizer_finish_switch_fiber(fake, old_bottom, old_size);
  }
#else
  void Leave(const void*, size_t, bool = false) {}
  void Back(const void** = nullptr, size_t* = nullptr) {}
#endif
};

enum class Wait : uint8_t { kRun, kBlock, kWarp, kDone };

struct Thread {
  ctx::fiber self;
  StackSwitch stack;
  Wait wait = Wait::kRun;
  dim3 tid;
  int lane = 0, warp = 0;
  uint64_t slot = 0;          // value offered to a shuffle
  unsigned mask = 0, op = 0;  // participants and kind of the current warp-wide call
  int barrier = 0;            // line of the block barrier it waits at
};

struct Unwind {};  // ends a thread of a block that has failed

struct NoAlloc {  // stacks belong to Block
  ctx::stack_context allocate() { return {}; }
  void deallocate(ctx::stack_context&) {}
};

// The block that runs, and everything that outlives it. One per process; used by one OS thread.
class Block {
 public:
  dim3 grid, block, bid;
  Thread* cur = nullptr;
  bool reversed = false;
  uint64_t launches = 0;  // since the process began

  void* shared() { return shared_.get(); }
  Thread& lane(int warp, int index) {
    return threads_[static_cast<size_t>(warp) * kWarpSize + static_cast<size_t>(index)];
  }
  // Lanes of this warp that exist: the last warp of a block may be short.
  unsigned LiveLanes(int warp) const {
    const size_t live = threads_.size() - static_cast<size_t>(warp) * kWarpSize;
    return live < kWarpSize ? (1u << live) - 1u : ~0u;
  }

  void Launch(dim3 grid_dim, dim3 block_dim, size_t shared_bytes, std::function<void()> body) {
    const size_t n = size_t{block_dim.x} * block_dim.y * block_dim.z;
    const uint64_t blocks = uint64_t{grid_dim.x} * grid_dim.y * grid_dim.z;
    if (n == 0 || n > kMaxThreads || shared_bytes > kMaxShared || blocks == 0 ||
        grid_dim.x > 0x7fffffffu || grid_dim.y > 65535 || grid_dim.z > 65535) {
      Die("launch configuration out of range");
    }
    ++launches;
    grid = grid_dim;
    block = block_dim;
    body_ = std::move(body);
    for (uint64_t i = 0; i < blocks; ++i) {
      const uint64_t b = reversed ? blocks - 1 - i : i;
      bid = dim3(static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                 static_cast<unsigned>(b / (uint64_t{grid.x} * grid.y)));
      PrepareShared(shared_bytes);
      PrepareThreads(n);
      try {
        Run();
      } catch (...) {
        UnwindAll();
        throw;
      }
      CheckCanary(shared_bytes);
    }
  }

  // Called on the fiber of `cur`.
  void Suspend(Wait wait) {
    Thread& me = *cur;
    me.wait = wait;
    me.stack.Leave(scheduler_bottom_, scheduler_size_);
    scheduler_ = std::move(scheduler_).resume();
    me.stack.Back();
    if (unwinding_) throw Unwind{};
  }

 private:
  void PrepareShared(size_t bytes) {
    if (shared_size_ < bytes + kCanary) {
      shared_size_ = bytes + kCanary;
      shared_.reset(new std::max_align_t[shared_size_ / sizeof(std::max_align_t) + 1]);
    }
    std::memset(shared_.get(), 0xff, bytes + kCanary);  // NaN: what was never written shows
  }

  void CheckCanary(size_t bytes) const {
    const auto* end = reinterpret_cast<const unsigned char*>(shared_.get()) + bytes;
    if (!std::all_of(end, end + kCanary, [](unsigned char c) { return c == 0xff; })) {
      Die("shared memory was written past its end");
    }
  }

  char* Stack(size_t thread) { return stacks_.get() + thread * kStack; }

  void PrepareThreads(size_t n) {
    if (stack_count_ < n) stacks_.reset(new char[(stack_count_ = n) * kStack]);
    threads_.clear();
    threads_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      Thread& t = threads_[i];
      const unsigned at = static_cast<unsigned>(i);
      t.tid = dim3(at % block.x, at / block.x % block.y, at / (block.x * block.y));
      t.lane = static_cast<int>(i % kWarpSize);
      t.warp = static_cast<int>(i / kWarpSize);
      ctx::stack_context stack;
      stack.size = kStack;
      stack.sp = Stack(i) + kStack;
      t.self = ctx::fiber(std::allocator_arg, ctx::preallocated(stack.sp, kStack, stack), NoAlloc{},
                          [this](ctx::fiber&& from) { return ThreadMain(std::move(from)); });
    }
  }

  ctx::fiber ThreadMain(ctx::fiber&& from) {
    Thread& me = *cur;
    me.stack.Back(&scheduler_bottom_, &scheduler_size_);
    scheduler_ = std::move(from);
    try {
      if (!unwinding_) body_();
    } catch (const Unwind&) {
      // The block's fault is already on its way.
    } catch (...) {
      error_ = std::current_exception();
    }
    me.wait = Wait::kDone;
    me.stack.Leave(scheduler_bottom_, scheduler_size_, true);
    return std::move(scheduler_);
  }

  void Resume(size_t thread) {
    cur = &threads_[thread];
    StackSwitch own;
    own.Leave(Stack(thread), kStack);
    cur->self = std::move(cur->self).resume();
    own.Back();
  }

  // A fault leaves threads in the middle of the kernel: each is resumed once more, to leave it.
  void UnwindAll() {
    unwinding_ = true;
    for (size_t i = 0; i < threads_.size(); ++i) {
      if (threads_[i].wait != Wait::kDone) Resume(i);
    }
    unwinding_ = false;
    error_ = nullptr;
  }

  // Whether every lane that the call of thread i names has arrived at the same call.
  bool CollectiveComplete(size_t i, size_t first, size_t end) const {
    const Thread& caller = threads_[i];
    bool complete = true;
    for (size_t j = first; j < end; ++j) {
      if (((caller.mask >> (j - first)) & 1u) == 0) continue;
      const Thread& other = threads_[j];
      if (other.wait == Wait::kDone) Die("a lane named in a warp mask has exited");
      if (other.wait == Wait::kWarp && (other.op != caller.op || other.mask != caller.mask)) {
        Die("divergent warp collective");
      }
      complete &= other.wait == Wait::kWarp;
    }
    return complete;
  }

  // Completes the warp collectives for which everybody is there; whether any was.
  bool ReleaseCollectives(size_t first, size_t end) {
    bool released = false;
    for (size_t i = first; i < end; ++i) {
      if (threads_[i].wait != Wait::kWarp || !CollectiveComplete(i, first, end)) continue;
      const unsigned mask = threads_[i].mask;
      for (size_t j = first; j < end; ++j) {
        if ((mask >> (j - first)) & 1u) threads_[j].wait = Wait::kRun;
      }
      released = true;
    }
    return released;
  }

  // Lets every lane of [first, end) run to its next block barrier; whether any could run.
  bool RunWarp(size_t first, size_t end) {
    bool progressed = false;
    do {
      for (size_t k = first; k < end; ++k) {
        const size_t i = reversed ? first + end - 1 - k : k;
        if (threads_[i].wait != Wait::kRun) continue;
        Resume(i);
        if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
        progressed = true;
      }
    } while (ReleaseCollectives(first, end));
    return progressed;
  }

  void Run() {
    const size_t n = threads_.size(), warps = (n + kWarpSize - 1) / kWarpSize;
    for (;;) {
      bool progressed = false;
      for (size_t k = 0; k < warps; ++k) {
        const size_t first = (reversed ? warps - 1 - k : k) * kWarpSize;
        progressed |= RunWarp(first, std::min(n, first + kWarpSize));
      }
      size_t done = 0, at_barrier = 0;
      for (const Thread& t : threads_) {
        done += t.wait == Wait::kDone;
        at_barrier += t.wait == Wait::kBlock;
      }
      if (done == n) return;
      if (done + at_barrier < n) {
        if (!progressed) Die("deadlock: barriers do not match");
        continue;
      }
      // Hardware lets a barrier pass when the others have exited; the language does not promise it.
      if (done > 0) Die("a thread exited while others wait at a block barrier");
      for (Thread& t : threads_) {
        if (t.barrier != threads_[0].barrier) Die("different block barriers meet");
        t.wait = Wait::kRun;
      }
    }
  }

  std::vector<Thread> threads_;
  std::unique_ptr<char[]> stacks_;
  size_t stack_count_ = 0;
  std::unique_ptr<std::max_align_t[]> shared_;
  size_t shared_size_ = 0;
  std::function<void()> body_;
  ctx::fiber scheduler_;
  const void* scheduler_bottom_ = nullptr;
  size_t scheduler_size_ = 0;
  std::exception_ptr error_;
  bool unwinding_ = false;
};

inline Block& Current() {
  static Block block;
  return block;
}

// Every block, warp and lane in the opposite order: what depends on order then gives other bits.
inline void SetReversed(bool reversed) { Current().reversed = reversed; }

inline void BlockBarrier(int line) {
  Current().cur->barrier = line;
  Current().Suspend(Wait::kBlock);
}

// An address that a vector load or store of `bytes` takes; hardware faults on any other.
inline void CheckAligned(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) Die("misaligned vector access");
}

// A value exchange is two warp barriers: publish, then read before anyone publishes again.
template <class T, class F>
T Exchange(unsigned mask, T value, unsigned kind, const F& source_of) {
  static_assert(sizeof(T) <= 8);
  Block& b = Current();
  Thread& me = *b.cur;
  mask &= b.LiveLanes(me.warp);
  if (((mask >> me.lane) & 1u) == 0) Die("the calling lane is not in its own mask");
  std::memcpy(&me.slot, &value, sizeof(T));
  me.mask = mask;
  me.op = kind * 2;
  b.Suspend(Wait::kWarp);
  const int source = source_of(me.lane);
  T result = value;
  if (source >= 0 && source < kWarpSize) {
    if (((mask >> source) & 1u) == 0) Die("a shuffle reads a lane outside its mask");
    std::memcpy(&result, &b.lane(me.warp, source).slot, sizeof(T));
  }
  me.op = kind * 2 + 1;
  b.Suspend(Wait::kWarp);
  return result;
}

}  // namespace emu
