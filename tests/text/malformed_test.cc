// SPDX-License-Identifier: Apache-2.0
// Files from outside: whatever they hold, loading ends in a tokenizer or in one sentence that names
// the file, never in a crash.
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "text/detokenizer.h"
#include "text/fixture_folders.h"
#include "text/folder_under_test.h"
#include "text/tokenizer.h"

namespace normserve::text {
namespace {

using testing::HasSubstr;

void ExpectRefused(const std::string& name, const std::string& bytes, const std::string& why) {
  FolderUnderTest folder;
  folder.Write(name, bytes);
  const auto loaded = LoadTokenizer(folder.path());
  ASSERT_FALSE(loaded.ok()) << name << " with " << bytes.substr(0, 60);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(loaded.status().ToString(), HasSubstr(folder.path() + "/" + name));
  EXPECT_THAT(loaded.status().ToString(), HasSubstr(why));
  EXPECT_EQ(loaded.status().ToString().find('\n'), std::string::npos);
}

// A tokenizer that a damaged file still makes must work as any other.
void LoadAndUse(const std::string& folder) {
  const auto loaded = LoadTokenizer(folder);
  if (!loaded.ok()) {
    EXPECT_THAT(loaded.status().ToString(), HasSubstr(folder));
    return;
  }
  if (*loaded == nullptr) return;
  const Tokenizer& tokenizer = **loaded;
  const auto ids = tokenizer.EncodePrompt("the server 日本 😀 </s><|eot_id|>  x", std::nullopt);
  if (!ids.ok()) return;
  Detokenizer detokenizer(tokenizer, true);
  for (uint32_t id : *ids) detokenizer.Append(id);
  detokenizer.Flush();
}

class Damaged : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Damaged, NeverCrashes) {
  const auto [folder_name, file] = GetParam();
  const std::string original = FolderUnderTest::Read(FixturePath(folder_name) + "/" + file);
  ASSERT_FALSE(original.empty());
  FolderUnderTest folder;
  if (std::string(file) == "vocab.json") {
    folder.Copy(FixturePath(folder_name) + "/merges.txt", "merges.txt");
  } else if (std::string(file) == "merges.txt") {
    folder.Copy(FixturePath(folder_name) + "/vocab.json", "vocab.json");
  }
  std::mt19937 random(3);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  for (int round = 0; round < 150; ++round) {
    std::string bytes = original;
    if (round % 3 == 0) bytes.resize(below(bytes.size()));
    for (size_t n = round % 3 == 0 ? 0 : 1 + below(8); n > 0; --n) {
      bytes[below(bytes.size())] =
          static_cast<char>(round % 3 == 1 ? below(256) : "019\"[{-"[below(7)]);
    }
    folder.Write(file, bytes);
    LoadAndUse(folder.path());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Damaged,
                         testing::Values(std::pair("llama2", "tokenizer.model"),
                                         std::pair("llama3", "tokenizer.model"),
                                         std::pair("llama2_options", "tokenizer.model"),
                                         std::pair("llama3_json", "tokenizer.json"),
                                         std::pair("llama2_json", "tokenizer.json"),
                                         std::pair("gpt2", "vocab.json"),
                                         std::pair("gpt2", "merges.txt")));

TEST(Malformed, TokenizerJson) {
  ExpectRefused("tokenizer.json", "", "");
  ExpectRefused("tokenizer.json", "{}", "");
  ExpectRefused("tokenizer.json", "[1, 2, 3]", "");
  ExpectRefused("tokenizer.json", std::string(100000, '['), "");
  ExpectRefused("tokenizer.json", "{\"model\":" + std::string(100000, '{'), "");
  ExpectRefused("tokenizer.json",
                R"({"version":"1.0","added_tokens":[],"model":{"type":"BPE",
                    "vocab":{"a":4000000000},"merges":[]}})",
                "4000000000");
  ExpectRefused("tokenizer.json",
                R"({"version":"1.0","added_tokens":[],"model":{"type":"BPE","dropout":0.5,
                    "vocab":{"a":0},"merges":[]}})",
                "dropout");
}

TEST(Malformed, TokenizerModel) {
  ExpectRefused("tokenizer.model", "", "no pieces");
  ExpectRefused("tokenizer.model", "version https://git-lfs.github.com/spec/v1\n", "");
  ExpectRefused("tokenizer.model", std::string(1000, '\xFF'), "");
  ExpectRefused("tokenizer.model", "YQ== 0\n", "single byte 0x00");
  ExpectRefused("tokenizer.model", "YQ== 0\nYQ== 1\n", "same bytes");
  ExpectRefused("tokenizer.model", "YQ== 4000000000\n", "not below the number of lines");
  ExpectRefused("tokenizer.model", "YQ== 0\n*** 1\n", "line 2");
  ExpectRefused("tokenizer.model", "YQ== 0\nYg== 0\n", "there twice");
  // A unigram model: one unknown piece, and the trainer's model_type absent.
  ExpectRefused("tokenizer.model", std::string("\x0A\x07\x0A\x03<a>\x18\x02", 9), "only BPE");
}

TEST(Malformed, Gpt2) {
  ExpectRefused("vocab.json", R"({"a": 0})", "without merges.txt");
  ExpectRefused("merges.txt", "a b\n", "without vocab.json");
  FolderUnderTest folder;
  folder.Write("vocab.json", R"({"a": 0})");
  folder.Write("merges.txt", "#version: 0.2\nab\n");
  EXPECT_THAT(LoadTokenizer(folder.path()).status().ToString(), HasSubstr("line 2"));
  folder.Write("merges.txt", "#version: 0.2\na b\n");
  EXPECT_FALSE(LoadTokenizer(folder.path()).ok());
}

TEST(Malformed, Configuration) {
  FolderUnderTest folder;
  folder.Copy(FixturePath("llama3_json") + "/tokenizer.json", "tokenizer.json");
  const auto error = [&](const std::string& config) {
    folder.Write("tokenizer_config.json", config);
    return LoadTokenizer(folder.path()).status().ToString();
  };
  EXPECT_THAT(error("{"), HasSubstr("tokenizer_config.json: not a JSON object"));
  EXPECT_THAT(error("[]"), HasSubstr("tokenizer_config.json: not a JSON object"));
  EXPECT_THAT(error(R"({"bos_token": 7})"), HasSubstr("bos_token must be"));
  EXPECT_THAT(error(R"({"add_bos_token": "yes"})"), HasSubstr("add_bos_token must be"));
  EXPECT_THAT(error(R"({"bos_token": "<none>"})"), HasSubstr("lacks the token \"<none>\""));
  EXPECT_THAT(error(R"({"additional_special_tokens": 3})"), HasSubstr("must be a list"));
}

TEST(Malformed, AFolderInPlaceOfAFile) {
  FolderUnderTest folder;
  std::filesystem::create_directory(folder.path() + "/tokenizer.json");
  EXPECT_THAT(LoadTokenizer(folder.path()).status().ToString(), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace normserve::text
