// SPDX-License-Identifier: Apache-2.0
// What a norm strategy may know: numbers of the config, where a norm's tensors are called what, and a
// look-up of tensors. Filled by the model's loader; this folder knows neither files nor layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "norm/norm_plan.h"

namespace normserve::norm {

// Tensors of a checkpoint by name. Every failure is one sentence that names file and tensor.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual bool Has(const std::string& name) const = 0;
  // A norm parameter of exactly this shape, as float32. It counts as consumed.
  virtual absl::StatusOr<at::Tensor> Parameter(const std::string& name,
                                               const std::vector<int64_t>& shape) = 0;
  // A single number, stored as [] or [1]. It counts as consumed.
  virtual absl::StatusOr<float> Scalar(const std::string& name) = 0;
  // A linear weight [rows, columns] as stored (16-bit or float32); not consumed by looking.
  virtual absl::StatusOr<at::Tensor> LinearWeight(const std::string& name, int64_t rows,
                                                  int64_t columns) = 0;
};

// Which group of checkpoints a norm type belongs to.
enum class Family { kLlama, kTorchtitan, kNanoGpt, kSimpleNanoGpt };

// Module names of the norms: "input_layernorm" below the layer's prefix; empty where the architecture
// has no norm. For embed_out and final the whole name.
struct SiteNames {
  std::array<std::string, kLayerSites> layer;
  std::string embed_out;
  std::string final;
};

// Options of the BHyT family, with the authors' defaults.
struct BhytOptions {
  double kappa = 10.0;
  std::string kappa_schedule = "none";        // none, decay, grow, mild_grow
  std::string var_approx_method = "baseline";  // baseline, beta, eta, residual_aware
  bool use_gamma_var = false;
  int64_t exact_layers = 0;                // the first n layers measure their second point
  std::vector<int64_t> exact_layer_list;   // and these
  std::vector<double> calibration;         // per layer, from layer 0; may be shorter
  std::optional<std::array<int64_t, 2>> layer_range;  // inclusive; outside: fallback_norm_type
  std::string fallback_norm_type = "rms";  // rms, bhytstar
  std::optional<double> last_layer_lam;    // > 0: the final norm is BHyT too
  std::optional<int64_t> seq_len;          // T in c_attn
  std::string inference_var_dtype = "float32";
};

struct NormInputs {
  Family family = Family::kLlama;
  std::string norm_type;
  std::string config_file;  // for messages
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  double eps = 0.0;           // rms_norm_eps, norm_eps; 1e-5 for nanoGPT
  bool layer_norm_bias = false;
  BhytOptions bhyt;
  SiteNames names;
  std::string layer_prefix;   // "model.layers.{}.", {} is the layer's index
  std::string value_weight;   // below the layer's prefix; used by c_attn
  std::string output_weight;
  TensorSource* tensors = nullptr;  // not owned
};

// The layer's prefix with its index filled in, "model.layers.3.".
std::string LayerPrefix(const NormInputs& inputs, int64_t layer);
// The full module name of a norm, "model.layers.3.input_layernorm"; empty where there is none.
std::string SiteModule(const NormInputs& inputs, int64_t layer, NormSite site);
// Elements that a norm at this site sees.
int64_t SiteWidth(const NormInputs& inputs, NormSite site);

}  // namespace normserve::norm
