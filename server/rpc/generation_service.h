// SPDX-License-Identifier: Apache-2.0
// normserve.v1.GenerationService on gRPC's callback API: finds the model, parses, starts a reactor.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "base/log.h"
#include "normserve/v1/generation.grpc.pb.h"
#include "rpc/model_table.h"

namespace normserve::rpc {

// Whether the log lines of requests show their prompts.
enum class PromptLogging { kOff, kOn };

// gRPC's threads. `models` and `log` outlive it.
class GenerationService final : public v1::GenerationService::CallbackService {
 public:
  GenerationService(const ModelTable* models, const base::Log* log, PromptLogging prompt_logging);

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override;
  grpc::ServerWriteReactor<v1::GenerateChunk>* GenerateStream(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::ModelInfo* response) override;

 private:
  template <typename Request, typename Response>
  using UnaryMethod = grpc::ServerUnaryReactor* (GenerationService::*)(grpc::CallbackServerContext*,
                                                                       const Request*, Response*);
  // Let the method named so answer INVALID_ARGUMENT to bytes that are no message of its type.
  template <typename Request, typename Response>
  void RefuseMalformed(const char* name, UnaryMethod<Request, Response> method);
  void RefuseMalformedStreams();
  // What such a call ends with.
  absl::Status Malformed(const google::protobuf::Descriptor& type) const;

  const std::shared_ptr<const void> calls_ = std::make_shared<int>();  // see CallRecord
  const ModelTable* const models_;
  const base::Log* const log_;
  const PromptLogging prompt_logging_;
};

}  // namespace normserve::rpc
