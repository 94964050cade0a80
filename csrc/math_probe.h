// The elementary functions of simd.h on plain arrays, for their accuracy tests.
#pragma once

#include "dispatch.h"

namespace longscan {

enum class MathFunction { exp, exp2, softplus, sigmoid, silu, sin, cos };

struct MathProbe {
  MathFunction function;
  const void* x;
  void* y;
  int64_t count;
  bool is_double;
};

}  // namespace longscan

LONGSCAN_KERNEL(math_probe, MathProbe)
