// SPDX-License-Identifier: Apache-2.0
// The small parts of starting: sizes, generation_config.json, the ready file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "app/byte_size.h"
#include "app/cache_size.h"
#include "app/generation_config.h"
#include "app/machine.h"
#include "app/ready_file.h"

namespace normserve::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string NewFolder(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path.string();
}

TEST(ByteSizeTest, SuffixesArePowersOf1024) {
  EXPECT_EQ(*ParseByteSize("1048576"), 1048576u);
  EXPECT_EQ(*ParseByteSize("64K"), 65536u);
  EXPECT_EQ(*ParseByteSize("2MiB"), 2u << 20);
  EXPECT_EQ(*ParseByteSize("1.5GB"), uint64_t{3} << 29);
  for (const char* bad : {"", "G", "-1", "0", "1X", "1e400", "nan", "12 34"}) {
    EXPECT_FALSE(ParseByteSize(bad).ok()) << bad;
  }
  EXPECT_EQ(FormatByteSize(512), "512 B");
  EXPECT_EQ(FormatByteSize(uint64_t{3} << 29), "1.5 GiB");
}

CacheRequest SmallModel() {
  CacheRequest request;
  request.bytes_per_token = 1024;
  request.block_size = 32;
  request.max_context_tokens = 500;
  request.max_running = 4;
  ShareMainMemory(uint64_t{1} << 30, 0, &request);
  return request;
}

TEST(CacheSizeTest, TheDefaultIsWhatRunsAtOnceWithinAQuarterOfFreeMemory) {
  CacheRequest request = SmallModel();
  EXPECT_EQ(*CacheBlocks(request), 64u);  // 4 contexts of 16 blocks
  ShareMainMemory(4 * 10 * 32 * 1024, 0, &request);
  EXPECT_EQ(*CacheBlocks(request), 10u);
  ShareMainMemory(1000, 0, &request);
  EXPECT_FALSE(CacheBlocks(request).ok());
}

TEST(CacheSizeTest, OnAGpuTheDefaultIsWhatIsLeftOfItsShare) {
  constexpr uint64_t kGib = uint64_t{1} << 30;
  CacheRequest request = SmallModel();
  request.max_running = 1 << 20;  // wants more than there is
  // 70 of 100 GiB are the share, 20 are used and 10 are buffers: 40 for this model and one to come.
  ShareDeviceMemory({80 * kGib, 100 * kGib}, 0.7, 10 * kGib, 1, &request);
  EXPECT_EQ(uint64_t{*CacheBlocks(request)} * 32 * 1024, 20 * kGib);
  ShareDeviceMemory({80 * kGib, 100 * kGib}, 0.2, 10 * kGib, 0, &request);
  EXPECT_EQ(std::string(CacheBlocks(request).status().message()),
            "--memory-fraction 0.2 of 100.0 GiB, of which 30.0 GiB are used: holds no KV cache block; one of 32 "
            "tokens takes 32.0 KiB");
  // A size asked for by flag may take what is free beside the buffers.
  request.memory_bytes = 71 * kGib;
  EXPECT_THAT(std::string(CacheBlocks(request).status().message()), HasSubstr("more than the free memory of 70.0 GiB"));
}

TEST(CacheSizeTest, FlagsDecideAndAreChecked) {
  CacheRequest request = SmallModel();
  request.tokens = 33;
  EXPECT_EQ(*CacheBlocks(request), 2u);
  request.tokens.reset();
  request.memory_bytes = 100 * 1024;
  EXPECT_EQ(*CacheBlocks(request), 3u);
  request.memory_bytes = uint64_t{2} << 30;
  EXPECT_THAT(std::string(CacheBlocks(request).status().message()), HasSubstr("--kv-cache-memory"));
  // What it would take and what there is room for: 1 GiB at 1 KiB per token.
  request.memory_bytes.reset();
  request.tokens = uint64_t{1} << 30;
  EXPECT_EQ(std::string(CacheBlocks(request).status().message()),
            "--kv-cache-tokens 1073741824: takes 1.0 TiB, more than the free memory of 1.0 GiB; "
            "allowed: at most 1048576 tokens");
  request.bytes_per_token = uint64_t{1} << 50;  // no number of bytes overflows
  EXPECT_FALSE(CacheBlocks(request).ok());
  request = SmallModel();
  request.memory_bytes = 1024;
  EXPECT_THAT(std::string(CacheBlocks(request).status().message()), HasSubstr("no KV cache block"));
}

