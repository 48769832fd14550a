// SPDX-License-Identifier: Apache-2.0
// The CUDA linear kernels in the emulator: against sums in double for every format, shape and layout; the
// same bits in either order of threads, for any number of rows and any alignment; a residual and a norm in
// the same pass equal to passes of their own.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "emu/weight_bytes.h"
#include "kernels/cuda_rows.h"

namespace normserve::kernels {
namespace {

constexpr int64_t kInputs[] = {1, 7, 64, 100, 2048};

template <typename X, typename Y>
CudaLinearRows LinearArgs(WeightBytes& w, Matrix<X>& x, Matrix<Y>& y, const std::vector<float>& bias) {
  CudaLinearRows args;
  args.x_type = kRowTypeOf<X>;
  args.y_type = kRowTypeOf<Y>;
  args.format = w.format;
  args.weight = w.row(0);
  args.weight_stride = w.stride;
  args.bias = bias.empty() ? nullptr : bias.data();
  args.x = x.row(0);
  args.x_stride = x.stride();
  args.y = y.row(0);
  args.y_stride = y.stride();
  args.inputs = w.inputs;
  args.outputs = w.outputs;
  return args;
}

// y of the first `rows` rows of x, [rows, outputs].
enum class Order { kForward, kReversed, kOneThread };

template <typename Y, typename X>
std::vector<Y> RunLinear(WeightBytes& w, const std::vector<X>& x, int64_t rows, Layout layout,
                         const std::vector<float>& bias, Order order = Order::kForward) {
  const std::vector<X> some(x.begin(), x.begin() + rows * w.inputs);
  Matrix<X> in(rows, w.inputs, layout, some);
  Matrix<Y> out(rows, w.outputs, layout);
  const OrderScope scope(order == Order::kReversed);
  const CudaLinearRows args = LinearArgs(w, in, out, bias);
  const auto run = order == Order::kOneThread ? LinearRowsInOrder : LinearRowsCuda;
  run(args, rows, nullptr);
  out.ExpectBandIntact("y");
  in.ExpectBandIntact("x");
  return out.Values();
}

// The sum in double, and what float32 may be off by.
struct Sum {
  double value = 0.0, error = 0.0;
};
template <typename X>
Sum SumOf(const WeightBytes& w, const X* x, int64_t output, const std::vector<float>& bias) {
  Sum sum;
  double magnitude = bias.empty() ? 0.0 : std::fabs(bias[static_cast<size_t>(output)]);
  sum.value = bias.empty() ? 0.0 : bias[static_cast<size_t>(output)];
  for (int64_t i = 0; i < w.inputs; ++i) {
    const double product = w.values[static_cast<size_t>(output * w.inputs + i)] * double(float(x[i]));
    sum.value += product;
    magnitude += std::fabs(product);
  }
  sum.error = 1e-6 * magnitude + 1e-30;
  return sum;
}

template <typename X, typename Y>
bool Right(const WeightBytes& w, const std::vector<X>& x, const std::vector<Y>& y,
           const std::vector<float>& bias) {
  for (size_t at = 0; at < y.size(); ++at) {
    const int64_t row = static_cast<int64_t>(at) / w.outputs, output = static_cast<int64_t>(at) % w.outputs;
    const Sum want = SumOf(w, x.data() + row * w.inputs, output, bias);
    const double tolerance = want.error + kRoundOff<Y> * std::fabs(want.value);
    if (!(std::fabs(double(float(y[at])) - want.value) <= tolerance)) return false;
  }
  return true;
}

// What the rows are, whatever their number, layout and order of threads.
template <typename X, typename Y>
void CheckShape(WeightFormat format, int64_t inputs, int64_t outputs, bool with_bias) {
  const std::string what = "format " + std::to_string(static_cast<int>(format)) + ", inputs " +
                           std::to_string(inputs) + ", outputs " + std::to_string(outputs);
  WeightBytes w(format, outputs, inputs, 3);
  const std::vector<X> x = TestRows<X>(16, inputs, 1);
  const std::vector<float> bias = with_bias ? TestFloats(outputs, 0.0f, 1.0f, 2) : std::vector<float>();
  const std::vector<Y> all = RunLinear<Y>(w, x, 16, Layout::kContiguous, bias);
  ASSERT_TRUE(Right(w, x, all, bias)) << what;
  for (const int64_t rows : {1, 2, 3, 5, 8}) {
    const Layout layout = kLayouts[rows % 4];
    const Order order = rows % 2 == 1 ? Order::kReversed : Order::kForward;
    const std::vector<Y> some = RunLinear<Y>(w, x, rows, layout, bias, order);
    const std::vector<Y> same(all.begin(), all.begin() + rows * outputs);
    ASSERT_TRUE(SameBits(some, same)) << what << ", rows " << rows << ", layout " << static_cast<int>(layout);
  }
  ASSERT_TRUE(SameBits(RunLinear<Y>(w, x, 16, Layout::kStrided, bias, Order::kOneThread), all)) << what;
  // Rows of weights apart, aligned and not.
  for (const int64_t pad : {16, 4}) {
    WeightBytes apart(format, outputs, inputs, 3, pad, pad == 4 ? 4 : 0);
    ASSERT_TRUE(SameBits(RunLinear<Y>(apart, x, 3, Layout::kPadded, bias),
                         std::vector<Y>(all.begin(), all.begin() + 3 * outputs)))
        << what << ", weights padded by " << pad;
  }
}

template <typename X, typename Y>
void CheckShapes(int64_t outputs) {
  for (const WeightFormat format : kCudaFormats) {
    for (const int64_t inputs : kInputs) CheckShape<X, Y>(format, inputs, outputs, inputs % 2 == 0);
  }
}
TEST(LinearCuda, EveryFormatAndShapeInFloat32) { CheckShapes<float, float>(5); }
TEST(LinearCuda, EveryFormatAndShapeInBFloat16) { CheckShapes<__nv_bfloat16, __nv_bfloat16>(6); }
TEST(LinearCuda, LogitsOfBFloat16InFloat32) { CheckShapes<__nv_bfloat16, float>(3); }

TEST(LinearCuda, ManyOutputsTakeTwoPerWarp) {
  WeightBytes w(WeightFormat::kBFloat16, 8193, 8, 4), few(WeightFormat::kBFloat16, 100, 8, 4);
  const std::vector<__nv_bfloat16> x = TestRows<__nv_bfloat16>(1, 8, 5);
  const std::vector<float> y = RunLinear<float>(w, x, 1, Layout::kContiguous, {});
  EXPECT_TRUE(Right(w, x, y, {}));
  EXPECT_TRUE(SameBits(RunLinear<float>(few, x, 1, Layout::kContiguous, {}),
                       std::vector<float>(y.begin(), y.begin() + 100)));
}

TEST(LinearCuda, NothingToDo) {
  LinearRowsCuda({}, 0, nullptr);
  LinearRowsCuda({}, 3, nullptr);
}

// One input less than there is, or more, must not go unnoticed above. (Beyond a quantised row are zeros.)
TEST(LinearCuda, AWrongTailIsSeen) {
  for (const WeightFormat format : kCudaFormats) {
    for (const int64_t inputs : {7, 64, 100}) {
      WeightBytes w(format, 2, inputs, 6, 64);
      const std::vector<float> x = TestRows<float>(2, inputs, 7);
      Matrix<float> in(2, inputs, Layout::kPadded, x), out(2, 2, Layout::kPadded);
      for (const int64_t wrong : {-1, 0, 1}) {
        if (wrong == 1 && IsQuantised(format)) continue;
        CudaLinearRows args = LinearArgs(w, in, out, {});
        args.inputs += wrong;
        LinearRowsCuda(args, 2, nullptr);
        EXPECT_EQ(Right(w, x, out.Values(), {}), wrong == 0)
            << static_cast<int>(format) << " " << inputs << " " << wrong;
      }
    }
  }
}

// h and the next norm's output of one pass, or of three.
template <typename T>
struct Residual {
  std::vector<T> h, next;
};

template <typename T>
Residual<T> RunResidual(WeightBytes& w, const std::vector<T>& x, const std::vector<T>& h_rows,
                        const RowNorm* next, Layout layout, bool fused, Order order = Order::kForward) {
  const int64_t rows = static_cast<int64_t>(x.size()) / w.inputs;
  const std::vector<float> bias = TestFloats(w.outputs, 0.0f, 1.0f, 2);
  std::vector<float> stat = {0.5f, 1.5f, 2.5f, 0.0f, 7.0f};
  Matrix<T> in(rows, w.inputs, layout, x), delta(rows, w.outputs, layout), h(rows, w.outputs, layout, h_rows),
      y(rows, w.outputs, layout);
  CudaLinearRows args = LinearArgs(w, in, delta, bias);
  ResidualRows apart;
  apart.type = kRowTypeOf<T>;
  apart.width = w.outputs;
  apart.h = args.h = h.row(0);
  apart.h_stride = args.h_stride = h.stride();
  apart.delta = delta.row(0);
  apart.delta_stride = delta.stride();
  apart.y = args.next_y = y.row(0);
  apart.y_stride = args.next_y_stride = y.stride();
  args.row_stat = apart.row_stat = stat.data();
  args.has_residual = fused;
  args.has_next = apart.has_next = next != nullptr;
  if (next != nullptr) args.next = apart.next = *next;
  const OrderScope scope(order == Order::kReversed);
  const auto run = order == Order::kOneThread ? LinearRowsInOrder : LinearRowsCuda;
  run(args, rows, nullptr);
  if (!fused) ResidualRowsCuda(apart, rows, nullptr);
  for (Matrix<T>* m : {&in, &h, &y}) m->ExpectBandIntact("fused residual");
  return {h.Values(), y.Values()};
}

template <typename T>
void CheckResiduals(WeightFormat format) {
  constexpr int64_t kRows = 5, kOutputs = 37;
  WeightBytes w(format, kOutputs, 100, 8);
  const std::vector<T> x = TestRows<T>(kRows, 100, 9), h = TestRows<T>(kRows, kOutputs, 10);
  const NormFamily family(kOutputs);
  RowNorm plain_second = family.Named("bhyt_second");
  plain_second.gamma = nullptr;
  const std::vector<const RowNorm*> norms = {nullptr, &family.Named("identity"), &family.Named("dyt"),
                                             &family.Named("bhyt_second"), &plain_second};
  for (const RowNorm* next : norms) {
    EXPECT_TRUE(next == nullptr || LinearTakesResidual(*next));
    const Residual<T> fused = RunResidual(w, x, h, next, Layout::kPadded, true);
    const Residual<T> loops = RunResidual(w, x, h, next, Layout::kPadded, true, Order::kOneThread);
    const Residual<T> apart = RunResidual(w, x, h, next, Layout::kStrided, false, Order::kReversed);
    for (const Residual<T>& other : {loops, apart}) {
      EXPECT_TRUE(SameBits(fused.h, other.h));
      EXPECT_TRUE(SameBits(fused.next, other.next));
    }
    EXPECT_FALSE(SameBits(fused.h, h));
  }
}

TEST(LinearCuda, ResidualAndNormAreThoseOfTheirOwnPasses) {
  for (const WeightFormat format : kCudaFormats) {
    CheckResiduals<float>(format);
    CheckResiduals<__nv_bfloat16>(format);
  }
}

TEST(LinearCuda, ANormThatMeasuresCannotFollow) {
  const NormFamily family(96);
  for (const NormCase& c : family.cases()) {
    const bool by_elements = c.name == "identity" || c.name == "dyt" || c.name == "bhyt_second";
    EXPECT_EQ(LinearTakesResidual(c.norm), by_elements) << c.name;
  }
  RowNorm centred = family.Named("dyt"), star = family.Named("bhyt_second");
  centred.numbers.centring = NormCentring::kSubtractMean;
  star.numbers.mean_coef = 0.25f;
  EXPECT_FALSE(LinearTakesResidual(centred));
  EXPECT_FALSE(LinearTakesResidual(star));
}

}  // namespace
}  // namespace normserve::kernels
