// SPDX-License-Identifier: Apache-2.0
// Speed of the norms, and of the passes that norms are fused with, on a device beside the CPU: microseconds
// per call and the share of a copy's bandwidth. One JSON object per operator, width and number of rows.
//   norm_bench --device cuda [--widths 2048,4096] [--rows 1,64,4096]
// Rows of a decode step work on the same few megabytes again and again, as a decode step does; larger ones
// take turns between buffers that no cache holds together. Calls are timed in recorded work (a CUDA graph),
// so that what the host does per call is left out, and once more without ("host": what it takes to put a
// call there).
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu/open_device.h"
#include "kernels/ops.h"

namespace normserve::kernels {
namespace {

constexpr int64_t kBlockSize = 32;
constexpr int64_t kKvHeads = 8;

struct Settings {
  std::string device = "cuda";
  std::vector<int64_t> widths = {2048, 4096}, rows = {1, 64, 4096};
  int samples = 15;
  double sample_ms = 2.0;   // of work in a sample
  int64_t cold_mib = 512;   // that buffers of one operator have together, where there are many rows
};

// One call, by the number of the buffers it works on.
using Call = std::function<void(int64_t buffer)>;
struct Operator {
  std::string name;
  double bytes = 0;  // read and written by a call, as far as they have to be
  Call call;
};

class Bench {
 public:
  Bench(Accelerator* device, const Settings& settings, int64_t width, int64_t rows)
      : device_(device), settings_(settings), width_(width), rows_(rows) {
    const int64_t bytes = rows * width * 2;
    buffers_ = rows < 1024 ? 1 : std::max<int64_t>(1, (settings.cold_mib << 20) / bytes);
    x_ = Act({buffers_, rows, width});
    y_ = Act({buffers_, rows, width});
    h_ = Act({buffers_, rows, width});
    stat_ = at::ones({rows}, Float());
  }

  void Run() {
    double copy_us = 0;
    for (const Operator& op : Operators()) {
      const std::vector<double> samples = Time(op.call);
      const double us = Median(samples);
      if (op.name == "copy") copy_us = us;
      nlohmann::json line = {{"op", op.name}, {"width", width_}, {"rows", rows_}, {"bytes", op.bytes}};
      line["samples_us"] = samples;
      line["host_us"] = HostTime(op.call);
      line["share_of_copy"] = op.bytes / us / (CopyBytes() / copy_us);
      std::printf("%s\n", line.dump().c_str());
      std::fflush(stdout);
    }
  }

 private:
  at::TensorOptions Float() const { return at::device(device_->device()).dtype(at::kFloat); }
  at::Tensor Act(at::IntArrayRef sizes) const { return at::randn(sizes, Float()).to(at::kBFloat16); }
  double CopyBytes() const { return 2.0 * 2.0 * static_cast<double>(rows_ * width_); }

  Norm MakeNorm(NormStat stat, NormPhi phi, int64_t width) const {
    Norm norm;
    norm.numbers.stat = stat;
    norm.numbers.phi = phi;
    norm.numbers.eps = 1e-6f;
    norm.numbers.gain = 0.5f;
    norm.gamma = at::ones({width}, Float());
    return norm;
  }

  // Pages of the cache are written anew by every call, into one block per kBlockSize rows.
  Operator Qkv(const std::string& name, bool norms) {
    const int64_t heads = 32, head_dim = std::max<int64_t>(8, width_ / heads);
    const AttentionShape shape{heads, kKvHeads, head_dim, kBlockSize};
    const int64_t qkv_width = (heads + 2 * kKvHeads) * head_dim;
    const int64_t blocks = (rows_ + kBlockSize - 1) / kBlockSize;
    const at::Tensor qkv = Act({rows_ < 1024 ? 1 : std::max<int64_t>(1, buffers_ / 2), rows_, qkv_width});
    QkvNorms three;
    if (norms) {
      three.q = MakeNorm(NormStat::kMeanSquare, NormPhi::kIdentity, heads * head_dim);
      three.k = three.v = MakeNorm(NormStat::kMeanSquare, NormPhi::kIdentity, kKvHeads * head_dim);
    }
    const auto ints = at::device(device_->device()).dtype(at::kInt);
    const at::Tensor slots = at::arange(rows_, ints), positions = at::zeros({rows_}, ints);
    const at::Tensor cos_sin = at::randn({16, head_dim}, Float());
    const at::Tensor keys = Act({blocks, kKvHeads, head_dim, kBlockSize});
    const at::Tensor values = Act({blocks, kKvHeads, kBlockSize, head_dim});
    const double bytes = 2.0 * 2.0 * static_cast<double>(rows_ * qkv_width);
    return {name, bytes, [=](int64_t buffer) {
              at::Tensor rows = qkv[buffer % qkv.size(0)], k = keys, v = values;
              QkvNormRotaryWrite(rows, three, cos_sin, RotaryPairs::kHalfSplit, positions, slots, shape, k,
                                 v);
            }};
  }

