// SPDX-License-Identifier: Apache-2.0
// What attention will read, asked of memory while linear layers multiply: with many rows those leave memory idle, and
// attention does little but wait for it. Never changes a result. CPU only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace normserve::kernels {

// A step's tokens, as PagedAttention takes them; what it would refuse is left out here.
struct ReadAheadStep {
  const int32_t* block_tables = nullptr;  // [sequences, max_blocks]
  int64_t block_tables_stride = 0;
  int64_t sequences = 0;
  int64_t max_blocks = 0;
  const int32_t* token_sequence = nullptr;  // [tokens]
  const int32_t* positions = nullptr;       // [tokens]
  int64_t tokens = 0;
  int64_t blocks = 0;  // of the cache
  int64_t block_size = 0;
  size_t block_bytes = 0;  // of one layer's keys, and of its values
};

// Plan and Aim between kernels, Take by any of their threads.
class ReadAhead {
 public:
  // Nothing beyond the first `most_bytes` of a layer's keys and values is asked for: it would be gone from the
  // caches before it is used.
  explicit ReadAhead(size_t most_bytes) : most_bytes_(most_bytes) {}

  // The blocks that the step's tokens see, those of the first tokens first. Nothing can be taken until Aim.
  void Plan(const ReadAheadStep& step);
  // Take goes through the planned blocks of these two. Called once per layer.
  void Aim(const void* keys, const void* values);
  void AimAtNothing();
  // What it is aimed at; null: nothing.
  const void* keys() const { return keys_; }
  const void* values() const { return values_; }

  // Some bytes in a row that nobody took since Aim; 0 bytes where none are due.
  struct Lines {
    const char* begin = nullptr;
    size_t bytes = 0;
  };
  // What to ask for while `weights` bytes of weights are multiplied: up to `most` times `unit` bytes, in whole units but
  // at the end of what lies together. Keeps pace with what was multiplied so in the layer before: asked for at once,
  // lines would only wait for each other, and weights for them.
  Lines Take(size_t weights, size_t unit, size_t most);

 private:
  struct Run {
    size_t at;     // among the planned bytes of one cache
    size_t begin;  // in the cache
  };
  void AddBlock(int32_t block);

  const size_t most_bytes_;
  std::vector<int32_t> blocks_;
  std::vector<bool> added_;  // by block
  std::vector<Run> runs_;
  size_t planned_ = 0;  // bytes of one cache
  size_t total_ = 0;    // of both; 0: aimed at nothing
  const char* keys_ = nullptr;
  const char* values_ = nullptr;
  std::atomic<size_t> next_{0};
  double per_weight_ = 0.0;            // bytes to ask for per byte of weights; 0: all at once
  size_t layer_weights_ = 0;           // bytes, of the layer before; 0: unknown
  std::atomic<size_t> multiplied_{0};  // bytes of weights since Aim
};

// A quarter of the last-level cache, which others use, too.
size_t MostReadAheadBytes();

// What linear kernels called from this thread ask from; without one they ask for weights alone.
class ScopedReadAhead {
 public:
  explicit ScopedReadAhead(ReadAhead* ahead);
  ~ScopedReadAhead();
  ScopedReadAhead(const ScopedReadAhead&) = delete;
  ScopedReadAhead& operator=(const ScopedReadAhead&) = delete;

 private:
  ReadAhead* previous_;
};
ReadAhead* CurrentReadAhead();

}  // namespace normserve::kernels
