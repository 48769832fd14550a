// SPDX-License-Identifier: Apache-2.0
// Every kind of tokenizer against what its reference implementation said (tests/text/fixtures), and
// what a folder's files decide.
#include "text/tokenizer.h"

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "text/fixture_folders.h"
#include "text/folder_under_test.h"

namespace normserve::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Ids = std::vector<uint32_t>;

std::unique_ptr<Tokenizer> Load(const std::string& folder) {
  auto loaded = LoadTokenizer(folder);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? std::move(*loaded) : nullptr;
}

class Reference : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    tokenizer_ = Load(FixturePath(GetParam()));
    ASSERT_NE(tokenizer_, nullptr);
    std::ifstream file(FixturePath(GetParam()) + "/cases.json");
    cases_ = nlohmann::json::parse(file);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json cases_;
};

TEST_P(Reference, SameIds) {
  EXPECT_GT(cases_["encode"].size(), 200u);
  for (const auto& item : cases_["encode"]) {
    const auto ids = tokenizer_->Encode(item["text"].get<std::string>(), false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, item["ids"].get<Ids>()) << item["text"];
  }
}

TEST_P(Reference, SameText) {
  EXPECT_GT(cases_["decode"].size(), 100u);
  for (const auto& item : cases_["decode"]) {
    const auto text = tokenizer_->Decode(item["ids"].get<Ids>(), item["skip_special"].get<bool>());
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, item["text"].get<std::string>()) << item["ids"];
  }
}

