// SPDX-License-Identifier: Apache-2.0
#include "rpc/generation_service.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "rpc/call_record.h"
#include "rpc/generate_reactor.h"
#include "rpc/model_info.h"
#include "rpc/received.h"
#include "rpc/request_parser.h"
#include "rpc/score_reactor.h"
#include "rpc/status.h"
#include "rpc/stream_reactor.h"

namespace normserve::rpc {
namespace {

// A stream that ends before it began.
class RefusedStream final : public grpc::ServerWriteReactor<v1::GenerateChunk> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Ends a call that needs no engine, or that never reached one, and logs it.
grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context, CallRecord record,
                                    const absl::Status& status) {
  record.End(status);
  record.WriteLog();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerWriteReactor<v1::GenerateChunk>* RefuseStream(CallRecord record,
                                                          const absl::Status& status) {
  record.End(status);
  record.WriteLog();
  return new RefusedStream(ToGrpc(status));
}

// A request that is refused before the engine is a request received and ended all the same.
void CountRefused(const ServedModel& model) {
  if (model.observer == nullptr) return;
  model.observer->RequestReceived();
  model.observer->RequestEnded(engine::Terminal::kInvalid, {}, {});
}

// What --log-prompts shows: a line of its own, which the request's line is found by.
void LogPrompt(const base::Log& log, const CallRecord& record, const v1::GenerateRequest& message) {
  const std::string prompt = message.prompt_case() == v1::GenerateRequest::kText
                                 ? message.text()
                                 : absl::StrJoin(message.token_ids().ids(), ",");
  log.Info("prompt", {{"request_id", record.id()}, {"prompt", prompt}});
}

// What Generate and GenerateStream do alike before a reactor starts.
struct Parsed {
  const ServedModel* model = nullptr;
  engine::Request request;
};
absl::StatusOr<Parsed> ParseCall(const v1::GenerateRequest& message, const ModelTable& models,
                                 CallRecord* record) {
  Parsed parsed;
  NS_ASSIGN_OR_RETURN(parsed.model, models.Find(message.model()));
  record->set_model(parsed.model->card.name);
  absl::StatusOr<engine::Request> request = ParseGenerate(message, *parsed.model);
  if (!request.ok()) {
    CountRefused(*parsed.model);
    return request.status();
  }
  parsed.request = *std::move(request);
  parsed.request.id = record->id();
  parsed.request.deadline = record->deadline();
  return parsed;
}

absl::Status TokenizeInto(const ServedModel& model, const v1::TokenizeRequest& message,
                          v1::TokenizeResponse* response) {
  std::optional<bool> add_special;
  if (message.has_add_special_tokens()) add_special = message.add_special_tokens();
  NS_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                      EncodedText("text", message.text(), add_special, model));
  response->mutable_ids()->Add(ids.begin(), ids.end());
  for (const uint32_t id : ids) response->add_pieces(model.tokenizer->Piece(id));
  return absl::OkStatus();
}

absl::Status DetokenizeInto(const ServedModel& model, const v1::DetokenizeRequest& message,
                            v1::DetokenizeResponse* response) {
  NS_RETURN_IF_ERROR(NeedsTokenizer("token_ids", model));
  NS_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                      CheckedIds("token_ids", message.token_ids(), model));
  const bool skip = !message.has_skip_special_tokens() || message.skip_special_tokens();
  NS_ASSIGN_OR_RETURN(*response->mutable_text(), model.tokenizer->Decode(ids, skip));
  return absl::OkStatus();
}

// As the generated code counts.
int MethodIndex(const char* name) {
  return v1::GenerateRequest::descriptor()
      ->file()
      ->FindServiceByName("GenerationService")
      ->FindMethodByName(name)
      ->index();
}

}  // namespace

GenerationService::GenerationService(const ModelTable* models, const base::Log* log,
                                     PromptLogging prompt_logging)
    : models_(models), log_(log), prompt_logging_(prompt_logging) {
  RefuseMalformed("Generate", &GenerationService::Generate);
  RefuseMalformedStreams();
  RefuseMalformed("Score", &GenerationService::Score);
  RefuseMalformed("Tokenize", &GenerationService::Tokenize);
  RefuseMalformed("Detokenize", &GenerationService::Detokenize);
  RefuseMalformed("ListModels", &GenerationService::ListModels);
  RefuseMalformed("GetModel", &GenerationService::GetModel);
}

absl::Status GenerationService::Malformed(const google::protobuf::Descriptor& type) const {
  // The model's name is not known either; where there is one model it is that one's request.
  const absl::StatusOr<const ServedModel*> only = models_->Find("");
  const bool counted =
      &type == v1::GenerateRequest::descriptor() || &type == v1::ScoreRequest::descriptor();
  if (counted && only.ok()) CountRefused(**only);
  return absl::InvalidArgumentError(
      absl::StrCat("the message is not a valid ", type.full_name(),
                   ": its bytes are cut short or of another form, or a string is not UTF-8"));
}