TEST(MachineTest, SaysSomethingPlausible) {
  EXPECT_GT(FreeMemoryBytes(), uint64_t{1} << 20);
  EXPECT_GE(UsableCores(), 1);
  const ResidentBytes before = ReadResidentBytes();
  EXPECT_GT(before.now, uint64_t{1} << 20);
  EXPECT_GE(before.peak, before.now);
  const std::vector<char> touched(size_t{32} << 20, 'x');
  EXPECT_GE(ReadResidentBytes().now, before.now + touched.size() / 2);
}

// One file of a CPU's topology.
void WriteTopology(const std::string& folder, int cpu, const std::string& file, int value) {
  const std::filesystem::path path = std::filesystem::path(folder) / ("cpu" + std::to_string(cpu)) / "topology";
  std::filesystem::create_directories(path);
  std::ofstream(path / file) << value << "\n";
}

TEST(MachineTest, RealCoresAreTakenBeforeTheirSiblings) {
  const std::string folder = NewFolder("cpu_topology");
  // Two packages of one core with two threads, numbered 0 and 1, 2 and 3.
  for (const int cpu : {0, 1, 2, 3}) {
    WriteTopology(folder, cpu, "physical_package_id", cpu / 2);
    WriteTopology(folder, cpu, "core_id", 0);
  }
  EXPECT_THAT(CpusToPin(folder, {0, 1, 2, 3}), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(CpusToPin(folder, {1, 2, 3}), ElementsAre(1, 2, 3));
  EXPECT_THAT(CpusToPin(folder, {7, 9}), ElementsAre(7, 9));  // the system says nothing of them
}

absl::StatusOr<rpc::GenerationDefaults> Defaults(const std::string& json) {
  const std::string folder = NewFolder("generation_config_test");
  std::ofstream(folder + "/generation_config.json") << json;
  return LoadGenerationDefaults(folder);
}

TEST(GenerationConfigTest, ReadsWhatRequestsDefaultTo) {
  const auto defaults = Defaults(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 40, "top_p": 0.9, "min_p": 0.1,
          "repetition_penalty": 1.1, "max_new_tokens": 12, "max_length": 4096,
          "eos_token_id": [1, 2], "transformers_version": "4.51", "num_beams": null})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_TRUE(defaults->do_sample);
  EXPECT_EQ(defaults->temperature, 0.6f);
  EXPECT_EQ(defaults->top_k, 40u);
  EXPECT_EQ(defaults->top_p, 0.9f);
  EXPECT_EQ(defaults->min_p, 0.1f);
  EXPECT_EQ(defaults->repetition_penalty, 1.1f);
  EXPECT_EQ(defaults->max_new_tokens, 12u);
  EXPECT_EQ(defaults->max_length, 4096u);
}

TEST(GenerationConfigTest, AbsentFileAndAbsentKeysAreNoDefaults) {
  const auto none = LoadGenerationDefaults(NewFolder("generation_config_none"));
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->do_sample);
  EXPECT_FALSE(none->temperature);
  const auto empty = Defaults(R"({"temperature": null})");
  ASSERT_TRUE(empty.ok());
  EXPECT_FALSE(empty->temperature);
}

TEST(GenerationConfigTest, FaultsNameFileAndKey) {
  for (const char* bad : {R"({"temperature": -1})", R"({"temperature": "hot"})", R"({"top_p": 0})",
                          R"({"top_k": 1.5})", R"({"top_k": -3})", R"({"max_new_tokens": 0})",
                          R"({"do_sample": "yes"})", R"({"repetition_penalty": 0})"}) {
    const absl::Status status = Defaults(bad).status();
    EXPECT_FALSE(status.ok()) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("generation_config.json: key '")) << bad;
  }
  EXPECT_THAT(std::string(Defaults("[1").status().message()), HasSubstr("not a JSON object"));
}

TEST(GenerationConfigTest, AFifoIsRefusedAndNotWaitedFor) {
  const std::string folder = NewFolder("generation_config_fifo");
  ASSERT_EQ(mkfifo((folder + "/generation_config.json").c_str(), 0600), 0);
  EXPECT_THAT(std::string(LoadGenerationDefaults(folder).status().message()),
              HasSubstr("generation_config.json: is not a regular file"));
}

TEST(ReadyFileTest, IsWholeAndReplaced) {
  const std::string path = NewFolder("ready_file_test") + "/ready.json";
  ASSERT_TRUE(WriteReadyFile(path, 12, 34).ok());
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), "{\"grpc_port\": 12, \"metrics_port\": 34}\n");
  RemoveReadyFile(path);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THAT(std::string(WriteReadyFile("/no/such/folder/x", 1, 2).message()),
              HasSubstr("--ready-file /no/such/folder/x"));
}

}  // namespace
}  // namespace normserve::app
