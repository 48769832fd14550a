// SPDX-License-Identifier: Apache-2.0
// Bounds and parts shared by the config readers of the three families.
#pragma once

#include "absl/status/status.h"
#include "model/config.h"
#include "model/json_fields.h"

namespace normserve::model {

// Far above any published model, and low enough that every product of two fits 63 bits.
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxWidth = int64_t{1} << 18;  // hidden, heads * head_dim
inline constexpr int64_t kMaxFfn = int64_t{1} << 20;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr int64_t kMaxPositions = int64_t{1} << 24;
inline constexpr int64_t kMaxRopeTable = int64_t{1} << 28;  // positions * head_dim: 1 GiB of floats

absl::Status ReadLlamaConfig(const JsonFields& fields, ModelConfig& config);
absl::Status ReadTorchtitanConfig(const JsonFields& fields, ModelConfig& config);
absl::Status ReadNanoGptConfig(const JsonFields& fields, ModelConfig& config);

// rope_theta and rope_scaling, with either spelling of its type key.
absl::Status ReadRope(const JsonFields& fields, ModelConfig& config);

// kv heads divide heads, head_dim even where it is rotated, heads * head_dim within kMaxWidth. `where`
// opens messages; the keys are as this family spells them.
absl::Status CheckHeads(const ModelConfig& config, const std::string& where, const char* heads_key,
                        const char* kv_heads_key, const char* head_dim_key);

}  // namespace normserve::model
