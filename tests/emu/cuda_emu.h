// SPDX-License-Identifier: Apache-2.0
// Test-only CPU emulation of the small CUDA subset used by our kernels.
// One OS thread; the threads of a block are boost.context fibers run round-robin between
// synchronisation points.  Compile the .cu with: g++ -x c++ -DCUDA_EMU -include cuda_emu.h
#pragma once
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
// Blocks run one after another on one OS thread, so a function-local static is exactly "one per block".
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct __attribute__((may_alias, aligned(16))) uint4 { uint32_t x, y, z, w; };
struct __attribute__((may_alias, aligned(8))) uint2 { uint32_t x, y; };
struct __attribute__((may_alias, aligned(16))) float4 { float x, y, z, w; };
struct __attribute__((may_alias, aligned(8))) float2 { float x, y; };

using cudaStream_t = struct CUstream_st*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

// ---- 16-bit floats -------------------------------------------------------------------------
struct __nv_bfloat16 {
  uint16_t u;
  __nv_bfloat16() = default;
  __nv_bfloat16(float f) {
    uint32_t b;
    std::memcpy(&b, &f, 4);
    u = (b & 0x7fffffffu) > 0x7f800000u ? 0x7fff : uint16_t((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
  }
  operator float() const {
    uint32_t b = uint32_t(u) << 16;
    float f;
    std::memcpy(&f, &b, 4);
    return f;
  }
};
struct __half {
  _Float16 h;
  __half() = default;
  __half(float f) : h(_Float16(f)) {}
  operator float() const { return float(h); }
};
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
struct alignas(4) __half2 { __half x, y; };
inline float __bfloat162float(__nv_bfloat16 v) { return v; }
inline __nv_bfloat16 __float2bfloat16(float v) { return v; }
inline float __half2float(__half v) { return v; }
inline __half __float2half(float v) { return v; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
inline float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }

// ---- math, memory ---------------------------------------------------------------------------
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fmul_rn(float a, float b) { return a * b; }  // built with -ffp-contract=off
inline float __fadd_rn(float a, float b) { return a + b; }
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T atomicAdd(T* p, T v) { T o = *p; *p = o + v; return o; }
template <class T> inline T atomicMax(T* p, T v) { T o = *p; *p = o > v ? o : v; return o; }

// ---- block scheduler ------------------------------------------------------------------------
namespace emu {
namespace ctx = boost::context;
constexpr int kWarpSize = 32;
constexpr size_t kStack = 64 * 1024;  // per CUDA thread; pages are touched lazily

enum class Wait : uint8_t { kRun, kBlock, kWarp, kDone };
struct Thread {
  ctx::fiber self;
  Wait wait = Wait::kRun;
  dim3 tid;
  int lane = 0, warp = 0;
  uint64_t slot = 0;               // value offered to a shuffle
  unsigned mask = 0, op = 0;       // participants and kind of the current warp-wide call
};
struct Block {
  std::vector<Thread> threads;
  std::unique_ptr<char[]> stacks;
  size_t stack_count = 0;
  std::vector<std::max_align_t> smem;
  dim3 grid, block, bid;
  ctx::fiber scheduler;
  Thread* cur = nullptr;
  std::function<void()> body;
  std::exception_ptr error;
};
inline Block& blk() { static Block b; return b; }
struct NoAlloc {  // stacks belong to Block
  ctx::stack_context allocate() { return {}; }
  void deallocate(ctx::stack_context&) {}
};
[[noreturn]] inline void die(const char* what) { throw std::logic_error(std::string("cuda_emu: ") + what); }

inline void suspend(Wait w) {
  Block& b = blk();
  b.cur->wait = w;
  b.scheduler = std::move(b.scheduler).resume();
}
inline ctx::fiber thread_main(ctx::fiber&& from) {
  Block& b = blk();
  b.scheduler = std::move(from);
  try {
    b.body();
  } catch (const ctx::detail::forced_unwind&) {
    throw;
  } catch (...) {
    b.error = std::current_exception();
  }
  b.cur->wait = Wait::kDone;
  return std::move(b.scheduler);
}
// Lets every lane of [w, end) run up to its next block barrier; completes warp collectives on the way.
inline bool run_warp(size_t w, size_t end) {
  Block& b = blk();
  bool progressed = false;
  for (bool again = true; again;) {
    again = false;
    for (size_t i = w; i < end; ++i) {
      if (b.threads[i].wait != Wait::kRun) continue;
      b.cur = &b.threads[i];
      b.cur->self = std::move(b.cur->self).resume();
      if (b.error) std::rethrow_exception(std::exchange(b.error, nullptr));
      progressed = true;
    }
    for (size_t i = w; i < end; ++i) {
      Thread& f = b.threads[i];
      if (f.wait != Wait::kWarp) continue;
      bool all = true;
      for (size_t j = w; j < end; ++j) {
        if (!((f.mask >> (j - w)) & 1u)) continue;
        Thread& g = b.threads[j];
        if (g.wait == Wait::kDone) die("a lane named in a warp mask has exited");
        if (g.wait == Wait::kWarp && (g.op != f.op || g.mask != f.mask)) die("divergent warp collective");
        all &= g.wait == Wait::kWarp;
      }
      if (!all) continue;
      for (size_t j = w; j < end; ++j)
        if ((f.mask >> (j - w)) & 1u) b.threads[j].wait = Wait::kRun;
      again = true;
    }
  }
  return progressed;
}
inline void run_block() {
  Block& b = blk();
  const size_t n = b.threads.size();
  for (size_t i = 0; i < n; ++i) {
    Thread& f = b.threads[i];
    f.wait = Wait::kRun;
    f.tid = dim3(i % b.block.x, (i / b.block.x) % b.block.y, i / (size_t(b.block.x) * b.block.y));
    f.lane = int(i % kWarpSize);
    f.warp = int(i / kWarpSize);
    ctx::stack_context sc;
    sc.size = kStack;
    sc.sp = b.stacks.get() + (i + 1) * kStack;
    f.self = ctx::fiber(std::allocator_arg, ctx::preallocated(sc.sp, sc.size, sc), NoAlloc{}, thread_main);
  }
  for (;;) {
    bool progressed = false;
    for (size_t w = 0; w < n; w += kWarpSize) progressed |= run_warp(w, std::min(n, w + kWarpSize));
    size_t done = 0, at_block = 0;
    for (Thread& f : b.threads) done += f.wait == Wait::kDone, at_block += f.wait == Wait::kBlock;
    if (done == n) return;
    if (done + at_block == n)  // as on sm_70+: exited threads do not count
      for (Thread& f : b.threads) f.wait = f.wait == Wait::kDone ? Wait::kDone : Wait::kRun;
    else if (!progressed)
      die("deadlock: barriers do not match");
  }
}
// A value exchange is two warp barriers: publish, then read before anyone publishes again.
template <class T, class F>
inline T exchange(unsigned mask, T v, unsigned kind, F src_lane) {
  static_assert(sizeof(T) <= 8);
  Block& b = blk();
  Thread& me = *b.cur;
  const size_t first = size_t(me.warp) * kWarpSize, live = std::min<size_t>(kWarpSize, b.threads.size() - first);
  if (live < kWarpSize) mask &= (1u << live) - 1u;  // partial last warp
  if (!((mask >> me.lane) & 1u)) die("calling lane is not in its own mask");
  std::memcpy(&me.slot, &v, sizeof(T));
  me.mask = mask;
  me.op = kind * 2;
  suspend(Wait::kWarp);
  const int src = src_lane(me.lane);
  T r = v;
  if (src >= 0 && src < kWarpSize) {
    if (!((mask >> src) & 1u)) die("shuffle reads a lane outside its mask");
    std::memcpy(&r, &b.threads[first + src].slot, sizeof(T));
  }
  me.op = kind * 2 + 1;
  suspend(Wait::kWarp);
  return r;
}
}  // namespace emu

#define threadIdx (::emu::blk().cur->tid)
#define blockIdx (::emu::blk().bid)
#define blockDim (::emu::blk().block)
#define gridDim (::emu::blk().grid)
inline void __syncthreads() { emu::suspend(emu::Wait::kBlock); }
inline void __syncwarp(unsigned m = ~0u) { emu::exchange(m, 0, 1, [](int l) { return l; }); }
template <class T> inline T __shfl_xor_sync(unsigned m, T v, int x, int width = 32) {
  return emu::exchange(m, v, 2, [=](int l) { int s = l ^ x; return s / width == l / width ? s : l; });
}
template <class T> inline T __shfl_down_sync(unsigned m, T v, unsigned d, int width = 32) {
  return emu::exchange(m, v, 3, [=](int l) { int s = l + int(d); return s / width == l / width ? s : l; });
}
template <class T> inline T __shfl_sync(unsigned m, T v, int src, int width = 32) {
  return emu::exchange(m, v, 4, [=](int l) { return l / width * width + src % width; });
}
// ---- spellings shared with the nvcc side (gpu.h) ----------------------------------------------
#define DYN_SHARED(T, name) T* name = static_cast<T*>(static_cast<void*>(::emu::blk().smem.data()))
template <class... P, class... A>
inline void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, cudaStream_t, A&&... args) {
  emu::Block& b = emu::blk();
  const size_t n = size_t(block.x) * block.y * block.z;
  if (n == 0 || n > 1024 || smem > 227 * 1024) emu::die("launch configuration out of range");
  b.threads.clear();
  b.threads.resize(n);
  if (b.stack_count < n) b.stacks.reset(new char[(b.stack_count = n) * emu::kStack]);
  b.grid = grid;
  b.block = block;
  b.body = [&] { kernel(static_cast<P>(args)...); };
  for (unsigned i = 0; i < grid.x * grid.y * grid.z; ++i) {
    b.bid = dim3(i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y));
    b.smem.resize(smem / sizeof(std::max_align_t) + 1);
    std::memset(b.smem.data(), 0xFF, smem);  // NaN: reading unwritten shared memory shows up
    emu::run_block();
  }
}
