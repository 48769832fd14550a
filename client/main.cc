// SPDX-License-Identifier: Apache-2.0
// normserve-client: parses the command line and runs one command. Exit code 0 is success, 1 a
// failed call or run (the gRPC code and message on standard error), 2 a faulty command line.
#include <cstdio>

#include "CLI/CLI.hpp"
#include "client/generate_command.h"
#include "client/health_command.h"
#include "client/load_command.h"
#include "client/score_command.h"

namespace normserve::client {
namespace {

// A message may have line breaks in it (gRPC's own do): the error stays one line.
int ExitCode(const absl::Status& status) {
  if (status.ok()) return 0;
  std::string message(status.message());
  for (char& c : message) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::fprintf(stderr, "error: %s: %s\n", CodeName(status.code()).c_str(), message.c_str());
  return 1;
}

int Main(int argc, char** argv) {
  CLI::App app("Client and load generator of normserve", "normserve-client");
  app.require_subcommand(1);
  GenerateOptions generate;
  ConnectionOptions health;
  ScoreOptions score;
  LoadOptions load;
  const CLI::App* generate_command = AddGenerateCommand(&app, &generate);
  const CLI::App* health_command = AddHealthCommand(&app, &health);
  const CLI::App* score_command = AddScoreCommand(&app, &score);
  AddLoadCommand(&app, &load);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11's way to say --help or a bad flag
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (generate_command->parsed()) return ExitCode(RunGenerate(generate));
  if (health_command->parsed()) return ExitCode(RunHealth(health));
  if (score_command->parsed()) return ExitCode(RunScore(score));
  return ExitCode(RunLoad(load));
}

}  // namespace
}  // namespace normserve::client

int main(int argc, char** argv) { return normserve::client::Main(argc, argv); }
