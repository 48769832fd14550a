// SPDX-License-Identifier: Apache-2.0
// The emulated CUDA device as a runner sees it: its memory is the CPU's, its graphs are recordings of launches.
#include <ATen/ops/empty.h>

#include "kernels/accelerator.h"
#include "kernels/cuda_rows.h"
#include "kernels/cuda_stream.h"
#include "kernels/kernel_plugin.h"
#include "kernels/sample_args.h"
#include "recording.h"

namespace normserve::kernels {

bool Recording() { return emu::ActiveRecording() != nullptr; }

void KeepWhileRecorded(const at::Tensor& tensor) {
  if (emu::Recording* recording = emu::ActiveRecording()) {
    recording->Keep(std::make_shared<const at::Tensor>(tensor));
  }
}

namespace {

class EmulatedGraph final : public RecordedWork {
 public:
  explicit EmulatedGraph(const std::function<void()>& work) {
    emu::ActiveRecording() = &recording_;
    try {
      work();
    } catch (...) {
      emu::ActiveRecording() = nullptr;
      throw;
    }
    emu::ActiveRecording() = nullptr;
  }
  void Replay() override { recording_.Run(); }

 private:
  emu::Recording recording_;
};

class EmulatedAccelerator final : public Accelerator {
 public:
  at::Device device() const override { return at::kCPU; }
  std::string name() const override { return "cuda-emulated"; }
  std::string description() const override { return "CUDA kernels run on the CPU, for tests"; }
  void UseOnThisThread() override {}
  AcceleratorMemory Memory() const override { return {}; }
  double Utilization() const override { return -1; }
  std::string TileAttentionFault(at::ScalarType activations, int64_t head_dim) const override {
    return AttentionTilesFault(activations == at::kBFloat16 ? RowType::kBFloat16 : RowType::kFloat32, head_dim);
  }
  std::string UseDependentLaunch() override { return ""; }  // one kernel after the other all the same
  at::Tensor HostBytes(int64_t bytes) override { return at::empty({bytes}, at::kByte); }
  std::unique_ptr<RecordedWork> Record(const std::function<void()>& work) override {
    return std::make_unique<EmulatedGraph>(work);
  }
  void Sample(const SampleTensors& tensors) override {
    SampleRowsCuda(ToSampleArgs(tensors), tensors.tasks.size(0), CurrentStream());
  }
  void ReleaseUnused() override {}
  void Wait() override {}
};

}  // namespace
}  // namespace normserve::kernels

extern "C" __attribute__((visibility("default"))) normserve::kernels::Accelerator*
normserve_open_accelerator(int index, std::string* error) {
  if (index == 0) return new normserve::kernels::EmulatedAccelerator;
  *error = "there is one emulated device, 0";
  return nullptr;
}
