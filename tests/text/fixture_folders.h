// SPDX-License-Identifier: Apache-2.0
// The tokenizer folders that tests go through: one of every kind. fixtures/README.md says what they
// are.
#pragma once

#include <string>

#include "gtest/gtest.h"

namespace normserve::text {

inline constexpr const char* kFixtureFolders[] = {
    "llama2", "llama2_options", "gpt2", "llama3", "llama3_json", "llama2_json", "metaspace_json"};

inline std::string FixturePath(const std::string& name) { return "text/fixtures/" + name; }

inline std::string ParamName(const testing::TestParamInfo<const char*>& info) { return info.param; }

}  // namespace normserve::text
