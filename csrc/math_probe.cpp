#include "math_probe.h"

#include "simd.h"

namespace longscan::LONGSCAN_ISA {

template <class T> static void probe(const MathProbe& a) {
  auto x = static_cast<const T*>(a.x);
  auto y = static_cast<T*>(a.y);
  for (int64_t i = 0; i < a.count; i += lanes<T>) {
    int count = a.count - i < lanes<T> ? int(a.count - i) : lanes<T>;
    Vec<T> value = load(x + i, count);
    switch (a.function) {
      case MathFunction::exp: value = exp(value); break;
      case MathFunction::exp2: value = exp2(value); break;
      case MathFunction::softplus: value = softplus(value); break;
      case MathFunction::sigmoid: value = sigmoid(value); break;
      case MathFunction::silu: value = silu(value); break;
      case MathFunction::sin: value = sincos(value).sin; break;
      case MathFunction::cos: value = sincos(value).cos; break;
    }
    store(y + i, value, count);
  }
}

void math_probe(const MathProbe& a) { a.is_double ? probe<double>(a) : probe<float>(a); }

}  // namespace longscan::LONGSCAN_ISA
