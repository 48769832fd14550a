// SPDX-License-Identifier: Apache-2.0
#include "app/yaml_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace normserve::app {
namespace {

// CLI11 takes errors of a config reader as exceptions, and ParseCommandLine catches them.
[[noreturn]] void Fail(const std::string& message) {
  throw CLI::ConversionError("--config: " + message, CLI::ExitCodes::ConversionError);
}

std::string Scalar(const std::string& key, const YAML::Node& node) {
  if (!node.IsScalar()) Fail("key '" + key + "': expected a single value here");
  return node.Scalar();
}

CLI::ConfigItem Item(const std::string& key, const YAML::Node& value) {
  CLI::ConfigItem item;
  item.name = key;
  if (value.IsSequence()) {
    for (const YAML::Node& entry : value) item.inputs.push_back(Scalar(key, entry));
  } else if (value.IsMap()) {
    for (const auto& entry : value) {
      item.inputs.push_back(Scalar(key, entry.first) + "=" + Scalar(key, entry.second));
    }
  } else {
    item.inputs.push_back(Scalar(key, value));
  }
  return item;
}

}  // namespace

std::vector<CLI::ConfigItem> YamlConfig::from_config(std::istream& input) const {
  std::vector<CLI::ConfigItem> items;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(input);
    if (documents.size() > 1) Fail("expected one document, not several parted by ---");
    if (documents.empty() || documents[0].IsNull()) return items;
    const YAML::Node& root = documents[0];
    if (!root.IsMap()) Fail("expected a map of flag names to values");
    std::set<std::string> seen;
    for (const auto& entry : root) {
      const std::string key = Scalar("", entry.first);
      // yaml-cpp keeps both, CLI11 the first: a second `model:` would be lost without a word.
      if (!seen.insert(key).second) {
        Fail("key '" + key + "': is given twice; several values are a list");
      }
      if (key == "config" || app_->get_option_no_throw("--" + key) == nullptr) {
        Fail("key '" + key + "': no flag that a config file may set; --help lists them");
      }
      // A flag of the command line also wins over what excludes it here.
      const auto rivals = app_->get_option("--" + key)->get_excludes();
      const bool overruled = std::any_of(rivals.begin(), rivals.end(),
                                         [](const CLI::Option* rival) { return rival->count() > 0; });
      if (!overruled) items.push_back(Item(key, entry.second));
    }
  } catch (const YAML::Exception& error) {
    Fail(error.what());
  }
  return items;
}

}  // namespace normserve::app