TEST_P(Reference, EncodesTheSameFromManyThreads) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const auto& item : cases_["encode"]) {
        const auto ids = tokenizer_->Encode(item["text"].get<std::string>(), false);
        if (!ids.ok() || *ids != item["ids"].get<Ids>()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(Reference, RefusesWhatIsNotUtf8OrNotAnId) {
  for (const char* text : {"\xFF", "a\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC0\x80"}) {
    EXPECT_EQ(tokenizer_->Encode(text, true).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const uint32_t size = tokenizer_->vocab_size();
  EXPECT_EQ(tokenizer_->Decode({size}, true).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer_->Decode({0xFFFFFFFF}, false).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer_->Piece(size), "");
  EXPECT_FALSE(tokenizer_->IsSpecial(0xFFFFFFFF));
  EXPECT_FALSE(tokenizer_->IsByteFallback(0xFFFFFFFF));
}

INSTANTIATE_TEST_SUITE_P(All, Reference, testing::ValuesIn(kFixtureFolders), ParamName);

TEST(LoadTokenizer, SentencePieceHasBosByDefault) {
  const auto tokenizer = Load(FixturePath("llama2"));
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  EXPECT_EQ(tokenizer->bos_id(), 1u);
  EXPECT_EQ(tokenizer->bos_text(), "<s>");
  EXPECT_THAT(tokenizer->eos_ids(), ElementsAre(2));
  EXPECT_EQ(tokenizer->EncodePrompt("a", std::nullopt)->front(), 1u);
  EXPECT_EQ(tokenizer->EncodePrompt("<s>a", std::nullopt)->size(), 2u);
  EXPECT_TRUE(tokenizer->IsByteFallback(3));
  EXPECT_EQ(tokenizer->Piece(3), "<0x00>");
}

// The SentencePiece library leaves "</s>" in a text as characters; ours makes it the token.
TEST(LoadTokenizer, SentencePieceTextOfASpecialTokenBecomesIt) {
  const auto tokenizer = Load(FixturePath("llama2"));
  const Ids a = *tokenizer->Encode("a", false);
  Ids framed = a;
  framed.push_back(2);
  framed.insert(framed.end(), a.begin(), a.end());
  EXPECT_EQ(*tokenizer->Encode("a</s>a", false), framed);
  EXPECT_EQ(*tokenizer->Decode(framed, false), "a</s>a");
  EXPECT_EQ(*tokenizer->Decode(framed, true), "a a");
}

TEST(LoadTokenizer, TiktokenHasLlama3sSpecialTokens) {
  const auto tokenizer = Load(FixturePath("llama3"));
  EXPECT_EQ(tokenizer->kind(), "tiktoken");
  const uint32_t first = tokenizer->vocab_size() - 256;
  EXPECT_EQ(tokenizer->bos_id(), first);
  EXPECT_EQ(tokenizer->bos_text(), "<|begin_of_text|>");
  EXPECT_EQ(tokenizer->Piece(first + 9), "<|eot_id|>");
  EXPECT_EQ(tokenizer->Piece(first + 255), "<|reserved_special_token_250|>");
  EXPECT_THAT(tokenizer->eos_ids(), ElementsAre(first + 1, first + 9));
  EXPECT_TRUE(tokenizer->IsSpecial(first));
  EXPECT_FALSE(tokenizer->IsSpecial(first - 1));
  EXPECT_EQ(tokenizer->EncodePrompt("a", std::nullopt)->front(), first);
  EXPECT_EQ(*tokenizer->Decode({first, first + 1}, true), "");
}

// The same file of ranks in both: config.json or the names in tokenizer_config.json tell.
TEST(LoadTokenizer, TiktokenHasLlama31sNamesWhereTheFolderIsOne) {
  const struct {
    const char* file;
    const char* text;
    bool is_31;
  } cases[] = {
      {"config.json", R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})", true},
      {"config.json", R"({"rope_scaling": {"type": "llama3"}})", true},
      {"config.json", R"({"rope_scaling": {"rope_type": "linear"}})", false},
      {"config.json", R"({"rope_scaling": null})", false},
      {"tokenizer_config.json", R"({"pad_token": "<|finetune_right_pad_id|>"})", true},
      {"tokenizer_config.json",
       R"({"added_tokens_decoder": {"128008": {"content": "<|eom_id|>"}}})", true},
      {"tokenizer_config.json",
       R"({"added_tokens_decoder": {"128008": {"content": "<|reserved_special_token_4|>"}}})",
       false},
      {"tokenizer_config.json", R"({"added_tokens_decoder": [3]})", false},
  };
  for (const auto& c : cases) {
    FolderUnderTest folder;
    folder.Copy(FixturePath("llama3") + "/tokenizer.model", "tokenizer.model");
    folder.Write(c.file, c.text);
    const auto tokenizer = Load(folder.path());
    const uint32_t first = tokenizer->vocab_size() - 256;
    EXPECT_EQ(tokenizer->Piece(first + 4), c.is_31 ? "<|finetune_right_pad_id|>"
                                                   : "<|reserved_special_token_2|>")
        << c.text;
    EXPECT_EQ(tokenizer->Piece(first + 9), "<|eot_id|>");
    if (!c.is_31) continue;
    EXPECT_EQ(tokenizer->Piece(first + 5), "<|reserved_special_token_2|>");
    EXPECT_EQ(tokenizer->Piece(first + 10), "<|python_tag|>");
    EXPECT_EQ(tokenizer->Piece(first + 255), "<|reserved_special_token_247|>");
    EXPECT_THAT(tokenizer->eos_ids(), ElementsAre(first + 1, first + 8, first + 9));
    EXPECT_EQ(*tokenizer->Encode("<|python_tag|>", false), Ids{first + 10});
  }
}

TEST(LoadTokenizer, Gpt2AddsNothing) {
  const auto tokenizer = Load(FixturePath("gpt2"));
  EXPECT_EQ(tokenizer->kind(), "gpt2");
  EXPECT_EQ(tokenizer->bos_text(), "<|endoftext|>");
  const uint32_t end = tokenizer->vocab_size() - 1;
  EXPECT_THAT(tokenizer->eos_ids(), ElementsAre(end));
  EXPECT_EQ(*tokenizer->EncodePrompt("<|endoftext|>", std::nullopt), Ids{end});
  EXPECT_EQ(*tokenizer->Encode("a", true), *tokenizer->Encode("a", false));
}

// The ids are those that tiktoken.get_encoding("gpt2") gives.
TEST(LoadTokenizer, ConfigMayNameGpt2) {
  FolderUnderTest folder;
  folder.Write("config.json", R"({"tokenizer": "gpt2"})");
  const auto tokenizer = Load(folder.path());
  EXPECT_EQ(tokenizer->kind(), "gpt2");
  EXPECT_EQ(tokenizer->vocab_size(), 50257u);
  EXPECT_THAT(*tokenizer->EncodePrompt("Hello world<|endoftext|>", std::nullopt),
              ElementsAre(15496, 995, 50256));
  EXPECT_EQ(*tokenizer->Decode({15496, 995, 50256}, true), "Hello world");
  folder.Write("config.json", R"({"tokenizer": "other"})");
  EXPECT_THAT(LoadTokenizer(folder.path()).status().ToString(), HasSubstr("\"other\""));
}

TEST(LoadTokenizer, TemplateOfTheFileAddsBos) {
  const auto tokenizer = Load(FixturePath("llama3_json"));
  const uint32_t bos = *tokenizer->bos_id();
  EXPECT_EQ(tokenizer->bos_text(), "<|begin_of_text|>");
  EXPECT_EQ(tokenizer->EncodePrompt("a", std::nullopt)->front(), bos);
  EXPECT_EQ(tokenizer->EncodePrompt("a", std::nullopt)->size(), 2u);
  EXPECT_THAT(tokenizer->eos_ids(), ElementsAre(bos + 2));
}

// The file's truncation (8) and padding (16) are for batches of training, not for a prompt.
TEST(LoadTokenizer, NeitherTruncatesNorPads) {
  const auto tokenizer = Load(FixturePath("llama3_json"));
  EXPECT_GT(tokenizer->Encode("1 2 3 4 5 6 7 8 9 10 11 12", false)->size(), 16u);
  EXPECT_EQ(tokenizer->Encode("", false)->size(), 0u);
}

TEST(LoadTokenizer, ConfigSwitchesTheTemplateOff) {
  FolderUnderTest folder;
  folder.Copy(FixturePath("llama3_json") + "/tokenizer.json", "tokenizer.json");
  folder.Write("tokenizer_config.json",
               R"({"bos_token": "<|begin_of_text|>", "add_bos_token": false})");
  EXPECT_EQ(Load(folder.path())->Encode("a", true)->size(), 1u);
  folder.Write("tokenizer_config.json",
               R"({"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
                   "add_bos_token": true, "add_eos_token": true})");
  const auto both = Load(folder.path());
  const uint32_t bos = *both->bos_id();
  const Ids ids = *both->Encode("a", true);
  EXPECT_THAT(ids, ElementsAre(bos, testing::_, bos + 2));
}

TEST(LoadTokenizer, BosIsReadOffTheTemplateWhenNoFileNamesIt) {
  FolderUnderTest folder;
  folder.Copy(FixturePath("llama3_json") + "/tokenizer.json", "tokenizer.json");
  EXPECT_EQ(Load(folder.path())->bos_text(), "<|begin_of_text|>");
}

TEST(LoadTokenizer, TokenizerJsonComesFirst) {
  FolderUnderTest folder;
  folder.Copy(FixturePath("llama2_json") + "/tokenizer.json", "tokenizer.json");
  folder.Copy(FixturePath("llama2") + "/tokenizer.model", "tokenizer.model");
  EXPECT_EQ(Load(folder.path())->kind(), "tokenizer.json");
}

TEST(LoadTokenizer, NoFilesGiveNoTokenizer) {
  FolderUnderTest folder;
  const auto loaded = LoadTokenizer(folder.path());
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(*loaded, nullptr);
}

}  // namespace
}  // namespace normserve::text
