// SPDX-License-Identifier: Apache-2.0
// The operators' schemas (the only TORCH_LIBRARY of the project) and the typed wrappers of ops.h. The
// kernels register themselves in *_cpu.cc; nothing here computes.
#include "kernels/ops.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "kernels/op_args.h"

// Statistics (row_stat) are written by one norm and read by a later one, hence mutated in the schema.
TORCH_LIBRARY(normserve, m) {
  m.def(
      "norm(Tensor x, float[] norm, Tensor? gamma, Tensor? beta, Tensor(a!)? row_stat, "
      "Tensor(b!) y) -> ()");
  m.def(
      "residual_norm(Tensor(a!) h, Tensor delta, float[] out_norm, Tensor? out_gamma, "
      "Tensor? out_beta, float[] next_norm, Tensor? next_gamma, Tensor? next_beta, "
      "Tensor(b!)? row_stat, Tensor(c!)? y) -> ()");
  m.def(
      "linear_residual_norm(Tensor x, Tensor panels, int format, int out_features, "
      "int rows_per_product, Tensor? bias, Tensor(a!) delta, Tensor(b!) h, float[] next_norm, Tensor? next_gamma, Tensor? next_beta, "
      "Tensor(c!)? row_stat, Tensor(d!)? y) -> ()");
  m.def(
      "qkv_norm_rotary_write(Tensor(a!) qkv, float[] q_norm, Tensor? q_gamma, Tensor? q_beta, "
      "float[] k_norm, Tensor? k_gamma, Tensor? k_beta, float[] v_norm, Tensor? v_gamma, "
      "Tensor? v_beta, Tensor? cos_sin, int pairs, Tensor positions, Tensor slots, int heads, "
      "int kv_heads, int head_dim, int block_size, Tensor(b!) k_cache, Tensor(c!) v_cache) -> ()");
  m.def(
      "paged_attention(Tensor qkv, Tensor k_cache, Tensor v_cache, Tensor block_tables, "
      "Tensor token_sequence, Tensor positions, Tensor? tiles, Tensor? tile_work, float scale, int heads, int kv_heads, "
      "int head_dim, int block_size, Tensor(a!) out) -> ()");
  m.def(
      "activate(Tensor x, int activation, float[] gate_norm, Tensor? gate_gamma, "
      "Tensor? gate_beta, float[] up_norm, Tensor? up_gamma, Tensor? up_beta, Tensor(a!) y) -> ()");
  m.def("pack_weight(Tensor weight, int format, bool gate_up) -> Tensor");
  m.def(
      "linear(Tensor x, Tensor panels, int format, int out_features, int rows_per_product, "
      "Tensor? bias, Tensor(a!) y) -> ()");
  m.def(
      "linear_gate(Tensor x, Tensor panels, int format, int out_features, int rows_per_product, "
      "Tensor? bias, Tensor(a!) gate_up, Tensor(b!) y) -> ()");
  m.def(
      "embed(Tensor ids, Tensor panels, int format, int rows, float scale, Tensor? positions, "
      "Tensor? positions_table, Tensor(a!) out) -> ()");
  m.def("gather_rows(Tensor x, Tensor rows, Tensor(a!) out) -> ()");
}

namespace normserve::kernels {
namespace {

constexpr const char* kOperators[] = {
    "normserve::norm",        "normserve::residual_norm", "normserve::linear_residual_norm",
    "normserve::qkv_norm_rotary_write",
    "normserve::paged_attention", "normserve::activate",  "normserve::pack_weight",
    "normserve::linear",      "normserve::linear_gate",   "normserve::embed",         "normserve::gather_rows"};

template <class Signature>
c10::TypedOperatorHandle<Signature> Find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Straight to the device's kernel: there is no autograd here, whether or not the caller runs in
// inference mode.
using Direct = at::AutoDispatchBelowADInplaceOrView;

MaybeTensor Maybe(const at::Tensor& t) { return t.defined() ? MaybeTensor(t) : std::nullopt; }

// A norm as the dispatcher takes it; absent is no numbers.
struct NormArguments {
  NumberArray numbers{};
  bool present = false;
  MaybeTensor gamma, beta;

