// SPDX-License-Identifier: Apache-2.0
// The emulator finds what it says it finds: each fault is planted in a kernel of its own.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "emu/emu_rows.h"
#include "kernels/device.cuh"

namespace normserve::kernels {
namespace {

constexpr int kThreads = 64;

// The message of the fault that the launch ends in, "" if none.
template <class Kernel, class... A>
std::string FaultOf(Kernel kernel, size_t shared_bytes, A... args) {
  try {
    launch(kernel, dim3(1), dim3(kThreads), shared_bytes, nullptr, args...);
  } catch (const emu::Fault& fault) {
    return fault.what();
  }
  return "";
}

// What the kernel leaves in out[0..kThreads) with the threads in one order or the other.
template <class Kernel>
std::vector<float> Outputs(Kernel kernel, bool reversed) {
  std::vector<float> out(kThreads, -1.0f);
  const OrderScope order(reversed);
  launch(kernel, dim3(1), dim3(kThreads), kThreads * sizeof(float), nullptr, out.data());
  return out;
}

template <bool kBarrier>
__global__ void BlockSum(float* out) {
  DYN_SHARED(float, parts);
  const float v = WarpSum(static_cast<float>(threadIdx.x));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = parts[0] + parts[1];
}

TEST(Emulator, RunsACorrectKernelInEitherOrder) {
  const std::vector<float> want(kThreads, 63.0f * 64.0f / 2.0f);
  EXPECT_EQ(Outputs(BlockSum<true>, false), want);
  EXPECT_EQ(Outputs(BlockSum<true>, true), want);
}

TEST(Emulator, MissingBarrierReadsNaN) {
  const std::vector<float> forward = Outputs(BlockSum<false>, false);
  const std::vector<float> reversed = Outputs(BlockSum<false>, true);
  EXPECT_TRUE(std::isnan(forward[0]));
  EXPECT_TRUE(std::isnan(reversed[kThreads - 1]));
  EXPECT_FALSE(SameBits(forward, reversed));
}

// A second reduction that overwrites the buffer of the first before everybody has read it.
__global__ void BufferUsedTwice(float* out) {
  DYN_SHARED(float, parts);
  float sum = 0.0f;
  for (int turn = 1; turn <= 2; ++turn) {
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = static_cast<float>(turn);
    __syncthreads();
    sum = 10.0f * sum + parts[0] + parts[1];
  }
  out[threadIdx.x] = sum;
}

TEST(Emulator, MissingSecondBarrierDependsOnTheOrder) {
  EXPECT_FALSE(SameBits(Outputs(BufferUsedTwice, false), Outputs(BufferUsedTwice, true)));
}

__global__ void LastWriterWins(float* out) {
  DYN_SHARED(float, cell);
  cell[0] = static_cast<float>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = cell[0];
}

TEST(Emulator, RaceDependsOnTheOrder) {
  EXPECT_FALSE(SameBits(Outputs(LastWriterWins, false), Outputs(LastWriterWins, true)));
}

__global__ void BlocksRace(float* out) { out[0] = static_cast<float>(blockIdx.x); }

TEST(Emulator, RaceOfBlocksDependsOnTheOrder) {
  float forward = 0.0f, reversed = 0.0f;
  launch(BlocksRace, dim3(3), dim3(1), 0, nullptr, &forward);
  const OrderScope order(true);
  launch(BlocksRace, dim3(3), dim3(1), 0, nullptr, &reversed);
  EXPECT_NE(forward, reversed);
}

template <int kExtra>
__global__ void Fill(float* row, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n + kExtra; i += kThreads) row[i] = 1.0f;
}

TEST(Emulator, TailOffByOneBreaksTheBand) {
  for (const int width : {1, 63, 64, 65}) {
    Matrix<float> right(1, width, Layout::kStrided), wrong(1, width, Layout::kStrided);
    EXPECT_EQ(FaultOf(Fill<0>, 0, right.row(0), width), "");
    EXPECT_EQ(FaultOf(Fill<1>, 0, wrong.row(0), width), "");
    EXPECT_TRUE(right.BandIntact());
    EXPECT_FALSE(wrong.BandIntact());
  }
}

__global__ void BarrierOfHalf(float*) {
  if (threadIdx.x < kThreads / 2) __syncthreads();
}
__global__ void DifferentBarriers(float*) {
  if (threadIdx.x < kThreads / 2) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void BarrierAgainstShuffle(float* out) {
  if (threadIdx.x == 0) {
    __syncthreads();
  } else {
    out[threadIdx.x] = WarpSum(1.0f);
  }
}

TEST(Emulator, DivergentBarrier) {
  std::vector<float> out(kThreads);
  for (const bool reversed : {false, true}) {
    const OrderScope order(reversed);
    EXPECT_NE(FaultOf(BarrierOfHalf, 0, out.data()).find("exited"), std::string::npos);
    EXPECT_NE(FaultOf(DifferentBarriers, 0, out.data()).find("different"), std::string::npos);
    EXPECT_NE(FaultOf(BarrierAgainstShuffle, 0, out.data()), "");
  }
}

__global__ void ShuffleAfterExit(float* out) {
  if (threadIdx.x == 5) return;
  out[threadIdx.x] = WarpSum(1.0f);
}
__global__ void ShuffleOutsideMask(float* out) {
  if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, 16);
}
__global__ void DifferentShuffles(float* out) {
  out[threadIdx.x] = threadIdx.x % 2 == 0 ? __shfl_xor_sync(kAllLanes, 1.0f, 1)
                                          : __shfl_down_sync(kAllLanes, 1.0f, 1);
}

TEST(Emulator, DivergentShuffle) {
  std::vector<float> out(kThreads);
  EXPECT_NE(FaultOf(ShuffleAfterExit, 0, out.data()), "");
  EXPECT_NE(FaultOf(ShuffleOutsideMask, 0, out.data()), "");
  EXPECT_NE(FaultOf(DifferentShuffles, 0, out.data()), "");
}

__global__ void LoadPacks(const float* x, float* out) {
  Pack<float> pack;
  pack.raw = LoadPack(x + kPackWidth<float> * threadIdx.x);
  StorePack(out + kPackWidth<float> * threadIdx.x, pack.raw);
}

TEST(Emulator, MisalignedVector) {
  const std::vector<float> x(4 * kThreads + 4, 2.0f);
  std::vector<float> out(4 * kThreads + 4, 0.0f);
  EXPECT_EQ(FaultOf(LoadPacks, 0, x.data(), out.data()), "");
  EXPECT_EQ(out[4 * kThreads - 1], 2.0f);
  EXPECT_NE(FaultOf(LoadPacks, 0, x.data() + 1, out.data()).find("misaligned"), std::string::npos);
  EXPECT_NE(FaultOf(LoadPacks, 0, x.data(), out.data() + 2).find("misaligned"), std::string::npos);
}

__global__ void WritePastShared(float*) {
  DYN_SHARED(float, parts);
  parts[threadIdx.x] = 0.0f;
}

TEST(Emulator, SharedMemoryTooSmall) {
  float* none = nullptr;
  EXPECT_EQ(FaultOf(WritePastShared, kThreads * sizeof(float), none), "");
  EXPECT_NE(FaultOf(WritePastShared, (kThreads - 1) * sizeof(float), none), "");
}

TEST(Emulator, LaunchOutOfRange) {
  float* none = nullptr;
  EXPECT_NE(FaultOf(WritePastShared, 228 * 1024, none), "");
  EXPECT_THROW(launch(WritePastShared, dim3(1), dim3(1025), 8192, nullptr, none), emu::Fault);
  EXPECT_THROW(launch(WritePastShared, dim3(0), dim3(1), 8192, nullptr, none), emu::Fault);
}

__global__ void LanesExchange(float* out) {
  const float lane = static_cast<float>(threadIdx.x % 32);
  const float up = __shfl_up_sync(kAllLanes, lane, 1), down = __shfl_down_sync(kAllLanes, lane, 1);
  const float third = __shfl_sync(kAllLanes, lane, 3);
  const unsigned odd = __ballot_sync(kAllLanes, threadIdx.x % 2);
  out[threadIdx.x] = up + 100.0f * down + 1e4f * third + (odd == 0xaaaaaaaau ? 0.5f : 0.0f);
}

TEST(Emulator, ShufflesMoveWhatTheySay) {
  for (const bool reversed : {false, true}) {
    const std::vector<float> out = Outputs(LanesExchange, reversed);
    EXPECT_EQ(out[0], 0.0f + 100.0f + 30000.5f);  // the first lane keeps its own
    EXPECT_EQ(out[40], 7.0f + 900.0f + 30000.5f);
    EXPECT_EQ(out[63], 30.0f + 3100.0f + 30000.5f);
  }
}

TEST(Emulator, SixteenBitsRoundToEven) {
  EXPECT_EQ(float(__nv_bfloat16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(float(__nv_bfloat16(1.0f + 0x3p-8f)), 1.0f + 0x1p-6f);
  EXPECT_TRUE(std::isinf(float(__nv_bfloat16(3.4e38f))));
  EXPECT_TRUE(std::isnan(float(__nv_bfloat16(NAN))));
  EXPECT_EQ(float(__half(1.0f + 0x1p-11f)), 1.0f);
  EXPECT_EQ(float(__half(1.0f + 0x3p-11f)), 1.0f + 0x1p-9f);
  EXPECT_EQ(float(__half(65504.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(float(__half(65520.0f))));
  EXPECT_EQ(float(__half(0x1p-24f)), 0x1p-24f);
}

}  // namespace
}  // namespace normserve::kernels
