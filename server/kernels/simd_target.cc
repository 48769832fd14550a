// SPDX-License-Identifier: Apache-2.0
// See simd_target.h.
#include "kernels/simd_target.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd_target.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <atomic>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace normserve::kernels {
namespace HWY_NAMESPACE {
int64_t TargetInUse() { return HWY_TARGET; }
}  // namespace HWY_NAMESPACE
}  // namespace normserve::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace normserve::kernels {

HWY_EXPORT(TargetInUse);

namespace {

constexpr char kDotTarget[] = "AVX3_DOT";

std::atomic<bool> dots_allowed{true};

// Whether kernels with AVX-512's dot products are compiled, allowed and below nothing better.
bool DotsInUse() {
#if HWY_ARCH_X86 && (HWY_TARGETS & HWY_AVX3)
  return dots_allowed.load(std::memory_order_relaxed) && HWY_DYNAMIC_DISPATCH(TargetInUse)() == HWY_AVX3;
#else
  return false;
#endif
}

bool CpuHasBFloat16Dot() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

bool CpuHasVnni() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

bool LimitToHighwayTarget(const char* name) {
  hwy::SetSupportedTargetsForTest(0);
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  for (int64_t rest = usable; rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    if (std::strcmp(hwy::TargetName(target), name) != 0) continue;
    // A higher bit is a lesser target.
    hwy::SetSupportedTargetsForTest(usable & ~(target - 1));
    hwy::GetChosenTarget().DeInit();
    return true;
  }
  return false;
}

}  // namespace

bool HasBFloat16Dot() { return DotsInUse() && CpuHasBFloat16Dot(); }
bool HasVnni() { return DotsInUse() && CpuHasVnni(); }

std::string SimdTargetName() {
  if (HasBFloat16Dot() || HasVnni()) return kDotTarget;
  return hwy::TargetName(HWY_DYNAMIC_DISPATCH(TargetInUse)());
}

bool LimitSimdTarget(const char* name) {
  const bool dots = std::strcmp(name, kDotTarget) == 0;
  if (dots && !CpuHasBFloat16Dot() && !CpuHasVnni()) return false;
  if (!LimitToHighwayTarget(dots ? "AVX3" : name)) return false;
  dots_allowed.store(dots, std::memory_order_relaxed);
  return true;
}

std::string SimdTargetList() {
  std::string list;
  for (int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    const std::string name = hwy::TargetName(rest & -rest);
    if (!list.empty()) list += ", ";
    if (name == "AVX3" && (CpuHasBFloat16Dot() || CpuHasVnni())) list += std::string(kDotTarget) + ", ";
    list += name;
  }
  return list;
}

}  // namespace normserve::kernels
#endif
