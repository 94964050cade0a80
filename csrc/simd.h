// Vectors of float or double at the width of the instruction set this translation unit is compiled for, and the elementary
// functions the kernels need on them.
//
// Every kernel file is compiled once per instruction set with LONGSCAN_ISA naming it; everything here lives in
// longscan::LONGSCAN_ISA, so that no inline function of one build can be merged by the linker with another's. For the same
// reason kernel files use no std:: templates.
//
//   Vec<T>             T is float or double; operators + - * / < > act per lane, a * b + c contracts to a fused multiply-add
//   lanes<T>           number of lanes
//   load, store        unaligned; with a count: only the first `count` lanes are touched (the others load as zero)
//   exp, exp2, softplus, sigmoid, silu, sincos, sum, min, max, round
//
// Accuracy, in units in the last place of the exact result (tests/ops/test_native_math.py measures all of them):
//   exp, exp2 2; sigmoid, silu, softplus 4; sincos: absolute error 1 unit of 1.0 for every finite argument.
// NaN in gives NaN out; overflow gives inf; results below the smallest normal number are exact to that number only.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef LONGSCAN_ISA
#error "kernel files are compiled with LONGSCAN_ISA set to the name of the instruction set"
#endif

namespace longscan::LONGSCAN_ISA {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
#elif defined(__AVX2__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;  // SSE2, NEON, or the compiler's replacement for these
#endif

template <class T> struct VectorTypes;
template <> struct VectorTypes<float> {
  typedef float type __attribute__((vector_size(VECTOR_BYTES)));
  typedef int32_t integers __attribute__((vector_size(VECTOR_BYTES)));
};
template <> struct VectorTypes<double> {
  typedef double type __attribute__((vector_size(VECTOR_BYTES)));
  typedef int64_t integers __attribute__((vector_size(VECTOR_BYTES)));
};
template <class T> using Vec = typename VectorTypes<T>::type;
template <class T> using IntVec = typename VectorTypes<T>::integers;
using Floats = Vec<float>;
using Doubles = Vec<double>;
template <class T> constexpr int lanes = VECTOR_BYTES / sizeof(T);

#define INLINE [[gnu::always_inline]] inline

// ---------------------------------------------------------------------------------------------- moving and arranging

template <class T> INLINE Vec<T> broadcast(T x) { return x - Vec<T>{}; }  // exact, -0.0 included
template <class To, class From> INLINE To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  memcpy(&out, &x, sizeof out);
  return out;
}

template <class T> INLINE Vec<T> load(const T* p) {
  Vec<T> x;
  memcpy(&x, p, sizeof x);
  return x;
}
template <class T> INLINE void store(T* p, Vec<T> x) { memcpy(p, &x, sizeof x); }

// Whole vectors go without a mask even where the instruction set has masks: masked stores are slow and cannot be read back early.
#if defined(__AVX512F__)
INLINE Floats load_masked(const float* p, __mmask16 mask) { return (Floats)_mm512_maskz_loadu_ps(mask, p); }
INLINE Doubles load_masked(const double* p, __mmask16 mask) { return (Doubles)_mm512_maskz_loadu_pd((__mmask8)mask, p); }
INLINE void store_masked(float* p, Floats x, __mmask16 mask) { _mm512_mask_storeu_ps(p, mask, (__m512)x); }
INLINE void store_masked(double* p, Doubles x, __mmask16 mask) { _mm512_mask_storeu_pd(p, (__mmask8)mask, (__m512d)x); }
template <class T> INLINE Vec<T> load(const T* p, int count) {
  return count == lanes<T> ? load(p) : load_masked(p, (__mmask16)((1u << count) - 1));
}
template <class T> INLINE void store(T* p, Vec<T> x, int count) {
  count == lanes<T> ? store(p, x) : store_masked(p, x, (__mmask16)((1u << count) - 1));
}
#else
template <class T> INLINE Vec<T> load(const T* p, int count) {
  if (count == lanes<T>) return load(p);
  T buffer[lanes<T>] = {};
  for (int i = 0; i < count; i++) buffer[i] = p[i];
  return load(buffer);
}
template <class T> INLINE void store(T* p, Vec<T> x, int count) {
  if (count == lanes<T>) return store(p, x);
  for (int i = 0; i < count; i++) p[i] = x[i];
}
#endif

