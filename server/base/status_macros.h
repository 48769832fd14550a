// SPDX-License-Identifier: Apache-2.0
// Early return on a failed absl::Status. Errors are values here: our code throws nothing.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define NS_RETURN_IF_ERROR(expr)                \
  do {                                          \
    ::absl::Status ns_status_ = (expr);         \
    if (!ns_status_.ok()) return ns_status_;    \
  } while (false)

#define NS_CONCAT_INNER_(a, b) a##b
#define NS_CONCAT_(a, b) NS_CONCAT_INNER_(a, b)
#define NS_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                              \
  if (!var.ok()) return std::move(var).status();  \
  lhs = std::move(var).value()

// NS_ASSIGN_OR_RETURN(auto x, F()); where F returns a StatusOr.
#define NS_ASSIGN_OR_RETURN(lhs, expr) \
  NS_ASSIGN_OR_RETURN_IMPL_(NS_CONCAT_(ns_status_or_, __LINE__), lhs, expr)
