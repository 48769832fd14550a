// SPDX-License-Identifier: Apache-2.0
// Flags and config file: precedence, and errors that name what is wrong.
#include "app/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace normserve::app {
namespace {

using ::testing::HasSubstr;

ParsedCommandLine Parse(std::vector<std::string> arguments) {
  std::vector<const char*> argv = {"normserve"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return ParseCommandLine(static_cast<int>(argv.size()), argv.data());
}

std::string ConfigFile(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/options_test.yaml";
  std::ofstream(path) << text;
  return path;
}

TEST(OptionsTest, DefaultsServeOneModel) {
  const ParsedCommandLine parsed = Parse({"--model", "a=dir"});
  ASSERT_TRUE(parsed.options) << parsed.error;
  EXPECT_EQ(parsed.options->command, Command::kServe);
  ASSERT_EQ(parsed.options->models.size(), 1u);
  EXPECT_EQ(parsed.options->models[0].name, "a");
  EXPECT_EQ(parsed.options->models[0].directory, "dir");
  EXPECT_EQ(parsed.options->dtype, "auto");
  EXPECT_EQ(parsed.options->kv_cache_dtype, "auto");
  EXPECT_TRUE(parsed.options->prefix_cache);
  EXPECT_FALSE(parsed.options->kv_cache_tokens);
}

TEST(OptionsTest, NamesHaveRoomForOwnersAndVersions) {
  for (const std::string& name : {std::string("meta/Llama-3.1_8B:v2"), std::string(128, 'z')}) {
    const ParsedCommandLine parsed = Parse({"--model", name + "=d"});
    ASSERT_TRUE(parsed.options) << parsed.error;
    EXPECT_EQ(parsed.options->models[0].name, name);
  }
}

TEST(OptionsTest, FlagsOfSeveralModels) {
  const ParsedCommandLine parsed =
      Parse({"--model", "a=d1", "--model", "b=d=2", "--norm-type", "b=lns", "--bhyt-seq-len",
             "a=10", "--no-prefix-cache", "--kv-cache-memory", "1.5G", "--check"});
  ASSERT_TRUE(parsed.options) << parsed.error;
  EXPECT_EQ(parsed.options->command, Command::kCheck);
  EXPECT_EQ(parsed.options->models[1].directory, "d=2");
  EXPECT_EQ(parsed.options->norm_types.at("b"), "lns");
  EXPECT_EQ(parsed.options->bhyt_seq_lens.at("a"), 10);
  EXPECT_FALSE(parsed.options->prefix_cache);
  EXPECT_EQ(parsed.options->kv_cache_memory_bytes, uint64_t{3} << 29);
}

TEST(OptionsTest, TheCommandLineWinsOverTheConfigFile) {
  const std::string path = ConfigFile(
      "model: {a: d1, b: d2}\n"
      "dtype: bfloat16\n"
      "kv-cache-dtype: int8\n"
      "max-running: 7\n"
      "no-prefix-cache: true\n"
      "norm-type: [a=lns]\n");
  const ParsedCommandLine config = Parse({"--config", path});
  ASSERT_TRUE(config.options) << config.error;
  EXPECT_EQ(config.options->models.size(), 2u);
  EXPECT_EQ(config.options->dtype, "bfloat16");
  EXPECT_EQ(config.options->kv_cache_dtype, "int8");
  EXPECT_EQ(config.options->max_running, 7u);
  EXPECT_FALSE(config.options->prefix_cache);
  EXPECT_EQ(config.options->norm_types.at("a"), "lns");
  const ParsedCommandLine both =
      Parse({"--config", path, "--max-running", "9", "--dtype", "float32", "--kv-cache-dtype", "auto"});
  ASSERT_TRUE(both.options) << both.error;
  EXPECT_EQ(both.options->max_running, 9u);
  EXPECT_EQ(both.options->dtype, "float32");
  EXPECT_EQ(both.options->kv_cache_dtype, "auto");
  EXPECT_EQ(both.options->models.size(), 2u);
}

TEST(OptionsTest, SimdComesFromTheEnvironmentLast) {
  setenv("NORMSERVE_SIMD", "SSE4", 1);
  EXPECT_EQ(Parse({"--model", "a=d"}).options->simd, "SSE4");
  EXPECT_EQ(Parse({"--model", "a=d", "--simd", "AVX2"}).options->simd, "AVX2");
  EXPECT_EQ(Parse({"--model", "a=d", "--simd", "avx2"}).options->simd, "AVX2");
  unsetenv("NORMSERVE_SIMD");
  EXPECT_EQ(Parse({"--model", "a=d"}).options->simd, "");
}

TEST(OptionsTest, ErrorsNameTheFlagOrKey) {
  const struct {
    std::vector<std::string> arguments;
    const char* said;
  } cases[] = {
      {{}, "--model NAME=DIR"},
      {{"--model", "a"}, "--model: 'a' is not NAME=DIR"},
      {{"--model", "a=d", "--model", "a=e"}, "the name 'a' is given twice"},
      {{"--model", "a=d", "--bogus"}, "--bogus: no such flag; --help"},
      {{"--modle", "a=d"}, "--modle: no such flag (did you mean --model?)"},
      {{"--model", "a=d", "--trheads=4"}, "(did you mean --threads?)"},
      {{"inspect", "d", "--nrm-type", "x"}, "(did you mean --norm-type?)"},
      // CLI11 before 2.4 says "range 0 to 4096", later "range [0 - 4096]".
      {{"--model", "a=d", "--threads", "abc"}, "--threads: Value abc not in range"},
      {{"--model", "a=d", "--threads", "abc"}, "4096"},
      {{"--model", "a b=d"}, "--model: the name 'a b'"},
      {{"--model", "a\nb=d"}, "--model: the name 'a\\nb'"},
      {{"--model", "\xC3\xA9=d"}, "allowed: 1 to 128 letters, digits, and . _ - : /"},
      {{"--model", std::string(129, 'a') + "=d"}, "(129 bytes)"},
      {{"--model", "a=d", "--kv-cache-tokens", "99999999999"}, "1 to 2147483647"},
      {{"--config", "/dev/zero"}, "--config: /dev/zero: is not a regular file"},
      {{"--config", "/"}, "--config: /: is not a regular file"},
      {{"--model", "a=d", "--dtype", "int8"}, "--dtype"},
      {{"--model", "a=d", "--kv-cache-dtype", "int4"}, "--kv-cache-dtype: int4 not in {auto,int8}"},
      {{"inspect", "d", "--kv-cache-dtype", "float32"}, "--kv-cache-dtype: float32 not in {auto,int8}"},
      {{"--model", "a=d", "--norm-type", "b=lns"}, "'b' is not the name of a --model"},
      {{"--model", "a=d", "--bhyt-seq-len", "a=x"}, "--bhyt-seq-len a: 'x'"},
      {{"--model", "a=d", "--block-size", "24"}, "--block-size: 24"},
      {{"--model", "a=d", "--kv-cache-tokens", "0"}, "--kv-cache-tokens: '0'"},
      {{"--model", "a=d", "--kv-cache-memory", "lots"}, "--kv-cache-memory: 'lots'"},
      {{"--model", "a=d", "--kv-cache-memory", "1G", "--kv-cache-tokens", "64"}, "--kv-cache"},
      {{"--model", "a=d", "--max-running", "0"}, "--max-running"},
      {{"--config", "/no/such/file"}, "--config"},
      {{"inspect"}, "DIR"},
  };
  for (const auto& c : cases) {
    const ParsedCommandLine parsed = Parse(c.arguments);
    EXPECT_FALSE(parsed.options) << c.said;
    EXPECT_EQ(parsed.exit_code, 2) << c.said;
    EXPECT_THAT(parsed.error, HasSubstr(c.said));
    EXPECT_EQ(parsed.error.find('\n'), std::string::npos) << parsed.error;
  }
}

TEST(OptionsTest, ConfigErrorsNameTheKey) {
  const struct {
    const char* text;
    const char* said;
  } cases[] = {
      {"max-runing: 3\n", "'max-runing'"},
      {"config: other.yaml\n", "'config'"},
      {"max-running: x\n", "--max-running"},
      {"dtype: {a: [b]}\n", "'dtype'"},
      {"- a\n", "a map"},
      {"model: [a=d\n", "--config"},
  };
  for (const auto& c : cases) {
    const ParsedCommandLine parsed = Parse({"--model", "a=d", "--config", ConfigFile(c.text)});
    EXPECT_FALSE(parsed.options) << c.text;
    EXPECT_THAT(parsed.error, HasSubstr(c.said)) << c.text;
  }
}

TEST(OptionsTest, HelpShowsEveryFlagAndVersionOneLine) {
  const ParsedCommandLine help = Parse({"--help"});
  const std::string about = help.out.substr(0, help.out.find("--model"));
  for (const char* family : {"BHyT", "SimpleGPT", "LNS", "Peri-LN", "DyT", "Llama", "nanoGPT"}) {
    EXPECT_THAT(about, HasSubstr(family));
  }
  EXPECT_EQ(help.exit_code, 0);
  for (const char* flag : {"--model",
                           "--listen",
                           "--metrics-listen",
                           "--device",
                           "--dtype",
                           "--ready-file",
                           "--config",
                           "--norm-type",
                           "--bhyt-seq-len",
                           "--fold",
                           "--block-size",
                           "--kv-cache-dtype",
                           "--kv-cache-tokens",
                           "--kv-cache-memory",
                           "--max-step-tokens",
                           "--max-running",
                           "--max-waiting",
                           "--max-waiting-tokens",
                           "--no-prefix-cache",
                           "--default-max-new-tokens",
                           "--threads",
                           "--simd",
                           "--log-level",
                           "--log-prompts",
                           "--drain-timeout",
                           "--check",
                           "inspect"}) {
    EXPECT_THAT(help.out, HasSubstr(flag));
  }
  EXPECT_THAT(Parse({"--version"}).out, HasSubstr("normserve "));
}

TEST(OptionsTest, InspectTakesOneFolder) {
  const ParsedCommandLine parsed =
      Parse({"inspect", "models/x", "--json", "--norm-type", "lns", "--bhyt-seq-len", "48"});
  ASSERT_TRUE(parsed.options) << parsed.error;
  EXPECT_EQ(parsed.options->command, Command::kInspect);
  EXPECT_TRUE(parsed.options->inspect_json);
  ASSERT_EQ(parsed.options->models.size(), 1u);
  EXPECT_EQ(parsed.options->models[0].directory, "models/x");
  EXPECT_EQ(parsed.options->norm_types.at("x"), "lns");
  EXPECT_EQ(parsed.options->bhyt_seq_lens.at("x"), 48);
}

}  // namespace
}  // namespace normserve::app