// Calls body(d, count) for every vector of the numbers [first, last). `count` is a constant for whole vectors, so that their loads
// and stores have no branch.
template <class T, class Body> INLINE void for_vectors(int64_t first, int64_t last, const Body& body) {
  int64_t d = first;
  for (; d + lanes<T> <= last; d += lanes<T>) body(d, lanes<T>);
  if (d < last) body(d, int(last - d));
}

// Lane k of the result is lane i(k) of x and y, one after the other.
#if defined(__clang__)
#define LONGSCAN_SHUFFLE(x, y, i)                                                                                         \
  if constexpr (sizeof(V) / sizeof(x[0]) == 2)                                                                            \
    return __builtin_shufflevector(x, y, i(0), i(1));                                                                     \
  else if constexpr (sizeof(V) / sizeof(x[0]) == 4)                                                                       \
    return __builtin_shufflevector(x, y, i(0), i(1), i(2), i(3));                                                         \
  else if constexpr (sizeof(V) / sizeof(x[0]) == 8)                                                                       \
    return __builtin_shufflevector(x, y, i(0), i(1), i(2), i(3), i(4), i(5), i(6), i(7));                                 \
  else                                                                                                                    \
    return __builtin_shufflevector(x, y, i(0), i(1), i(2), i(3), i(4), i(5), i(6), i(7), i(8), i(9), i(10), i(11), i(12), \
                                   i(13), i(14), i(15));
#else
#define LONGSCAN_SHUFFLE(x, y, i)                                  \
  IntVec<decltype(x[0] + x[0])> index;                             \
  for (int k = 0; k < int(sizeof(V) / sizeof(x[0])); k++) index[k] = i(k); \
  return __builtin_shuffle(x, y, index);
#endif
// For complex numbers as interleaved pairs (re, im): the parts exchanged; re or im in both places.
#define LONGSCAN_EXCHANGED(k) ((k) ^ 1)
#define LONGSCAN_FIRST(k) ((k) & ~1)
#define LONGSCAN_SECOND(k) ((k) | 1)
template <class V> INLINE V swap_pairs(V x) { LONGSCAN_SHUFFLE(x, x, LONGSCAN_EXCHANGED) }
template <class V> INLINE V first_of_pairs(V x) { LONGSCAN_SHUFFLE(x, x, LONGSCAN_FIRST) }
template <class V> INLINE V second_of_pairs(V x) { LONGSCAN_SHUFFLE(x, x, LONGSCAN_SECOND) }

// The first, or the second, half of every run of `run` lanes of x, then those of y.
#define LONGSCAN_FIRST_HALVES(k) (2 * (k) - (k) % (run / 2))
#define LONGSCAN_SECOND_HALVES(k) (2 * (k) - (k) % (run / 2) + run / 2)
template <int run, class V> INLINE V first_halves(V x, V y) { LONGSCAN_SHUFFLE(x, y, LONGSCAN_FIRST_HALVES) }
template <int run, class V> INLINE V second_halves(V x, V y) { LONGSCAN_SHUFFLE(x, y, LONGSCAN_SECOND_HALVES) }

// Partial sums of the lanes of `count` vectors, a power of two, in one: those of x[i] are the lanes from i n on, n = lanes / count.
template <class T, int count> INLINE Vec<T> fold_lanes(const Vec<T>* x) {
  if constexpr (count == 1) {
    return x[0];
  } else {
    constexpr int run = 2 * lanes<T> / count;
    const Vec<T> a = fold_lanes<T, count / 2>(x), b = fold_lanes<T, count / 2>(x + count / 2);
    return first_halves<run>(a, b) + second_halves<run>(a, b);
  }
}