  Operator Gate(const std::string& name, bool norms) {
    const int64_t inner = 4 * width_;
    const at::Tensor x = Act({rows_ < 1024 ? 1 : std::max<int64_t>(1, buffers_ / 8), rows_, 2 * inner});
    const at::Tensor y = Act({x.size(0), rows_, inner});
    OptionalNorm norm;
    if (norms) norm = MakeNorm(NormStat::kMeanSquare, NormPhi::kIdentity, inner);
    return {name, 3.0 * 2.0 * static_cast<double>(rows_ * inner), [=](int64_t buffer) {
              at::Tensor out = y[buffer % y.size(0)];
              Activate(x[buffer % x.size(0)], Activation::kSiluGate, norm, norm, out);
            }};
  }

  std::vector<Operator> Operators() {
    const double copy = CopyBytes();
    const Norm rms = MakeNorm(NormStat::kMeanSquare, NormPhi::kIdentity, width_);
    const Norm first = MakeNorm(NormStat::kMeanSquare, NormPhi::kTanh, width_);
    const Norm second = MakeNorm(NormStat::kCarried, NormPhi::kTanh, width_);
    const auto norm = [this](const Norm& n) -> Call {
      return [this, n](int64_t b) {
        at::Tensor y = y_[b];
        NormOp(x_[b], n, stat_, y);
      };
    };
    const auto add = [this](const Norm& n) -> Call {
      return [this, n](int64_t b) {
        at::Tensor h = h_[b], y = y_[b];
        ResidualNorm(h, x_[b], std::nullopt, n, stat_, y);
      };
    };
    const Call copies = [this](int64_t b) { y_[b].copy_(x_[b], /*non_blocking=*/true); };
    return {{"copy", copy, copies},
            {"rms", copy, norm(rms)},
            {"bhyt_first", copy, norm(first)},
            {"bhyt_second", copy, norm(second)},
            {"add_rms", 2 * copy, add(rms)},
            {"add_bhyt_first", 2 * copy, add(first)},
            {"add_bhyt_second", 2 * copy, add(second)},
            Qkv("qkv", false),
            Qkv("qkv_simplegpt", true),
            Gate("activate", false),
            Gate("activate_simplegpt", true)};
  }

  double Seconds(const std::function<void()>& work) const {
    device_->Wait();
    const auto begin = std::chrono::steady_clock::now();
    work();
    device_->Wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  // Microseconds per call, of calls in one recording.
  std::vector<double> Time(const Call& call) {
    const int64_t calls = std::max<int64_t>(buffers_, settings_.sample_ms > 0 ? 100 : 2);
    const auto all = [&] {
      for (int64_t i = 0; i < calls; ++i) call(i % buffers_);
    };
    all();  // loads the kernels
    const std::unique_ptr<RecordedWork> work = device_->Record(all);
    work->Replay();
    const double once = Seconds([&] { work->Replay(); });
    const int replays = std::max(1, static_cast<int>(settings_.sample_ms * 1e-3 / once));
    std::vector<double> samples;
    for (int s = 0; s < settings_.samples; ++s) {
      const double seconds = Seconds([&] {
        for (int i = 0; i < replays; ++i) work->Replay();
      });
      samples.push_back(seconds * 1e6 / static_cast<double>(replays * calls));
    }
    return samples;
  }

  // Microseconds until the host has put a call on the device.
  double HostTime(const Call& call) {
    constexpr int kCalls = 20;
    device_->Wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call(i % buffers_);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    device_->Wait();
    return seconds.count() * 1e6 / kCalls;
  }

  static double Median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  }

  Accelerator* const device_;
  const Settings& settings_;
  const int64_t width_, rows_;
  int64_t buffers_ = 1;
  at::Tensor x_, y_, h_, stat_;
};

int Main(int argc, char** argv) {
  CLI::App app("speed of norms on a device");
  Settings settings;
  app.add_option("--device", settings.device, "cuda or cuda-emulated")
      ->check(CLI::IsMember({"cuda", "cuda-emulated"}));
  app.add_option("--widths", settings.widths, "of the rows")->delimiter(',');
  app.add_option("--rows", settings.rows, "numbers of rows")->delimiter(',');
  app.add_option("--samples", settings.samples, "measured per operator")->check(CLI::PositiveNumber);
  app.add_option("--sample-ms", settings.sample_ms, "of work in a sample; 0: one replay of two calls");
  CLI11_PARSE(app, argc, argv);
  const auto device = OpenDeviceOrExit(settings.device);
  const c10::InferenceMode inference;
  for (const int64_t width : settings.widths) {
    for (const int64_t rows : settings.rows) Bench(device.get(), settings, width, rows).Run();
  }
  return 0;
}

}  // namespace
}  // namespace normserve::kernels

int main(int argc, char** argv) {
  try {
    return normserve::kernels::Main(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
