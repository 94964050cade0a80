// What this processor can do at best with one thread: functions that cpu_floor.py compiles for an instruction set, calls and times.
#include "phase.h"
#include "simd.h"

using namespace longscan::LONGSCAN_ISA;

template <class Function> static void map(const float* x, float* y, int64_t count, int64_t repeats, Function function) {
  for (int64_t i = 0; i < repeats; i++) {
    for (int64_t j = 0; j < count; j += lanes<float>) store(y + j, function(load(x + j)));
    asm volatile("" ::: "memory");  // the compiler may not leave a repetition out
  }
}

extern "C" void exponentials(const float* x, float* y, int64_t count, int64_t repeats) {
  map(x, y, count, repeats, [](Floats v) { return exp2_bounded(v); });
}

extern "C" void sines(const float* x, float* y, int64_t count, int64_t repeats) {
  map(x, y, count, repeats, [](Floats v) {
    const SinCos<float> both = sincos_half_turn(v);
    return both.sin + both.cos;
  });
}

// `repeats` rounds of fused multiplications and additions of whole vectors that do not depend on each other. Returns their number.
extern "C" int64_t multiply_adds(const float* x, float* y, int64_t, int64_t repeats) {
  const Floats factor = load(x), term = factor * 0.5f;
  Floats a = term, b = a + term, c = b + term, d = c + term, e = d + term, f = e + term, g = f + term, h = g + term;
  for (int64_t i = 0; i < repeats; i++) {
    a = a * factor + term, b = b * factor + term, c = c * factor + term, d = d * factor + term;
    e = e * factor + term, f = f * factor + term, g = g * factor + term, h = h * factor + term;
  }
  store(y, a + b + c + d + e + f + g + h);
  return repeats * 8 * lanes<float>;
}
