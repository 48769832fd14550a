// SPDX-License-Identifier: Apache-2.0
// PagedAttention by FlashInfer's paged kernel, for one head dimension; attention_flashinfer_*.cu have one instance
// each, because one takes nvcc tens of seconds. FlashInfer's own planner fits the number of splits to what is on
// the device; ours (attention_tiles.h) keeps both tile sizes fixed, so a row's bits do not depend on its batch.
#pragma once

#include <cuda_bf16.h>
// FlashInfer's headers, pinned by scripts/flashinfer-requirements.txt.
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>
#include <flashinfer/page.cuh>

#include <exception>
#include <string>

#include "kernels/cuda_rows.h"

namespace normserve::kernels {

template <uint32_t kHeadDim>
std::string RunFlashInfer(const AttentionTileArgs& args, CudaStream stream) {
  using Element = __nv_bfloat16;
  using Params = flashinfer::BatchPrefillPagedParams<Element, Element, Element, int32_t>;
  using Variant = flashinfer::DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/false,
                                               /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;
  const AttentionRows& a = args.rows;
  const AttentionTilesLayout at(args.shape);
  // FlashInfer takes pointers to mutable memory, and writes none but the results'.
  int32_t* const ints = const_cast<int32_t*>(args.tiles);
  const auto cache = [](const void* p) { return static_cast<Element*>(const_cast<void*>(p)); };
  // Its list of blocks is our block table: a request's length is (entries - 1) * block_size + last_block.
  const flashinfer::paged_kv_t<Element, int32_t> blocks(
      static_cast<uint32_t>(a.kv_heads), static_cast<uint32_t>(a.block_size), kHeadDim,
      static_cast<uint32_t>(args.shape.sequences), flashinfer::QKVLayout::kHND, cache(a.k_cache), cache(a.v_cache),
      const_cast<int32_t*>(a.block_tables), ints + at.table_begin, ints + at.last_block);
  Params params(cache(a.qkv), blocks, /*maybe_custom_mask=*/nullptr, ints + at.query_begin,
                /*maybe_mask_indptr=*/nullptr, /*maybe_q_rope_offset=*/nullptr, static_cast<Element*>(a.out),
                /*lse=*/nullptr, /*maybe_alibi_slopes=*/nullptr, static_cast<uint32_t>(a.heads),
                static_cast<int32_t>(a.qkv_stride), static_cast<int32_t>(kHeadDim), /*window_left=*/-1,
                /*logits_soft_cap=*/0.0f, a.scale, /*rope_scale=*/1.0f, /*rope_theta=*/1e4f);
  params.request_indices = ints + at.sequence;
  params.qo_tile_indices = ints + at.query_tile;
  params.kv_tile_indices = ints + at.split;
  params.o_indptr = ints + at.partial_begin;
  params.merge_indptr = ints + at.merge_begin;
  params.kv_chunk_size_ptr = ints + at.split_keys;
  params.block_valid_mask = reinterpret_cast<bool*>(ints + at.valid);
  params.padded_batch_size = static_cast<uint32_t>(at.tiles);
  params.max_total_num_rows = static_cast<uint32_t>(args.shape.tokens);
  try {
    const cudaError_t status = flashinfer::BatchPrefillWithPagedKVCacheDispatched<
        kTileRows, kHeadDim, kHeadDim, flashinfer::PosEncodingMode::kNone, /*USE_FP16_QK_REDUCTION=*/false,
        flashinfer::MaskMode::kCausal, Variant, Params>(params, static_cast<Element*>(args.partial),
                                                        args.partial_stats, /*enable_pdl=*/false, stream);
    return status == cudaSuccess ? "" : cudaGetErrorString(status);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace normserve::kernels
