// SPDX-License-Identifier: Apache-2.0
// Lets CLI11 read its options from YAML: one key per flag, by the flag's long name.
#pragma once

#include <CLI/CLI.hpp>
#include <istream>
#include <string>
#include <vector>

namespace normserve::app {

// A value is a scalar, a list (a flag given several times), or a map (NAME=VALUE flags). CLI11 owns
// it.
class YamlConfig final : public CLI::Config {
 public:
  // `app` has the flags that there are; it outlives this.
  explicit YamlConfig(const CLI::App* app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;
  // Not offered: --help says what there is.
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

 private:
  const CLI::App* const app_;
};

}  // namespace normserve::app
