// SPDX-License-Identifier: Apache-2.0
// See generate_command.h.
#include "client/generate_command.h"

#include <cstdio>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/flag_values.h"
#include "client/response_json.h"
#include "nlohmann/json.hpp"

namespace normserve::client {
namespace {

absl::StatusOr<v1::GenerateRequest> BuildRequest(const GenerateOptions& options) {
  v1::GenerateRequest request;
  request.set_model(options.connection.model);
  NS_RETURN_IF_ERROR(ApplyRequestFlags(options.request, &request));
  if (options.has_token_ids) {
    NS_ASSIGN_OR_RETURN(const auto ids, ParseTokenIds("--token-ids", options.token_ids));
    request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  } else if (options.has_prompt) {
    request.set_text(options.prompt);
  } else {
    NS_ASSIGN_OR_RETURN(*request.mutable_text(),
                        ReadAll(options.file.empty() ? "-" : options.file));
  }
  return request;
}

void Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// A model without a tokenizer streams ids, parted by blanks.
void PrintDelta(const v1::GenerateChunk& chunk, bool ids_only) {
  if (ids_only) {
    Print(chunk.token_ids_size() > 0 ? absl::StrJoin(chunk.token_ids(), " ") + " " : "");
  } else {
    Print(chunk.text());
  }
}

absl::Status Stream(Stub* stub, const GenerateOptions& options, const v1::GenerateRequest& request,
                    v1::GenerateResponse* response) {
  grpc::ClientContext context;
  PrepareContext(options.connection, &context);
  const auto reader = stub->GenerateStream(&context, request);
  const bool ids_only = request.has_token_ids() && request.output().omit_text();
  v1::GenerateChunk chunk;
  while (reader->Read(&chunk)) {
    AppendChunk(chunk, response);
    if (!options.json) PrintDelta(chunk, ids_only);
  }
  return FromGrpc(reader->Finish());
}

// The server refuses text from a model without a tokenizer only when text is asked for, so ask for
// ids when ids were given and the model has no tokenizer.
absl::Status OmitTextWithoutTokenizer(Stub* stub, const GenerateOptions& options,
                                      v1::GenerateRequest* request) {
  if (!request->has_token_ids()) return absl::OkStatus();
  grpc::ClientContext context;
  PrepareContext(options.connection, &context);
  v1::GetModelRequest get;
  get.set_model(request->model());
  v1::ModelInfo info;
  NS_RETURN_IF_ERROR(FromGrpc(stub->GetModel(&context, get, &info)));
  if (info.tokenizer() == "none") request->mutable_output()->set_omit_text(true);
  return absl::OkStatus();
}

}  // namespace

CLI::App* AddGenerateCommand(CLI::App* app, GenerateOptions* options) {
  CLI::App* command = app->add_subcommand("generate", "Continue one prompt, streaming its text");
  CLI::Option* prompt =
      command->add_option("prompt", options->prompt, "prompt text; absent: standard input");
  CLI::Option* file = command->add_option("--file", options->file, "read the prompt from a file");
  CLI::Option* ids = command->add_option("--token-ids", options->token_ids, "prompt as ids: 1,2,3");
  prompt->excludes(file)->excludes(ids);
  file->excludes(ids);
  command->add_flag("--json", options->json, "print one JSON object at the end");
  command->add_flag("--unary", options->unary, "call Generate instead of GenerateStream");
  AddConnectionFlags(command, &options->connection);
  AddRequestFlags(command, &options->request);
  command->callback([options, prompt, ids] {
    options->has_prompt = prompt->count() > 0;
    options->has_token_ids = ids->count() > 0;
  });
  return command;
}

absl::Status RunGenerate(const GenerateOptions& options) {
  NS_ASSIGN_OR_RETURN(v1::GenerateRequest request, BuildRequest(options));
  const auto stubs = Connect(options.connection, 1);
  Stub* stub = stubs.front().get();
  NS_RETURN_IF_ERROR(OmitTextWithoutTokenizer(stub, options, &request));
  v1::GenerateResponse response;
  absl::Status status;
  if (options.unary) {
    grpc::ClientContext context;
    PrepareContext(options.connection, &context);
    status = FromGrpc(stub->Generate(&context, request, &response));
    if (status.ok() && !options.json) {
      Print(request.output().omit_text() ? absl::StrJoin(response.token_ids(), " ")
                                         : response.text());
    }
  } else {
    status = Stream(stub, options, request, &response);
  }
  // What came before a failure has been shown: end its line, so that the error starts its own.
  if (!options.json && (status.ok() || response.token_ids_size() > 0)) Print("\n");
  if (options.json && status.ok()) Print(ToJson(response).dump() + "\n");
  return status;
}

}  // namespace normserve::client