// Over the lanes, pairwise: the same order on every call.
#if defined(__AVX512F__)
INLINE float sum_lanes(Floats x) { return _mm512_reduce_add_ps((__m512)x); }
INLINE double sum_lanes(Doubles x) { return _mm512_reduce_add_pd((__m512d)x); }
#else
template <class V> INLINE auto sum_lanes(V x) {
  constexpr int count = sizeof(V) / sizeof(x[0]);
  auto total = x[0] + x[count / 2];
  for (int i = 1; i < count / 2; i++) total += x[i] + x[i + count / 2];
  return total;
}
#endif
template <class T> INLINE T sum(Vec<T> x) { return sum_lanes(x); }

// min and max return the second argument where either is NaN, so `max(limit, x)` keeps NaN in x.
#if defined(__AVX512F__)
INLINE Floats min(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE Doubles min(Doubles a, Doubles b) { return (Doubles)_mm512_min_pd((__m512d)a, (__m512d)b); }
INLINE Floats max(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE Doubles max(Doubles a, Doubles b) { return (Doubles)_mm512_max_pd((__m512d)a, (__m512d)b); }
#else
template <class V> INLINE V min(V a, V b) { return a < b ? a : b; }
template <class V> INLINE V max(V a, V b) { return a > b ? a : b; }
#endif

template <class T> INLINE Vec<T> absolute(Vec<T> x) {
  constexpr auto mask = sizeof(T) == 4 ? int64_t{0x7fffffff} : int64_t{0x7fffffffffffffff};
  using I = IntVec<T>;
  return bits<Vec<T>>(bits<I>(x) & (I{} + (decltype(I{}[0] + 0))mask));
}

template <class T> INLINE bool any(IntVec<T> mask) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
  return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#else
  IntVec<T> seen = mask;
  int64_t words[VECTOR_BYTES / 8], joined = 0;
  memcpy(words, &seen, sizeof seen);
  for (int64_t word : words) joined |= word;
  return joined != 0;
#endif
}

// ---------------------------------------------------------------------------------------------- rounding and scaling

// Adding and subtracting 1.5 * 2^(mantissa bits) rounds to the nearest integer, which is in the low bits of the sum.
template <class T> constexpr T ROUNDING = sizeof(T) == 4 ? T(12582912.0) : T(6755399441055744.0);

// The nearest integer, |x| < 2^22 (float) or 2^51 (double).
template <class T> INLINE Vec<T> round(Vec<T> x) {
  Vec<T> shifted = x + ROUNDING<T>;
  return shifted - ROUNDING<T>;
}

// ---------------------------------------------------------------------------------------------- exponentials

// c[0] + c[1] x + c[2] x^2 + ..., Horner
template <class T, int terms> INLINE Vec<T> polynomial(Vec<T> x, const T (&c)[terms]) {
  Vec<T> p = broadcast<T>(c[terms - 1]);
#pragma GCC unroll 20
  for (int i = terms - 2; i >= 0; i--) p = p * x + c[i];
  return p;
}

// 2^r for |r| <= 1/2; exactly 1 at 0
INLINE Floats exp2_fraction(Floats r) {
  constexpr float c[] = {1.0f,           0.693147182f,   0.240226462f,   0.0555032333f,
                         0.00961834751f, 0.00133988655f, 0.000154036229f};
  return polynomial<float>(r, c);
}
INLINE Doubles exp2_fraction(Doubles r) {
  // Taylor: ln(2)^k / k!; the term left out is below 1e-18
  constexpr double c[] = {1.0,
                          0.6931471805599453,
                          0.24022650695910072,
                          0.05550410866482158,
                          0.009618129107628477,
                          0.0013333558146428443,
                          0.00015403530393381608,
                          1.5252733804059841e-05,
                          1.321548679014431e-06,
                          1.01780860092396997e-07,
                          7.0549116208011233e-09,
                          4.4455382718708116e-10,
                          2.5678435993488202e-11,
                          1.3691488853904128e-12};
  return polynomial<double>(r, c);
}

// Bounds on the exponent of 2: the result is 0 at the lower, inf at the upper.
#if defined(__AVX512F__)
template <class T> constexpr T EXP2_LOW = sizeof(T) == 4 ? T(-152) : T(-1080);  // passes through the subnormal numbers
#else
template <class T> constexpr T EXP2_LOW = sizeof(T) == 4 ? T(-126) : T(-1022);
#endif
template <class T> constexpr T EXP2_HIGH = sizeof(T) == 4 ? T(129) : T(1025);
template <class T> INLINE Vec<T> clamp(Vec<T> x, T low, T high) { return min(broadcast<T>(high), max(broadcast<T>(low), x)); }

// 2^(n + r) for |r| <= 1/2 and an integer n within the bounds above, given as n + ROUNDING.
#if defined(__AVX512F__)
INLINE Floats exp2_parts(Floats r, Floats shifted) {
  return (Floats)_mm512_scalef_ps((__m512)exp2_fraction(r), (__m512)(shifted - ROUNDING<float>));
}
INLINE Doubles exp2_parts(Doubles r, Doubles shifted) {
  return (Doubles)_mm512_scalef_pd((__m512d)exp2_fraction(r), (__m512d)(shifted - ROUNDING<double>));
}
#else
template <class V> INLINE V exp2_parts(V r, V shifted) {
  // 2^(n-1) built from exponent bits (0 for the lowest n, inf for the highest), times twice the fraction's power: 2^128 alone
  // would overflow.
  using T = decltype(shifted[0] + shifted[0]);
  constexpr int mantissa = sizeof(T) == 4 ? 23 : 52, bias = sizeof(T) == 4 ? 127 : 1023;
  IntVec<T> n = bits<IntVec<T>>(shifted) - bits<IntVec<T>>(broadcast<T>(ROUNDING<T>));
  V power = exp2_fraction(r);
  return (power + power) * bits<V>((n + (bias - 1)) << mantissa);
}
#endif

template <class T> INLINE Vec<T> exp2_any(Vec<T> x) {
  x = clamp<T>(x, EXP2_LOW<T>, EXP2_HIGH<T>);
  Vec<T> shifted = x + ROUNDING<T>;
  return exp2_parts(x - (shifted - ROUNDING<T>), shifted);
}
INLINE Doubles exp2(Doubles x) { return exp2_any<double>(x); }
#if defined(__AVX512F__)
// 2^(i/16), i the last four bits of x: one register holds the table.
INLINE Floats power_of_sixteenths(Floats x) {
  alignas(64) static constexpr float table[16] = {
      1.0f, 1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f, 1.29683959f, 1.35425556f,
      1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f, 1.68179286f, 1.75625217f, 1.8340081f, 1.91520655f};
  return (Floats)_mm512_permutexvar_ps(bits<__m512i>(x), (__m512)load(table));
}

// The same from the table: x = n + r, n a multiple of 1/16 and |r| <= 1/32. The linear coefficient is ln 2 itself, not a minimax
// one: an error that grows with r would shift every slow decay the same way and add up over a scan. No clamp is needed for
// |x| < 2^80 (the error of r is swallowed by a result of 0 or inf).
INLINE Floats exp2_table(Floats x) {
  constexpr float SHIFT = 786432.0f;  // 1.5 * 2^19: the last bit of the sum counts 1/16
  constexpr float c[] = {0.693147182f, 0.240226507f, 0.0555041097f};  // ln(2)^k / k!
  asm("" : "+v"(x));  // keeps the compiler from recomputing x by fused multiply-adds, whose units are the bottleneck
  Floats shifted = x + SHIFT;
  Floats n = shifted - SHIFT;
  Floats r = x - n;
  Floats power = power_of_sixteenths(shifted);
  Floats rest = r * polynomial<float>(r, c);
  return (Floats)_mm512_scalef_ps((__m512)(power * rest + power), (__m512)n);
}
INLINE Floats exp2(Floats x) { return exp2_table(clamp<float>(x, -200, 200)); }
#else
INLINE Floats exp2(Floats x) { return exp2_any<float>(x); }
#endif

// exp2 for |x| < 2^80, without the clamp where the instruction set allows.
#if defined(__AVX512F__)
INLINE Floats exp2_bounded(Floats x) { return exp2_table(x); }
#else
INLINE Floats exp2_bounded(Floats x) { return exp2(x); }
#endif
INLINE Doubles exp2_bounded(Doubles x) { return exp2(x); }

// e^x: the fraction is computed before the multiplication by log2(e), with ln 2 in two parts, so that large |x| lose no digits.
template <class T> INLINE Vec<T> exp_any(Vec<T> x) {
  constexpr T LOG2E = T(1.4426950408889634);
  constexpr T LN2_HIGH = sizeof(T) == 4 ? T(0.693359375) : T(6.93147180369123816490e-01);
  constexpr T LN2_LOW = sizeof(T) == 4 ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
  x = clamp<T>(x, T(0.6931471805599453) * EXP2_LOW<T>, T(0.6931471805599453) * EXP2_HIGH<T>);
  Vec<T> shifted = x * LOG2E + ROUNDING<T>;
  Vec<T> n = shifted - ROUNDING<T>;
  Vec<T> r = (x - n * LN2_HIGH) - n * LN2_LOW;
  return exp2_parts(r * LOG2E, shifted);
}
#if defined(__AVX512F__)
// As exp2_table, the fraction r in natural units: e^r - 1 from its series.
INLINE Floats exp(Floats x) {
  constexpr float SHIFT = 786432.0f;
  constexpr float c[] = {1.0f, 0.5f, 0.166666672f};
  x = clamp<float>(x, -110.0f, 90.0f);
  Floats shifted = x * 1.44269502f + SHIFT;
  Floats n = shifted - SHIFT;
  Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats power = power_of_sixteenths(shifted);
  return (Floats)_mm512_scalef_ps((__m512)(power * (r * polynomial<float>(r, c)) + power), (__m512)n);
}
#else
INLINE Floats exp(Floats x) { return exp_any<float>(x); }
#endif
INLINE Doubles exp(Doubles x) { return exp_any<double>(x); }

// A division, also where an estimate of the reciprocal exists: with a Newton step, an estimate takes more time next to an exponential.
template <class V> INLINE V sigmoid(V x) { return 1 / (1 + exp(-x)); }
template <class V> INLINE V silu(V x) { return x / (1 + exp(-x)); }

// log(1 + y) for 0 <= y <= 1. float: y times a polynomial that is 1 at 0, so that small results keep their digits; double:
// 2 atanh(s), s = y / (2 + y) <= 1/3, as an odd series in s.
INLINE Floats log1p_unit(Floats y) {
  constexpr float c[] = {1.0f, -0.49999997f, 0.333328426f, -0.249865264f, 0.19854106f,
                         -0.158475652f, 0.115618452f, -0.0667577237f, 0.0252240542f, -0.00446621142f};
  return y * polynomial<float>(y, c);
}
INLINE Doubles log1p_unit(Doubles y) {
  constexpr double c[] = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17,
                          2.0 / 19, 2.0 / 21, 2.0 / 23, 2.0 / 25, 2.0 / 27, 2.0 / 29, 2.0 / 31, 2.0 / 33, 2.0 / 35};
  Doubles s = y / (2 + y);
  return s * polynomial<double>(s * s, c);
}

