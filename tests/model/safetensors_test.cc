// SPDX-License-Identifier: Apache-2.0
// Crafted safetensors files: each must be refused with one sentence that names file and tensor, and
// none may be read past its end (run it under the address sanitizer too).
#include "model/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "model/crafted_checkpoint.h"

namespace normserve::model {
namespace {

using testing::HasSubstr;

struct BadFile {
  const char* name;
  std::string bytes;
  const char* expected;  // part of the message besides the file's name
};

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

std::string LengthOnly(uint64_t length) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<size_t>(i)] = static_cast<char>(length >> (8 * i));
  return bytes;
}

std::vector<BadFile> BadFiles() {
  const std::string four(4, '\0');
  const auto one = [&](const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
    return SafetensorsBytes(Entry(dtype, shape, offsets), four);
  };
  return {
      {"Empty", "", "0 bytes"},
      {"ShorterThanItsLengthField", "abc", "3 bytes"},
      {"HeaderLengthBeyondTheFile", LengthOnly(1000), "header length is 1000"},
      {"HugeHeaderLength", LengthOnly(~uint64_t{0}) + "{}", "header length is 18446744073709551615"},
      {"HeaderLengthThatWrapsWhenAdded", LengthOnly(~uint64_t{0} - 7) + "{}", "header length is"},
      {"NotJson", SafetensorsBytes("nonsense", ""), "not a JSON object"},
      {"NotAnObject", SafetensorsBytes("[1]", ""), "not a JSON object"},
      {"DeepNesting", SafetensorsBytes(std::string(100000, '['), ""), "nested deeper"},
      {"OffsetsBeyondTheData", one("F32", "[1000,1000]", "[0,4000000]"), "tensor w"},
      {"ReversedOffsets", one("F32", "[1]", "[4,0]"), "tensor w"},
      {"SpanOfAnotherShape", one("F32", "[2]", "[0,4]"), "its shape [2] of F32 does not"},
      {"SpanOfAnotherDtype", one("F16", "[1]", "[0,4]"), "tensor w"},
      {"ShapeThatWraps", one("F32", "[4294967296,4294967296]", "[0,4]"), "63 bits"},
      {"ShapeThatWrapsToItsSpan", one("F32", "[9223372036854775807,3]", "[0,4]"), "63 bits"},
      {"BytesThatWrap", one("F32", "[4611686018427387905]", "[0,4]"), "tensor w"},
      {"NegativeSize", one("F32", "[-1]", "[0,4]"), "not an integer >= 0"},
      {"FractionalSize", one("F32", "[1.0]", "[0,4]"), "not an integer >= 0"},
      {"NegativeOffset", one("F32", "[1]", "[-4,0]"), "tensor w"},
      {"OffsetAboveSixtyFourBits", one("F32", "[1]", "[0,36893488147419103232]"), "tensor w"},
      {"ThreeOffsets", one("F32", "[1]", "[0,4,4]"), "data_offsets"},
      {"UnknownDtype", one("F31", "[1]", "[0,4]"), "unknown dtype \"F31\""},
      {"NoDtype", SafetensorsBytes(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", four), "no dtype"},
      {"NoShape", SafetensorsBytes(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", four), "shape"},
      {"EntryIsANumber", SafetensorsBytes(R"({"w":4})", four), "tensor w"},
      {"NameTwice",
       SafetensorsBytes(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                        R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                        four + four),
       "\"w\" appears twice"},
      {"Overlap",
       SafetensorsBytes(R"({"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                        R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                        four + four),
       "tensor w overlaps"},
      {"Gap", SafetensorsBytes(Entry("F32", "[1]", "[4,8]"), four + four), "gap"},
      {"BytesNobodyUses", SafetensorsBytes(Entry("F32", "[1]", "[0,4]"), four + four), "8"},
      {"TruncatedData", SafetensorsBytes(Entry("F32", "[1]", "[0,4]"), "abc"), "tensor w"},
  };
}

class BadSafetensors : public testing::TestWithParam<BadFile> {};

TEST_P(BadSafetensors, IsRefusedByName) {
  const CraftedFolder folder;
  folder.Write("bad.safetensors", GetParam().bytes);
  const auto file = SafetensorsFile::Open(folder.path() + "/bad.safetensors");
  ASSERT_FALSE(file.ok());
  const std::string message(file.status().message());
  EXPECT_THAT(message, HasSubstr("bad.safetensors"));
  EXPECT_THAT(message, HasSubstr(GetParam().expected));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, BadSafetensors, testing::ValuesIn(BadFiles()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Safetensors, ReadsWhatItWrites) {
  const CraftedFolder folder;
  const at::Tensor f32 = at::arange(6, at::kFloat).reshape({2, 3});
  const at::Tensor bf16 = at::arange(3, at::kFloat).to(at::kBFloat16);
  folder.Write("a.safetensors",
               SafetensorsBytes({{"a", f32}, {"b", bf16}, {"c", at::empty({0}, at::kFloat)}}));
  const auto file = SafetensorsFile::Open(folder.path() + "/a.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Tensor("a")->equal(f32));
  EXPECT_TRUE((*file)->Tensor("b")->equal(bf16));
  EXPECT_EQ((*file)->Tensor("c")->numel(), 0);
  EXPECT_FALSE((*file)->Tensor("d").ok());
}

TEST(Safetensors, UnalignedTensorsAreCopied) {
  const CraftedFolder folder;
  std::string header =
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
      R"("w":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  while (header.size() % 8 != 0) header.push_back(' ');
  const float value = 2.5f;
  std::string data(1, '\0');
  data.append(reinterpret_cast<const char*>(&value), sizeof(value));
  folder.Write("u.safetensors", SafetensorsBytes(header, data));
  const auto file = SafetensorsFile::Open(folder.path() + "/u.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Tensor("w")->item<float>(), value);
  EXPECT_THAT(std::string((*file)->Tensor("b").status().message()), HasSubstr("dtype U8"));
}

// Bytes of a mapped file that this process holds, from the kernel's own account.
size_t ResidentBytesOf(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  size_t kib = 0;
  bool inside = false;
  while (std::getline(maps, line)) {
    const bool header = line.find('-') < line.find(' ');
    if (header) inside = line.size() >= path.size() && line.substr(line.size() - path.size()) == path;
    if (inside && line.rfind("Rss:", 0) == 0) kib += std::strtoull(line.c_str() + 4, nullptr, 10);
  }
  return kib * 1024;
}

// A checkpoint is read tensor by tensor into the kernels' own layout: held twice, it would need twice
// the memory.
TEST(Safetensors, ReleasedPagesAreNoLongerHeldAndReadTheSame) {
  constexpr int64_t kElements = int64_t{1} << 20;
  const CraftedFolder folder;
  folder.Write("model.safetensors", SafetensorsBytes(Tensors{{"w", at::arange(kElements, at::kFloat)}}));
  const std::string path = std::filesystem::canonical(folder.path() + "/model.safetensors");
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto w = (*file)->Tensor("w");
  ASSERT_TRUE(w.ok()) << w.status();
  const double sum = w->sum(at::kDouble).item<double>();
  ASSERT_GE(ResidentBytesOf(path), size_t{kElements} * sizeof(float));
  (*file)->ReleasePages();
  EXPECT_EQ(ResidentBytesOf(path), 0u);
  EXPECT_EQ(w->sum(at::kDouble).item<double>(), sum);
}

}  // namespace
}  // namespace normserve::model
