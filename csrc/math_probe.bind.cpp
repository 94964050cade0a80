#include "bindings.h"
#include "math_probe.h"

namespace longscan {

void bind_math_probe(nb::module_& module) {
  module.def(
      "math_probe",
      [](const std::string& name, Pointer x, Pointer y, int64_t count, bool is_double) {
        static const char* const names[] = {"exp", "exp2", "softplus", "sigmoid", "silu", "sin", "cos"};
        for (int i = 0; i < 7; i++)
          if (name == names[i]) return math_probe({MathFunction(i), in(x), out(y), count, is_double});
        throw nb::value_error("unknown function");
      },
      "name"_a, "x"_a, "y"_a, "count"_a, "is_double"_a, "An elementary function of csrc/simd.h on an array, for accuracy tests.");
}

}  // namespace longscan