template <typename Request, typename Response>
void GenerationService::RefuseMalformed(const char* name, UnaryMethod<Request, Response> method) {
  const auto handle = [this, name, method](grpc::CallbackServerContext* context,
                                           const Received<Request>* received, Response* response) {
    if (received->valid) return (this->*method)(context, &received->message, response);
    return FinishNow(context, CallRecord(context, name, log_, calls_),
                     Malformed(*Request::descriptor()));
  };
  MarkMethodCallback(MethodIndex(name),
                     new grpc::internal::CallbackUnaryHandler<Received<Request>, Response>(handle));
}

void GenerationService::RefuseMalformedStreams() {
  const auto handle = [this](grpc::CallbackServerContext* context,
                             const Received<v1::GenerateRequest>* received) {
    if (received->valid) return GenerateStream(context, &received->message);
    return RefuseStream(CallRecord(context, "GenerateStream", log_, calls_),
                        Malformed(*v1::GenerateRequest::descriptor()));
  };
  MarkMethodCallback(
      MethodIndex("GenerateStream"),
      new grpc::internal::CallbackServerStreamingHandler<Received<v1::GenerateRequest>,
                                                         v1::GenerateChunk>(handle));
}

grpc::ServerUnaryReactor* GenerationService::Generate(grpc::CallbackServerContext* context,
                                                      const v1::GenerateRequest* request,
                                                      v1::GenerateResponse* response) {
  CallRecord record(context, "Generate", log_, calls_);
  if (prompt_logging_ == PromptLogging::kOn) LogPrompt(*log_, record, *request);
  absl::StatusOr<Parsed> parsed = ParseCall(*request, *models_, &record);
  if (!parsed.ok()) return FinishNow(context, std::move(record), parsed.status());
  return GenerateReactor::Start(*parsed->model, std::move(parsed->request), std::move(record),
                                response);
}

grpc::ServerWriteReactor<v1::GenerateChunk>* GenerationService::GenerateStream(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  CallRecord record(context, "GenerateStream", log_, calls_);
  if (prompt_logging_ == PromptLogging::kOn) LogPrompt(*log_, record, *request);
  absl::StatusOr<Parsed> parsed = ParseCall(*request, *models_, &record);
  if (!parsed.ok()) return RefuseStream(std::move(record), parsed.status());
  return StreamReactor::Start(*parsed->model, std::move(parsed->request), std::move(record));
}

grpc::ServerUnaryReactor* GenerationService::Score(grpc::CallbackServerContext* context,
                                                   const v1::ScoreRequest* request,
                                                   v1::ScoreResponse* response) {
  CallRecord record(context, "Score", log_, calls_);
  const absl::StatusOr<const ServedModel*> model = models_->Find(request->model());
  if (!model.ok()) return FinishNow(context, std::move(record), model.status());
  record.set_model((*model)->card.name);
  absl::StatusOr<std::vector<ScoreWork>> work = ParseScore(*request, **model);
  if (!work.ok()) {
    CountRefused(**model);
    return FinishNow(context, std::move(record), work.status());
  }
  return ScoreReactor::Start(**model, *std::move(work), std::move(record), response);
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const v1::TokenizeRequest* request,
                                                      v1::TokenizeResponse* response) {
  CallRecord record(context, "Tokenize", log_, calls_);
  const absl::StatusOr<const ServedModel*> model = models_->Find(request->model());
  if (!model.ok()) return FinishNow(context, std::move(record), model.status());
  record.set_model((*model)->card.name);
  return FinishNow(context, std::move(record), TokenizeInto(**model, *request, response));
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const v1::DetokenizeRequest* request,
                                                        v1::DetokenizeResponse* response) {
  CallRecord record(context, "Detokenize", log_, calls_);
  const absl::StatusOr<const ServedModel*> model = models_->Find(request->model());
  if (!model.ok()) return FinishNow(context, std::move(record), model.status());
  record.set_model((*model)->card.name);
  return FinishNow(context, std::move(record), DetokenizeInto(**model, *request, response));
}

grpc::ServerUnaryReactor* GenerationService::ListModels(grpc::CallbackServerContext* context,
                                                        const v1::ListModelsRequest*,
                                                        v1::ListModelsResponse* response) {
  CallRecord record(context, "ListModels", log_, calls_);
  const std::vector<ServedModel>* models = models_->models();
  if (models == nullptr) {
    return FinishNow(context, std::move(record),
                     absl::UnavailableError("the server is still loading its models"));
  }
  for (const ServedModel& model : *models) DescribeModel(model, response->add_models());
  return FinishNow(context, std::move(record), absl::OkStatus());
}

grpc::ServerUnaryReactor* GenerationService::GetModel(grpc::CallbackServerContext* context,
                                                      const v1::GetModelRequest* request,
                                                      v1::ModelInfo* response) {
  CallRecord record(context, "GetModel", log_, calls_);
  const absl::StatusOr<const ServedModel*> model = models_->Find(request->model());
  if (!model.ok()) return FinishNow(context, std::move(record), model.status());
  record.set_model((*model)->card.name);
  DescribeModel(**model, response);
  return FinishNow(context, std::move(record), absl::OkStatus());
}

}  // namespace normserve::rpc
