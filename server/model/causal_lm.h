// SPDX-License-Identifier: Apache-2.0
// A whole decoder: embedding, layers, final norm, head. One body for every architecture; what differs
// (norm plan, rotary pairs, activation, biases) is data fixed at load.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "norm/norm_plan.h"

namespace normserve::model {

enum class Quantization { kNone, kInt8, kInt4, kFloat8 };

// Rows of one product under LoadOptions::batch_invariant: as many as a step that reads weights from a GPU's memory
// computes in the time that it waits for them.
inline constexpr int64_t kBatchInvariantRows = 64;

// How to load. Absent optionals follow the checkpoint.
struct LoadOptions {
  at::ScalarType dtype = at::kFloat;        // weights and KV cache: kFloat or kBFloat16
  bool int8_cache = false;                  // on the CPU: the KV cache alone, for an even head_dim
  std::optional<std::string> norm_type;     // --norm-type: for checkpoints whose config cannot say it
  std::optional<int64_t> bhyt_seq_len;      // --bhyt-seq-len: T in c_attn, overrides config.seq_len
  enum class Fold { kAuto, kOn, kOff } fold = Fold::kAuto;  // kAuto: on for float32 weights only
  // Weight-only, at load: of the layers' linear weights, and of the embedding table and the output head.
  // Norms, biases and learned positions stay float32.
  Quantization quantize = Quantization::kNone;
  Quantization quantize_head = Quantization::kNone;
  at::Device device = at::kCPU;               // of weights, buffers and cache
  at::ScalarType activations = at::kFloat;    // kFloat, or as dtype
  // A token's results are the same bits whatever runs beside it, also where a GPU's library would choose otherwise:
  // its products then take kBatchInvariantRows rows each, and a step's rows are padded to a multiple of that.
  // On the CPU it is always so.
  bool batch_invariant = false;
  // Called as layers arrive, with how many are there; never with more than layer_count. May be empty.
  std::function<void(int64_t layers, int64_t layer_count)> progress;
};

// What a loaded model is; plain data, for scheduling limits, ListModels and `inspect`.
struct ModelDescription {
  std::string architecture;  // llama, SimpleGPT, PreNormTransformer, PreQKNormTransformer, nanogpt, simple_nanogpt
  std::string norm_type;
  uint64_t parameter_count = 0;
  uint64_t weight_bytes = 0;  // as held in memory
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t layer_count = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_context_tokens = 0;
  int64_t kv_bytes_per_token = 0;  // all layers, keys and values
  std::string checkpoint_dtype;    // float32, bfloat16, float16: of the linear weights in the file
  std::string dtype;               // float32, bfloat16: as LoadOptions::dtype
  std::string kv_cache_dtype;      // float32, bfloat16, int8 (with a float32 scale per token and kv head)
  std::string quantization;        // none, int8, int4: as LoadOptions::quantize
  std::string head_quantization;   // as LoadOptions::quantize_head
  std::vector<uint32_t> config_eos_token_ids;  // config.json and generation_config.json, united
  std::optional<uint32_t> bos_token_id;
};

// One step's tokens, flat: rows of several sequences one after the other. All int32, on the device.
struct StepInput {
  at::Tensor token_ids;       // [tokens]
  at::Tensor positions;       // [tokens]
  at::Tensor slots;           // [tokens], see kernels::QkvNormRotaryWrite
  at::Tensor token_sequence;  // [tokens], row of block_tables
  at::Tensor block_tables;    // [sequences, max_blocks]
  at::Tensor logits_rows;     // [rows <= tokens], indices into tokens: where logits are wanted
  bool every_token = false;   // logits_rows are all tokens, in order
  at::Tensor tiles{};         // of attention, see kernels::PagedAttention; undefined: none are wanted
  at::Tensor tile_work{};     // with tiles
};

// Keys and values of every layer, paged. Owned by the engine's runner.
struct KvCache {
  std::vector<at::Tensor> keys;    // per layer, [blocks, kv_heads, head_dim, block_size] or as ops.h has it
  std::vector<at::Tensor> values;  // per layer, [blocks, kv_heads, block_size, head_dim]; int8: [blocks, kv_heads, bytes]
  int64_t block_size = 0;
  int64_t blocks = 0;
};

// Sees each named intermediate result of a forward pass; for tests that must name the faulty layer.
// Names: embed, layers.N.<site> (norm outputs), layers.N.attn, layers.N.mlp (before the residual add),
// hidden.N (residual stream after layer N), norm (final norm output). Rows are the step's tokens; from the last
// layer's attention on, its logits_rows.
using Probe = std::function<void(std::string_view name, const at::Tensor& value)>;

// Used by one thread. Immutable after loading but for its scratch buffers.
class CausalLm {
 public:
  // Loads and checks a checkpoint folder, strictly: a missing, unknown norm-family, mis-shaped or
  // truncated tensor, or an unknown option, is one sentence that names file and tensor or key.
  static absl::StatusOr<std::unique_ptr<CausalLm>> Load(const std::string& directory,
                                                        const LoadOptions& options);
  ~CausalLm();

  const ModelDescription& description() const;
  const norm::NormPlan& norms() const;

  // Zeroed blocks of the model's own shape, dtype and device. With keys_by_position for attention by tiles, which
  // every step's input must then have.
  KvCache MakeCache(int64_t blocks, int64_t block_size, bool keys_by_position = false) const;

  // Makes the buffers large enough for steps of so many tokens and logits rows: until a larger one comes, they
  // stay where they are, as recorded work needs it.
  void Reserve(int64_t tokens, int64_t rows);

  // Runs the layers over all tokens, writes their keys and values, and returns the final-normed hidden
  // states of logits_rows, [rows, hidden] act. The result is valid until the next call.
  at::Tensor Forward(const StepInput& input, KvCache& cache, const Probe* probe = nullptr);

  // logits [rows, vocab] float32 of hidden rows (any slice of Forward's result).
  void Logits(const at::Tensor& hidden, at::Tensor& logits);

 private:
  struct Impl;
  explicit CausalLm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace normserve::model
