// SPDX-License-Identifier: Apache-2.0
// Fuzzes what comes over the wire: any bytes that parse as a request either are refused with a status
// that says why, or become an engine request within every documented range.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include <google/protobuf/stubs/logging.h>

#include "engine/engine.h"
#include "engine/fake_runner.h"
#include "engine/recorders.h"
#include "normserve/v1/generation.pb.h"
#include "rpc/request_parser.h"
#include "rpc/served_model.h"
#include "text/fake_tokenizer.h"

namespace {

using namespace normserve;

// The model that requests are parsed for; nothing is ever submitted to its engine.
struct Fixture {
  text::FakeTokenizer tokenizer;
  engine::RecordingObserver observer;
  engine::Engine engine{"fuzz", {}, std::make_unique<engine::FakeRunner>(engine::FakeRunnerOptions{}),
                        &tokenizer, &observer};
  rpc::ServedModel model;

  Fixture() {
    google::protobuf::SetLogHandler(nullptr);  // a line per string that is not UTF-8
    model.engine = &engine;
    model.tokenizer = &tokenizer;
    model.observer = &observer;
    model.card.name = "fuzz";
  }
};

void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckIds(const std::vector<uint32_t>& ids, uint32_t vocab) {
  for (const uint32_t id : ids) Require(id < vocab);
}

void CheckRequest(const engine::Request& r, uint32_t vocab) {
  Require(!r.prompt.empty());
  CheckIds(r.prompt, vocab);
  CheckIds(r.stop.stop_token_ids, vocab);
  const engine::SamplingParams& s = r.sampling;
  Require(std::isfinite(s.temperature) && s.temperature >= 0);
  Require(s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1);
  Require(s.repetition_penalty > 0 && s.repetition_penalty <= 10);
  Require(std::fabs(s.presence_penalty) <= 2 && std::fabs(s.frequency_penalty) <= 2);
  Require(s.logit_bias.size() <= 1024);
  for (const auto& [id, bias] : s.logit_bias) Require(id < vocab && std::fabs(bias) <= 100);
  Require(r.stop.max_new_tokens >= 1 && r.stop.min_new_tokens <= r.stop.max_new_tokens);
  Require(r.stop.stop_strings.size() <= 16);
  Require(r.output.top_logprobs <= vocab && std::abs(r.priority) <= 100);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Fixture& fixture = *new Fixture;  // one engine for the whole run
  const uint32_t vocab = fixture.engine.runner_info().vocab_size;
  v1::GenerateRequest generate;
  if (generate.ParseFromArray(data, static_cast<int>(size))) {
    const auto request = rpc::ParseGenerate(generate, fixture.model);
    request.ok() ? CheckRequest(*request, vocab) : Require(!request.status().message().empty());
  }
  v1::ScoreRequest score;
  if (score.ParseFromArray(data, static_cast<int>(size))) {
    const auto works = rpc::ParseScore(score, fixture.model);
    if (!works.ok()) {
      Require(!works.status().message().empty());
      return 0;
    }
    Require(!works->empty());
    for (const rpc::ScoreWork& work : *works) CheckIds(work.request.prompt, vocab);
  }
  return 0;
}