  explicit NormArguments(const Norm& norm)
      : numbers(ToArray(norm.numbers)), present(true), gamma(Maybe(norm.gamma)),
        beta(Maybe(norm.beta)) {}
  explicit NormArguments(const OptionalNorm& norm) {
    if (norm.has_value()) *this = NormArguments(*norm);
  }
  Numbers view() const { return present ? Numbers(numbers) : Numbers(); }
};

}  // namespace

void NormOp(const at::Tensor& x, const Norm& norm, at::Tensor& row_stat, at::Tensor& y) {
  static const auto op = Find<NormSignature>("normserve::norm");
  const Direct direct;
  const NormArguments n(norm);
  op.call(x, n.view(), n.gamma, n.beta, Maybe(row_stat), y);
}

void ResidualNorm(at::Tensor& h, const at::Tensor& delta, const OptionalNorm& out_norm,
                  const OptionalNorm& next_norm, at::Tensor& row_stat, at::Tensor& y) {
  static const auto op = Find<ResidualNormSignature>("normserve::residual_norm");
  const Direct direct;
  const NormArguments out(out_norm), next(next_norm);
  op.call(h, delta, out.view(), out.gamma, out.beta, next.view(), next.gamma, next.beta,
          Maybe(row_stat), Maybe(y));
}

void LinearResidualNorm(const at::Tensor& x, const PackedWeight& weight, const at::Tensor& bias,
                        at::Tensor& delta, at::Tensor& h, const OptionalNorm& next_norm,
                        at::Tensor& row_stat, at::Tensor& y) {
  static const auto op = Find<LinearResidualNormSignature>("normserve::linear_residual_norm");
  const Direct direct;
  const NormArguments next(next_norm);
  op.call(x, weight.panels, static_cast<int64_t>(weight.format), weight.out_features,
          weight.rows_per_product, Maybe(bias), delta, h, next.view(), next.gamma, next.beta, Maybe(row_stat), Maybe(y));
}

void QkvNormRotaryWrite(at::Tensor& qkv, const QkvNorms& norms, const at::Tensor& cos_sin,
                        RotaryPairs pairs, const at::Tensor& positions, const at::Tensor& slots,
                        const AttentionShape& shape, at::Tensor& k_cache, at::Tensor& v_cache) {
  static const auto op = Find<QkvSignature>("normserve::qkv_norm_rotary_write");
  const Direct direct;
  const NormArguments q(norms.q), k(norms.k), v(norms.v);
  op.call(qkv, q.view(), q.gamma, q.beta, k.view(), k.gamma, k.beta, v.view(), v.gamma, v.beta,
          Maybe(cos_sin), static_cast<int64_t>(pairs), positions, slots, shape.heads,
          shape.kv_heads, shape.head_dim, shape.block_size, k_cache, v_cache);
}

void PagedAttention(const at::Tensor& qkv, const at::Tensor& k_cache, const at::Tensor& v_cache,
                    const at::Tensor& block_tables, const at::Tensor& token_sequence,
                    const at::Tensor& positions, const at::Tensor& tiles, const at::Tensor& tile_work,
                    float scale, const AttentionShape& shape, at::Tensor& out) {
  static const auto op = Find<AttentionSignature>("normserve::paged_attention");
  const Direct direct;
  op.call(qkv, k_cache, v_cache, block_tables, token_sequence, positions, Maybe(tiles), Maybe(tile_work), scale,
          shape.heads, shape.kv_heads, shape.head_dim, shape.block_size, out);
}

void Activate(const at::Tensor& x, Activation activation, const OptionalNorm& gate_norm,
              const OptionalNorm& up_norm, at::Tensor& y) {
  static const auto op = Find<ActivateSignature>("normserve::activate");
  const Direct direct;
  const NormArguments gate(gate_norm), up(up_norm);
  op.call(x, static_cast<int64_t>(activation), gate.view(), gate.gamma, gate.beta, up.view(),
          up.gamma, up.beta, y);
}

PackedWeight PackWeight(const at::Tensor& weight, WeightFormat format, WeightUse use) {
  static const auto op = Find<PackWeightSignature>("normserve::pack_weight");
  const Direct direct;
  const at::Tensor panels = op.call(weight, static_cast<int64_t>(format), use == WeightUse::kGate);
  return PackedWeight{panels, format, use, weight.size(0), weight.size(1)};
}

void LinearGate(const at::Tensor& x, const PackedWeight& weight, const at::Tensor& bias, at::Tensor& gate_up,
                at::Tensor& y) {
  TORCH_CHECK(weight.use == WeightUse::kGate, "weight: packed for Linear, not for LinearGate");
  static const auto op = Find<LinearGateSignature>("normserve::linear_gate");
  const Direct direct;
  op.call(x, weight.panels, static_cast<int64_t>(weight.format), weight.out_features, weight.rows_per_product,
          Maybe(bias), gate_up, y);
}

void Linear(const at::Tensor& x, const PackedWeight& weight, const at::Tensor& bias,
            at::Tensor& y) {
  TORCH_CHECK(weight.use == WeightUse::kLinear, "weight: packed for LinearGate, not for Linear");
  static const auto op = Find<LinearSignature>("normserve::linear");
  const Direct direct;
  op.call(x, weight.panels, static_cast<int64_t>(weight.format), weight.out_features,
          weight.rows_per_product, Maybe(bias), y);
}

void Embed(const at::Tensor& ids, const PackedWeight& table, float scale,
           const at::Tensor& positions, const at::Tensor& positions_table, at::Tensor& out) {
  static const auto op = Find<EmbedSignature>("normserve::embed");
  const Direct direct;
  op.call(ids, table.panels, static_cast<int64_t>(table.format), table.out_features, scale,
          Maybe(positions), Maybe(positions_table), out);
}

void GatherRows(const at::Tensor& x, const at::Tensor& rows, at::Tensor& out) {
  static const auto op = Find<GatherRowsSignature>("normserve::gather_rows");
  const Direct direct;
  op.call(x, rows, out);
}

std::vector<std::string> MissingKernels(at::DeviceType device) {
  const c10::DispatchKey key =
      device == at::kCUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  std::vector<std::string> missing;
  for (const char* name : kOperators) {
    const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
    if (!op.has_value() || !op->hasKernelForDispatchKey(key)) missing.emplace_back(name);
  }
  return missing;
}

}  // namespace normserve::kernels
