// SPDX-License-Identifier: Apache-2.0
// Speed of the CPU kernels. Linear walks over several copies of its matrix, 160 MiB in all, so that at
// one row the weights come from memory and not from a cache; read_bandwidth is the bound to compare
// with. Run alone on an idle machine: kernels_bench --benchmark_filter=Linear
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <benchmark/benchmark.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/ops.h"
#include "kernels/row_softmax.h"
#include "kernels/simd_target.h"
#include "kernels/thread_pool.h"

namespace normserve::kernels {
namespace {

// Plain reading of 256 MiB, as fast as the compiler's own vectors do it.
void BM_ReadBandwidth(benchmark::State& state) {
  const int64_t words = int64_t{32} << 20;
  std::vector<uint64_t> data(static_cast<size_t>(words), 1);
  ThreadPool pool(static_cast<int>(state.range(0)));
  std::atomic<uint64_t> total{0};
  const auto body = [&](int64_t begin, int64_t end) {
    uint64_t sums[32] = {};
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < 32; ++j) sums[j] += data[static_cast<size_t>(32 * i + j)];
    }
    for (const uint64_t sum : sums) total += sum;
  };
  for (auto _ : state) pool.ParallelFor(words / 32, 1 << 15, std::cref(body));
  benchmark::DoNotOptimize(total.load());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * words * 8);
}
BENCHMARK(BM_ReadBandwidth)->Arg(1)->Arg(2)->UseRealTime();

double BytesOf(const PackedWeight& weight) { return static_cast<double>(weight.panels.nbytes()); }

// Args: rows, threads.
void BM_Linear(benchmark::State& state, WeightFormat format) {
  if (format == WeightFormat::kBFloat16Dot && !HasBFloat16Dot()) {
    state.SkipWithError("this CPU has no AVX512-BF16");
    return;
  }
  const int64_t m = state.range(0), n = 8192, k = 2048;
  ThreadPool pool(static_cast<int>(state.range(1)));
  const ScopedPool scope(&pool);
  std::vector<PackedWeight> weights;
  double bytes = 0;
  while (bytes < 160 << 20) {
    weights.push_back(PackWeight(at::randn({n, k}) * 0.02, format));
    bytes += BytesOf(weights.back());
  }
  const at::Tensor x = at::randn({m, k}).to(at::kBFloat16);
  at::Tensor y = at::empty({m, n}, at::kBFloat16);
  size_t next = 0;
  for (auto _ : state) {
    Linear(x, weights[next], at::Tensor(), y);
    next = (next + 1) % weights.size();
  }
  const double calls = static_cast<double>(state.iterations());
  state.counters["weights_GB/s"] = benchmark::Counter(
      calls * BytesOf(weights[0]) * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GFLOPS"] = benchmark::Counter(calls * static_cast<double>(2 * m * n * k) * 1e-9,
                                                benchmark::Counter::kIsRate);
}
void LinearSizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgsProduct({{1, 2, 4, 8, 16, 64, 256}, {1, 2}})->UseRealTime();
}
BENCHMARK_CAPTURE(BM_Linear, bf16, WeightFormat::kBFloat16)->Apply(LinearSizes);
BENCHMARK_CAPTURE(BM_Linear, f16, WeightFormat::kFloat16)->Apply(LinearSizes);
BENCHMARK_CAPTURE(BM_Linear, bf16_dot, WeightFormat::kBFloat16Dot)->Apply(LinearSizes);
BENCHMARK_CAPTURE(BM_Linear, int8, WeightFormat::kInt8)->Apply(LinearSizes);
BENCHMARK_CAPTURE(BM_Linear, int4, WeightFormat::kInt4)->Apply(LinearSizes);

// A small model's projection: 576 x 576 from the cache. Args: rows, threads.
void BM_LinearSmall(benchmark::State& state) {
  const int64_t m = state.range(0), n = 576, k = 576;
  ThreadPool pool(static_cast<int>(state.range(1)));
  const ScopedPool scope(&pool);
  const PackedWeight weight = PackWeight(at::randn({n, k}), WeightFormat::kBFloat16);
  const at::Tensor x = at::randn({m, k}).to(at::kBFloat16);
  at::Tensor y = at::empty({m, n}, at::kBFloat16);
  for (auto _ : state) Linear(x, weight, at::Tensor(), y);
  state.counters["GFLOPS"] =
      benchmark::Counter(static_cast<double>(state.iterations() * 2 * m * n * k) * 1e-9,
                         benchmark::Counter::kIsRate);
}
BENCHMARK(BM_LinearSmall)->ArgsProduct({{1, 8, 64}, {1, 2}})->UseRealTime();