// softplus and its derivative, the sigmoid, from one exponential
template <class T> struct Softplus {
  Vec<T> value, derivative;
};
template <class T> INLINE Softplus<T> softplus_and_derivative(Vec<T> x) {
  Vec<T> small = exp(-absolute<T>(x)), large = 1 / (1 + small);
  return {max(broadcast<T>(0), x) + log1p_unit(small), x < 0 ? small * large : large};
}
INLINE Floats softplus(Floats x) { return softplus_and_derivative<float>(x).value; }
INLINE Doubles softplus(Doubles x) { return softplus_and_derivative<double>(x).value; }

// ---------------------------------------------------------------------------------------------- sine and cosine

template <class T> struct SinCos {
  Vec<T> sin, cos;
};

// |x| up to here is reduced with pi/2 in three parts, the products with the first parts exact; beyond, lane by lane with libm.
template <class T> constexpr T SINCOS_LIMIT = sizeof(T) == 4 ? T(8192) : T(1e6);

template <class T> [[gnu::noinline]] SinCos<T> sincos_huge(Vec<T> x) {
  SinCos<T> out;
  for (int i = 0; i < lanes<T>; i++) {
    out.sin[i] = T(__builtin_sin(double(x[i])));
    out.cos[i] = T(__builtin_cos(double(x[i])));
  }
  return out;
}

