// The elementary functions of csrc/simd.h on arrays. Built and called by test_native_math.py, once per instruction set.
#include "simd.h"

namespace longscan::LONGSCAN_ISA {

template <class T, class Function> static void map(const T* x, T* y, int64_t count, Function function) {
  for (int64_t i = 0; i < count; i += lanes<T>) {
    const int n = count - i < lanes<T> ? int(count - i) : lanes<T>;
    store(y + i, function(load(x + i, n)), n);
  }
}

}  // namespace longscan::LONGSCAN_ISA

using namespace longscan::LONGSCAN_ISA;

#define PROBE(name, expression)                                                                             \
  extern "C" void name##_float32(const float* x, float* y, int64_t count) {                                 \
    map(x, y, count, [](Vec<float> value) { return expression; });                                          \
  }                                                                                                         \
  extern "C" void name##_float64(const double* x, double* y, int64_t count) {                               \
    map(x, y, count, [](Vec<double> value) { return expression; });                                         \
  }

PROBE(probe_exp, exp(value))
PROBE(probe_exp2, exp2(value))
PROBE(probe_softplus, softplus(value))
PROBE(probe_sigmoid, sigmoid(value))
PROBE(probe_silu, silu(value))
PROBE(probe_sin, sincos(value).sin)
PROBE(probe_cos, sincos(value).cos)
