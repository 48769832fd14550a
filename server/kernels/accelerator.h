// SPDX-License-Identifier: Apache-2.0
// A device beside the CPU, as a runner needs it beyond the operators of ops.h: memory, recorded work, and
// sampling, so that a step brings back tokens and not logits. Implemented in a kernel plugin.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace normserve::kernels {

struct AcceleratorMemory {
  uint64_t free_bytes = 0;  // both 0: not known
  uint64_t total_bytes = 0;
};

// Work that was recorded once (a CUDA graph). It keeps the addresses of every tensor that it reads or writes.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  // Puts all of it on the device and returns.
  virtual void Replay() = 0;
};

// What the sampling kernel reads and writes; layouts in sample_rows.h. All on the device.
struct SampleTensors {
  at::Tensor logits;       // [rows, vocab] float32
  at::Tensor tasks;        // [rows, sizeof(SampleTask)] bytes
  at::Tensor adjustments;  // [count, sizeof(TokenAdjustment)] bytes
  at::Tensor work;         // [rows, vocab] float32, overwritten
  at::Tensor results;      // [rows, sizeof(SampledRow)] bytes
};

// All work is done in the order in which it is put. Used by one thread at a time, but for Memory and
// Utilization, which any thread may call. Failures are thrown as c10::Error.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // Held by a thread from its first work of a step until it has waited for it: runners of several models take
  // turns, since a recording takes in whatever is put on the device meanwhile.
  std::mutex& turn() { return turn_; }

  // Where its tensors are. That of the emulated device is the CPU.
  virtual at::Device device() const = 0;
  // As in GetModel and in the log: "cuda:0", "cuda-emulated".
  virtual std::string name() const = 0;
  // "NVIDIA H200, 139.8 GiB"
  virtual std::string description() const = 0;

  // Before anything else on a thread: makes the calling thread put its work here.
  virtual void UseOnThisThread() = 0;
  virtual AcceleratorMemory Memory() const = 0;
  // Share of time in which the device was busy lately, 0 to 1; negative: not known.
  virtual double Utilization() const = 0;

  // Why models with such activations and heads cannot have attention by tiles (attention_tiles.h) here, as a
  // sentence; empty: they can.
  virtual std::string TileAttentionFault(at::ScalarType activations, int64_t head_dim) const = 0;
  // A kernel's blocks may be placed before the last kernel has ended (CUDA's programmatic dependent launch), from now
  // on. Why the device cannot do so, as a sentence; empty: it can.
  virtual std::string UseDependentLaunch() = 0;
  // Bytes on the host that copies to and from the device are fastest with.
  virtual at::Tensor HostBytes(int64_t bytes) = 0;
  // Records what `work` puts on the device without running it. Everything that `work` uses must have run
  // before, outside a recording, and must stay where it is as long as the result lives.
  virtual std::unique_ptr<RecordedWork> Record(const std::function<void()>& work) = 0;
  // Gives back to the device what was allocated and is not used any more.
  virtual void ReleaseUnused() = 0;
  virtual void Sample(const SampleTensors& tensors) = 0;
  // Waits until everything put so far is done.
  virtual void Wait() = 0;

 private:
  std::mutex turn_;
};

}  // namespace normserve::kernels
