// SPDX-License-Identifier: Apache-2.0
// What the machine can do at most: bytes read from memory per second, and float32 multiply-adds per
// second, with N threads. Prints one JSON object. Built by limits.py with the host's best instructions.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#ifdef __AVX512F__
constexpr int kVectorBytes = 64;
#else
constexpr int kVectorBytes = 32;
#endif
typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef uint64_t Words __attribute__((vector_size(kVectorBytes)));

volatile uint64_t sink;

// Seconds of the fastest of several times that all threads run work(thread).
double Fastest(int threads, int repetitions, const std::function<void(int)>& work) {
  double best = 1e30;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> running;
    for (int thread = 1; thread < threads; ++thread) running.emplace_back(work, thread);
    work(0);
    for (std::thread& thread : running) thread.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return best;
}

void Read(const Words* from, size_t count) {
  Words a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    // Two KiB ahead, one prefetch per cache line.
    for (int line = 0; line < 8; line += 64 / kVectorBytes) __builtin_prefetch(from + i + 64 + line);
    a += from[i], b += from[i + 1], c += from[i + 2], d += from[i + 3];
    e += from[i + 4], f += from[i + 5], g += from[i + 6], h += from[i + 7];
  }
  sink = (a + b + c + d + e + f + g + h)[0];
}

// Ten sums that do not wait for each other: enough for two units of four or five cycles.
void MultiplyAdd(int64_t rounds) {
  Floats x, y;
  for (int lane = 0; lane < kVectorBytes / 4; ++lane) x[lane] = 0.999f, y[lane] = 0.001f;
  Floats a = y, b = y, c = y, d = y, e = y, f = y, g = y, h = y, i = y, j = y;
  for (int64_t round = 0; round < rounds; ++round) {
    a = a * x + y, b = b * x + y, c = c * x + y, d = d * x + y, e = e * x + y;
    f = f * x + y, g = g * x + y, h = h * x + y, i = i * x + y, j = j * x + y;
    // Each sum is as if used here: the loop stays as it is written.
    asm volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e));
    asm volatile("" : "+x"(f), "+x"(g), "+x"(h), "+x"(i), "+x"(j));
  }
  sink = static_cast<uint64_t>((a + b + c + d + e + f + g + h + i + j)[0]);
}

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1;
  const size_t bytes = size_t{1} << 30;
  const size_t each = bytes / kVectorBytes / threads;
  auto* buffer = static_cast<Words*>(std::aligned_alloc(4096, bytes));
  if (buffer == nullptr) return 1;
  madvise(buffer, bytes, MADV_HUGEPAGE);
  std::fill_n(reinterpret_cast<uint64_t*>(buffer), bytes / 8, uint64_t{1});
  const double read_s = Fastest(threads, 16, [&](int thread) { Read(buffer + each * thread, each); });
  constexpr int64_t kRounds = 20'000'000;
  const double fma_s = Fastest(threads, 4, [&](int) { MultiplyAdd(kRounds); });
  const double flops = 2.0 * 10 * (kVectorBytes / 4) * kRounds * threads;
  std::printf("{\"threads\": %d, \"read_gb_per_s\": %.2f, \"fp32_gflops\": %.1f}\n", threads,
              each * threads * kVectorBytes / read_s / 1e9, flops / fma_s / 1e9);
  return 0;
}