template <class T> INLINE SinCos<T> sincos_any(Vec<T> x) {
  constexpr bool single = sizeof(T) == 4;
  // pi/2: float 11 + 11 bits and the rest, double 33 + 33 bits and the rest
  constexpr T PART1 = single ? T(1.5703125) : T(1.57079632673412561417e+00);
  constexpr T PART2 = single ? T(0.000483751296997070) : T(6.07710050630396597660e-11);
  constexpr T PART3 = single ? T(7.549786305e-8) : T(2.02226624879595063154e-21);
  if (__builtin_expect(any<T>(absolute<T>(x) > SINCOS_LIMIT<T>), 0)) return sincos_huge<T>(x);
  Vec<T> shifted = x * T(0.63661977236758134308) + ROUNDING<T>;
  Vec<T> n = shifted - ROUNDING<T>;
  Vec<T> r = ((x - n * PART1) - n * PART2) - n * PART3;
  Vec<T> rr = r * r, s, c;
  if constexpr (single) {
    constexpr float S[] = {-1.6666654611e-1f, 8.3321608736e-3f, -1.9515295891e-4f};
    constexpr float C[] = {4.166664568298827e-2f, -1.388731625493765e-3f, 2.443315711809948e-5f};
    s = r + r * rr * polynomial<float>(rr, S);
    c = 1 - rr * 0.5f + rr * rr * polynomial<float>(rr, C);
  } else {
    constexpr double S[] = {-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
                            2.75573137070700676789e-06,  -2.50507602534068634195e-08, 1.58969099521155010221e-10};
    constexpr double C[] = {4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
                            -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11};
    s = r + r * rr * polynomial<double>(rr, S);
    c = 1 - rr * 0.5 + rr * rr * polynomial<double>(rr, C);
  }
  // quadrant: its low bit swaps the two, its second bit (shifted to the sign) negates
  using I = IntVec<T>;
  I quadrant = bits<I>(shifted);
  constexpr int to_sign = single ? 30 : 62;
  Vec<T> swapped_s = (quadrant & 1) == 0 ? s : c;
  Vec<T> swapped_c = (quadrant & 1) == 0 ? c : s;
  constexpr auto sign = single ? int64_t{INT32_MIN} : INT64_MIN;
  I sign_s = (quadrant << to_sign) & (decltype(I{}[0] + 0))sign;
  I sign_c = ((quadrant + 1) << to_sign) & (decltype(I{}[0] + 0))sign;
  return {bits<Vec<T>>(bits<I>(swapped_s) ^ sign_s), bits<Vec<T>>(bits<I>(swapped_c) ^ sign_c)};
}
INLINE SinCos<float> sincos(Floats x) { return sincos_any<float>(x); }
INLINE SinCos<double> sincos(Doubles x) { return sincos_any<double>(x); }

}  // namespace longscan::LONGSCAN_ISA
