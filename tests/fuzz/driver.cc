// SPDX-License-Identifier: Apache-2.0
// Runs a libFuzzer target without libFuzzer, so that any compiler can: every seed as it is, then
// mutations of seeds for a bounded time, from a fixed seed (so that a failure is found again). A crash
// leaves its input in crash-<target>. With clang, link -fsanitize=fuzzer in place of this file.
//
// Usage: <target> SEED_DIR_OR_FILE... [--seconds N] [--seed N]
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

// Signal handlers reach the running input through these.
const Bytes* running = nullptr;

void SaveRunningInput(int signal) {
  if (running != nullptr) {
    if (FILE* file = std::fopen("crash-input", "wb")) {
      std::fwrite(running->data(), 1, running->size(), file);
      std::fclose(file);
    }
  }
  const char message[] = "fuzz driver: crashed; the input is in ./crash-input\n";
  [[maybe_unused]] const ssize_t n = write(2, message, sizeof(message) - 1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Run(const Bytes& input) {
  running = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
  running = nullptr;
}

Bytes ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

class Mutator {
 public:
  Mutator(const std::vector<Bytes>& seeds, uint64_t seed) : seeds_(seeds), random_(seed) {}

  Bytes Next() {
    Bytes input = seeds_[Below(seeds_.size())];
    const size_t edits = 1 + Below(8);
    for (size_t i = 0; i < edits; ++i) Edit(input);
    return input;
  }

 private:
  size_t Below(size_t n) { return n == 0 ? 0 : random_() % n; }

  void Edit(Bytes& input) {
    static const char* const kWords[] = {"null",  "-1", "1e309", "9223372036854775807", "18446744073709551615",
                                         "[",     "{",  "\"",    "0",                   "true",
                                         "\\ud800", "]", "}",    "4294967296",          "NaN", "-0.0"};
    const size_t at = Below(input.size() + 1);
    const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (Below(7)) {
      case 0:
        if (at < input.size()) input[at] ^= static_cast<uint8_t>(1u << Below(8));
        return;
      case 1:
        if (at < input.size()) input[at] = static_cast<uint8_t>(Below(256));
        return;
      case 2:
        input.insert(place, static_cast<uint8_t>(Below(256)));
        return;
      case 3:
        input.erase(place, place + static_cast<std::ptrdiff_t>(Below(std::min<size_t>(input.size() - at, 16) + 1)));
        return;
      case 4: {
        const std::string word = kWords[Below(std::size(kWords))];
        input.insert(place, word.begin(), word.end());
        return;
      }
      case 5:
        input.resize(at);
        return;
      default: {
        const Bytes& other = seeds_[Below(seeds_.size())];
        if (other.empty()) return;
        const size_t from = Below(other.size());
        const size_t count = Below(std::min<size_t>(other.size() - from, 64) + 1);
        input.insert(place, other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.begin() + static_cast<std::ptrdiff_t>(from + count));
      }
    }
  }

  const std::vector<Bytes>& seeds_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  double seconds = 5;
  uint64_t seed = 1;
  std::vector<Bytes> seeds;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (argument == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument)) {
        if (entry.is_regular_file()) seeds.push_back(ReadFile(entry.path()));
      }
    } else {
      seeds.push_back(ReadFile(argument));
    }
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "no seeds given\n");
    return 2;
  }
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, SaveRunningInput);
  for (const Bytes& input : seeds) Run(input);
  Mutator mutator(seeds, seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  uint64_t runs = seeds.size();
  while (std::chrono::steady_clock::now() < end) {
    const Bytes input = mutator.Next();
    Run(input);
    ++runs;
  }
  std::printf("%llu inputs, no crash\n", static_cast<unsigned long long>(runs));
  return 0;
}
