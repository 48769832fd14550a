// SPDX-License-Identifier: Apache-2.0
// Where LibTorch's exceptions end: a step's failure becomes a status of its requests, and the server lives.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace normserve::engine {

// RESOURCE_EXHAUSTED: the device has no memory left for this step; INTERNAL: anything else.
template <class Body>
auto EndThrows(const Body& body) -> absl::StatusOr<std::decay_t<decltype(body())>> {
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: ", error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    return absl::InternalError(absl::StrCat("LibTorch: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("exception: ", error.what()));
  }
}

}  // namespace normserve::engine
