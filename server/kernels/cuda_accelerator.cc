// SPDX-License-Identifier: Apache-2.0
// One CUDA device as kernels/accelerator.h describes it, on a stream of its own: graphs are not captured from
// the default stream.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <exception>

#include "kernels/accelerator.h"
#include "kernels/cuda_rows.h"
#include "kernels/device_utilization.h"
#include "kernels/kernel_plugin.h"
#include "kernels/sample_args.h"

namespace normserve::kernels {
namespace {

class CudaGraph final : public RecordedWork {
 public:
  // All graphs share one pool of memory: nothing in it is read after its own replay, and replays do not overlap.
  CudaGraph(at::cuda::MempoolId_t pool, const std::function<void()>& work) {
    // Other threads may allocate meanwhile.
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      Abandon();
      throw;
    }
    graph_.capture_end();
  }
  void Replay() override { graph_.replay(); }

 private:
  // The stream must leave capture mode whatever became of the work.
  void Abandon() {
    try {
      graph_.capture_end();
    } catch (const std::exception&) {
      // The failure that is already on its way says more.
    }
  }

  at::cuda::CUDAGraph graph_;
};

class CudaAccelerator final : public Accelerator {
 public:
  explicit CudaAccelerator(int index)
      : index_(static_cast<c10::DeviceIndex>(index)),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index_)),
        utilization_(index) {
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties_, index));
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    pool_ = at::cuda::graph_pool_handle();
  }

  at::Device device() const override { return {c10::DeviceType::CUDA, index_}; }
  std::string name() const override { return "cuda:" + std::to_string(index_); }
  std::string description() const override {
    char text[sizeof(properties_.name) + 32];
    std::snprintf(text, sizeof(text), "%s, %.1f GiB", properties_.name,
                  static_cast<double>(properties_.totalGlobalMem) / (1 << 30));
    return text;
  }

  void UseOnThisThread() override {
    c10::cuda::set_device(index_);
    c10::cuda::setCurrentCUDAStream(stream_);
  }

  AcceleratorMemory Memory() const override {
    const c10::cuda::CUDAGuard guard(index_);
    size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return {free, total};
  }
  double Utilization() const override { return utilization_.Now(); }

  at::Tensor HostBytes(int64_t bytes) override {
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }

  std::unique_ptr<RecordedWork> Record(const std::function<void()>& work) override {
    return std::make_unique<CudaGraph>(pool_, work);
  }

  void Sample(const SampleTensors& tensors) override {
    SampleRowsCuda(ToSampleArgs(tensors), tensors.tasks.size(0), stream_.stream());
  }

  void Wait() override {
    // A kernel that could not be started says so here, one that failed at the next line.
    C10_CUDA_CHECK(cudaGetLastError());
    C10_CUDA_CHECK(cudaStreamSynchronize(stream_.stream()));
  }

 private:
  const c10::DeviceIndex index_;
  const c10::cuda::CUDAStream stream_;
  const DeviceUtilization utilization_;
  cudaDeviceProp properties_{};
  at::cuda::MempoolId_t pool_;
};

}  // namespace
}  // namespace normserve::kernels

extern "C" __attribute__((visibility("default"))) normserve::kernels::Accelerator*
normserve_open_accelerator(int index, std::string* error) {
  try {
    const int devices = c10::cuda::device_count();
    if (devices < 1) {
      *error = "no NVIDIA GPU was found (or its driver is missing or too old for CUDA 13)";
    } else if (index < 0 || index >= devices) {
      *error = "there is no device " + std::to_string(index) + "; allowed: 0 to " +
               std::to_string(devices - 1);
    } else {
      return new normserve::kernels::CudaAccelerator(index);
    }
  } catch (const c10::Error& failure) {
    *error = failure.what_without_backtrace();
  }
  return nullptr;
}
