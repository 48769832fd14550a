// SPDX-License-Identifier: Apache-2.0
// One CUDA device as kernels/accelerator.h describes it, on a stream of its own: graphs are not captured from
// the default stream.
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <utility>

#include "kernels/accelerator.h"
#include "kernels/cuda_probe.h"
#include "kernels/cuda_rows.h"
#include "kernels/device_utilization.h"
#include "kernels/kernel_plugin.h"
#include "kernels/sample_args.h"

namespace normserve::kernels {
namespace {

using PoolId = at::cuda::MempoolId_t;

// One step of clearing up: what fails there says less than the failure that is already on its way.
template <class Step>
void Try(const Step& step) {
  try {
    step();
  } catch (const std::exception&) {
  }
}

class CudaGraph final : public RecordedWork {
 public:
  CudaGraph(std::shared_ptr<const PoolId> pool, c10::DeviceIndex device, const std::function<void()>& work)
      : pool_(std::move(pool)) {
    try {
      // Other threads may allocate meanwhile.
      graph_.capture_begin(*pool_, cudaStreamCaptureModeThreadLocal);
      work();
      // A launch that failed is not in the graph, which would be replayed without it.
      C10_CUDA_CHECK(cudaGetLastError());
      graph_.capture_end();
    } catch (...) {
      // The stream and both allocators must leave the capture, however far it came.
      Try([&] { graph_.capture_end(); });
      Try([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device, *pool_); });
      Try([&] { at::getHostAllocator(c10::DeviceType::CUDA)->end_allocate_to_pool(*pool_); });
      throw;
    }
  }
  void Replay() override { graph_.replay(); }

 private:
  std::shared_ptr<const PoolId> pool_;  // outlives the graph
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
    // Sums of products are float32, also those of parts of a long one.
    at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false);
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
    // A scrape of the metrics may ask when the device has failed: nothing is thrown then.
    int previous = 0;
    size_t free = 0, total = 0;
    if (cudaGetDevice(&previous) != cudaSuccess || cudaSetDevice(index_) != cudaSuccess) return {};
    const bool known = cudaMemGetInfo(&free, &total) == cudaSuccess;
    cudaSetDevice(previous);
    return known ? AcceleratorMemory{free, total} : AcceleratorMemory{};
  }
  double Utilization() const override { return utilization_.Now(); }

  std::string TileAttentionFault(at::ScalarType activations, int64_t head_dim) const override {
    return AttentionTilesFault(activations == at::kBFloat16 ? RowType::kBFloat16 : RowType::kFloat32, head_dim);
  }
  std::string UseDependentLaunch() override {
    if (properties_.major < 9) {
      return "needs compute capability 9.0, this GPU has " + std::to_string(properties_.major) + "." +
             std::to_string(properties_.minor);
    }
    kernels::UseDependentLaunch();
    return "";
  }
  at::Tensor HostBytes(int64_t bytes) override {
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }

  std::unique_ptr<RecordedWork> Record(const std::function<void()>& work) override {
    // Graphs share one pool of memory: nothing in it is read after its own replay, and replays do not overlap. The
    // allocator forgets a pool with its last graph, and takes its name no more.
    std::shared_ptr<const PoolId> pool = pool_.lock();
    if (pool == nullptr) pool_ = pool = std::make_shared<const PoolId>(at::cuda::graph_pool_handle());
    return std::make_unique<CudaGraph>(std::move(pool), index_, work);
  }

  void Sample(const SampleTensors& tensors) override {
    SampleRowsCuda(ToSampleArgs(tensors), tensors.tasks.size(0), stream_.stream());
  }

  void ReleaseUnused() override { c10::cuda::CUDACachingAllocator::emptyCache(); }

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
  std::weak_ptr<const PoolId> pool_;  // of the graphs that live
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
      c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
      const char* fault = normserve::kernels::CudaKernelFault();
      if (fault == nullptr) return new normserve::kernels::CudaAccelerator(index);
      *error = std::string("this build's kernels do not run on device ") + std::to_string(index) + ": " + fault;
    }
  } catch (const c10::Error& failure) {
    *error = failure.what_without_backtrace();
  }
  return nullptr;
}
