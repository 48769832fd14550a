// SPDX-License-Identifier: Apache-2.0
#include "app/ready_file.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace normserve::app {

namespace {

std::string DraftOf(const std::string& path) { return absl::StrCat(path, ".", getpid(), ".tmp"); }

absl::Status NotWritable(const std::string& path) {
  return absl::UnavailableError(absl::StrCat("--ready-file ", path, ": cannot be written"));
}

}  // namespace

absl::Status CheckReadyFile(const std::string& path) {
  const std::string draft = DraftOf(path);
  const bool writable = std::ofstream(draft).good();
  std::remove(draft.c_str());
  return writable ? absl::OkStatus() : NotWritable(path);
}

absl::Status WriteReadyFile(const std::string& path, int grpc_port, int metrics_port) {
  const std::string draft = DraftOf(path);
  std::ofstream file(draft);
  file << "{\"grpc_port\": " << grpc_port << ", \"metrics_port\": " << metrics_port << "}\n";
  file.close();
  if (!file || std::rename(draft.c_str(), path.c_str()) != 0) {
    std::remove(draft.c_str());
    return NotWritable(path);
  }
  return absl::OkStatus();
}

void RemoveReadyFile(const std::string& path) { std::remove(path.c_str()); }

}  // namespace normserve::app
