// SPDX-License-Identifier: Apache-2.0
#include "app/unexpected_argument.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace normserve::app {
namespace {

// Steps from one text to the other, each of one character more, less or changed.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string UnexpectedArgument(const CLI::App& app) {
  constexpr size_t kLikely = 2;
  const bool inspect = app.got_subcommand("inspect");
  const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
  const std::string given = rest.empty() ? "" : rest.front();
  std::string error = absl::StrCat(absl::CEscape(given), ": no such flag");
  std::pair<size_t, std::string> nearest(kLikely + 1, "");
  const CLI::App& of = inspect ? *app.get_subcommand("inspect") : app;
  for (const CLI::Option* option : of.get_options()) {
    const std::string name = "--" + option->get_single_name();
    nearest = std::min(nearest, {EditDistance(given.substr(0, given.find('=')), name), name});
  }
  absl::StrAppend(&error, nearest.first <= kLikely ? " (did you mean " + nearest.second + "?)" : "",
                  "; --help lists them");
  return error;
}

}  // namespace normserve::app