Norm MakeNorm(NormStat stat, NormPhi phi, int64_t width) {
  Norm norm;
  norm.numbers.stat = stat;
  norm.numbers.phi = phi;
  norm.numbers.eps = 1e-6f;
  norm.gamma = at::ones({width});
  return norm;
}

// Add + norm over 32 rows of 2048 bf16. Arg 0: RMSNorm, 1: BHyT first point, 2: BHyT second point.
void BM_AddNorm(benchmark::State& state) {
  const int64_t rows = 32, width = 2048;
  const NormStat stat = state.range(0) == 2 ? NormStat::kCarried : NormStat::kMeanSquare;
  const NormPhi phi = state.range(0) == 0 ? NormPhi::kIdentity : NormPhi::kTanh;
  at::Tensor h = at::randn({rows, width}).to(at::kBFloat16), y = at::empty_like(h);
  const at::Tensor delta = at::zeros_like(h);
  at::Tensor stats = at::ones({rows});
  const OptionalNorm next = MakeNorm(stat, phi, width);
  for (auto _ : state) ResidualNorm(h, delta, std::nullopt, next, stats, y);
}
BENCHMARK(BM_AddNorm)->Arg(0)->Arg(1)->Arg(2);

// Decode attention of 8 sequences, 32 heads on 8 kv heads of 64, bf16. Arg: context.
void BM_Attention(benchmark::State& state) {
  const AttentionShape shape{32, 8, 64, 32};
  const int64_t tokens = 8, context = state.range(0), per = (context + 31) / 32;
  const at::Tensor k = at::randn({tokens * per, 8, 64, 32}).to(at::kBFloat16);
  const at::Tensor v = at::randn({tokens * per, 8, 32, 64}).to(at::kBFloat16);
  const at::Tensor tables = at::arange(tokens * per, at::kInt).view({tokens, per});
  const at::Tensor qkv = at::randn({tokens, 48 * 64}).to(at::kBFloat16);
  const at::Tensor sequence = at::arange(tokens, at::kInt);
  const at::Tensor positions = at::full({tokens}, context - 1, at::kInt);
  at::Tensor out = at::empty({tokens, 32 * 64}, at::kBFloat16);
  ThreadPool pool(static_cast<int>(state.range(1)));
  const ScopedPool scope(&pool);
  for (auto _ : state) {
    PagedAttention(qkv, k, v, tables, sequence, positions, {}, {}, 0.125f, shape, out);
  }
  const double calls = static_cast<double>(state.iterations());
  state.counters["kv_GB/s"] =
      benchmark::Counter(calls * static_cast<double>(tokens * context * 8 * 64 * 2 * 2) * 1e-9,
                         benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Attention)->ArgsProduct({{128, 1024, 4096}, {1, 2}})->UseRealTime();

void BM_Activate(benchmark::State& state) {
  const at::Tensor x = at::randn({32, 2 * 4096}).to(at::kBFloat16);
  at::Tensor y = at::empty({32, 4096}, at::kBFloat16);
  OptionalNorm norm;
  if (state.range(0) != 0) norm = MakeNorm(NormStat::kMeanSquare, NormPhi::kIdentity, 4096);
  for (auto _ : state) Activate(x, Activation::kSiluGate, norm, norm, y);
}
BENCHMARK(BM_Activate)->Arg(0)->Arg(1);

// What one parallel region costs. Arg: threads.
void BM_ParallelFor(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const auto body = [](int64_t, int64_t) {};
  for (auto _ : state) pool.ParallelFor(64, 1, std::cref(body));
}
BENCHMARK(BM_ParallelFor)->Arg(1)->Arg(2)->UseRealTime();

void BM_LogSumExp(benchmark::State& state) {
  const at::Tensor row = at::randn({128256});
  const float* data = row.const_data_ptr<float>();
  const size_t n = static_cast<size_t>(row.numel());
  for (auto _ : state) benchmark::DoNotOptimize(LogSumExp(data, n, MaxOfRow(data, n).value));
}
BENCHMARK(BM_LogSumExp);

}  // namespace
}  // namespace normserve::kernels

BENCHMARK_MAIN();
