// SPDX-License-Identifier: Apache-2.0
// Selection never sorts the vocabulary: candidates are gathered above a falling threshold, and only
// as many of them are put in order as top_k or top_p needs.
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/row_softmax.h"

namespace normserve::engine {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();
// exp of this is 0 in float; keeps (logit - max) / temperature finite whatever the temperature.
constexpr float kZeroWeightExponent = -200.0f;
constexpr size_t kFirstSorted = 64;

// A bijection of 64 bits in which every input bit reaches every output bit (a multiply-xorshift
// finalizer of the splitmix family).
uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

bool IsPlain(const SamplingParams& p) {
  return p.logit_bias.empty() && p.repetition_penalty == 1.0f && p.presence_penalty == 0.0f &&
         p.frequency_penalty == 0.0f;
}

bool IsGreedy(const SamplingParams& p) {
  return !(p.temperature >= kGreedyTemperature) || p.top_k == 1;
}

float Finite(float x) { return std::clamp(x, kLowest, std::numeric_limits<float>::max()); }

}  // namespace

double UniformAt(uint64_t seed, uint64_t position) {
  // Two rounds, so that neither related seeds nor consecutive positions give related numbers.
  const uint64_t stream = Mix(seed + 0x9E3779B97F4A7C15u);
  const uint64_t bits = Mix(stream ^ Mix(position * 0xD1B54A32D192ED03u + 0x8CB92BA72F3D8DD7u));
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

RowResult Sampler::Decide(absl::Span<const float> logits, const RowTask& task) {
  RowResult result;
  const kernels::RowMax raw = kernels::MaxOfRow(logits.data(), logits.size());
  result.finite = raw.finite;
  if (!raw.finite) return result;
  if (task.sampling == nullptr) {
    result.token.id = task.target;
    result.token.is_argmax = raw.index == task.target;
  } else {
    const SamplingParams& params = *task.sampling;
    const bool allowed =
        std::find(task.banned.begin(), task.banned.end(), raw.index) == task.banned.end();
    if (IsGreedy(params) && IsPlain(params) && allowed) {
      result.token.id = raw.index;
    } else {
      Adjust(logits, task);
      result.token.id = IsGreedy(params) ? kernels::MaxOfRow(work_.data(), work_.size()).index
                                         : Draw(params, task.generated.size());
    }
  }
  if (task.logprob || task.top_logprobs > 0) {
    AddLogProbs(logits, raw.value, task.top_logprobs, result.token);
  }
  return result;
}

// Leaves the adjusted logits in work_, all finite.
void Sampler::Adjust(absl::Span<const float> logits, const RowTask& task) {
  const SamplingParams& params = *task.sampling;
  work_.assign(logits.begin(), logits.end());
  for (const auto& [id, bias] : params.logit_bias) {
    work_[id] = Finite(work_[id] + bias);
  }
  Penalize(task);
  // Not -inf, which MaxOfRow would report; no real logit is as low. A config's EOS id may lie
  // outside the vocabulary.
  for (uint32_t id : task.banned) {
    if (id < work_.size()) work_[id] = kLowest;
  }
}

void Sampler::Penalize(const RowTask& task) {
  const SamplingParams& params = *task.sampling;
  counts_.resize(work_.size(), 0);
  if (params.repetition_penalty != 1.0f) {
    for (absl::Span<const uint32_t> ids : {task.prompt, task.generated}) {
      for (uint32_t id : ids) {
        if (counts_[id]++ > 0) continue;
        float& x = work_[id];
        x = Finite(x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty);
      }
    }
    for (uint32_t id : task.prompt) counts_[id] = 0;
    for (uint32_t id : task.generated) counts_[id] = 0;
  }
  if (params.presence_penalty == 0.0f && params.frequency_penalty == 0.0f) return;
  for (uint32_t id : task.generated) ++counts_[id];
  for (uint32_t id : task.generated) {
    const float times = static_cast<float>(std::exchange(counts_[id], 0));
    if (times == 0) continue;
    work_[id] = Finite(work_[id] - params.presence_penalty - params.frequency_penalty * times);
  }
}

// Draws from softmax(work_ / temperature), truncated. Turns work_ into weights, the largest of
// them 1.
uint32_t Sampler::Draw(const SamplingParams& params, uint64_t position) {
  const size_t n = work_.size();
  const float max = kernels::MaxOfRow(work_.data(), n).value;
  for (float& x : work_) x = std::max((x - max) / params.temperature, kZeroWeightExponent);
  kernels::ExpRow(work_.data(), n, 0.0f, work_.data());
  const double uniform = UniformAt(params.seed, position);
  const bool top_k = params.top_k > 0 && params.top_k < n;
  if (!top_k && params.top_p >= 1.0f) return DrawFromAll(params, uniform);

  double total = 0;
  if (top_k) {
    KeepTopK(params.top_k);
    for (uint32_t id : order_) total += work_[id];
  } else {
    total = std::accumulate(work_.begin(), work_.end(), 0.0);
    Gather(1, params.top_p * total);
  }
  total = KeepTopP(params.top_p, total);
  size_t kept = order_.size();
  while (kept > 1 && work_[order_[kept - 1]] < params.min_p) total -= work_[order_[--kept]];
  double left = uniform * total;
  for (size_t i = 0; i < kept; ++i) {
    left -= work_[order_[i]];
    if (left < 0) return order_[i];
  }
  return order_[0];
}

uint32_t Sampler::DrawFromAll(const SamplingParams& params, double uniform) const {
  double total = 0;
  for (float w : work_) total += w >= params.min_p ? w : 0.0f;
  double left = uniform * total;
  uint32_t last = 0;
  for (size_t i = 0; i < work_.size(); ++i) {
    if (work_[i] < params.min_p || work_[i] == 0.0f) continue;
    last = static_cast<uint32_t>(i);
    left -= work_[i];
    if (left < 0) break;
  }
  return last;
}

// order_ becomes the ids of the k largest weights, in order.
void Sampler::KeepTopK(size_t k) {
  Gather(k, 0);
  SortFirst(0, k);
  order_.resize(k);
}

// order_ shrinks to its smallest prefix, in order, whose weight reaches top_p of `total`; returns
// that weight.
double Sampler::KeepTopP(float top_p, double total) {
  if (top_p >= 1.0f) return total;
  double mass = 0;
  size_t sorted = 0;
  for (size_t i = 0; i < order_.size(); ++i) {
    if (i == sorted) sorted = SortFirst(sorted, std::max(kFirstSorted, 4 * sorted));
    mass += work_[order_[i]];
    if (mass >= top_p * total) order_.resize(i + 1);
  }
  return mass;
}

// order_ becomes ids, ascending, that include the `count` largest weights and the largest ones that
// together weigh `mass`.
void Sampler::Gather(size_t count, double mass) {
  const size_t n = work_.size();
  for (float threshold : {0.05f, 1e-3f, 1e-5f, 0.0f}) {
    order_.clear();
    double sum = 0;
    for (size_t i = 0; i < n; ++i) {
      if (work_[i] < threshold) continue;
      order_.push_back(static_cast<uint32_t>(i));
      sum += work_[i];
    }
    if (order_.size() >= count && sum >= mass) return;
  }
}

// Puts the `count` largest of order_[sorted..] in order there, ties by id; returns the new sorted
// size.
size_t Sampler::SortFirst(size_t sorted, size_t count) {
  const auto before = [this](uint32_t a, uint32_t b) {
    return work_[a] != work_[b] ? work_[a] > work_[b] : a < b;
  };
  const auto begin = order_.begin() + sorted;
  const auto middle = begin + std::min(count, order_.size() - sorted);
  if (middle != order_.end()) std::nth_element(begin, middle, order_.end(), before);
  std::sort(begin, middle, before);
  return middle - order_.begin();
}

void Sampler::AddLogProbs(absl::Span<const float> logits, float max, uint32_t count,
                          TokenOutput& token) {
  const double norm = kernels::LogSumExp(logits.data(), logits.size(), max);
  token.logprob = static_cast<float>(logits[token.id] - norm);
  const size_t top = std::min<size_t>(count, logits.size());
  if (top == 0) return;
  const auto before = [&logits](uint32_t a, uint32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0u);
  if (top < logits.size()) {
    std::nth_element(order_.begin(), order_.begin() + top, order_.end(), before);
  }
  std::sort(order_.begin(), order_.begin() + top, before);
  token.top_ids.assign(order_.begin(), order_.begin() + top);
  token.top_logprobs.reserve(top);
  for (uint32_t id : token.top_ids) {
    token.top_logprobs.push_back(static_cast<float>(logits[id] - norm));
  }
}

}  // namespace normserve::engine
