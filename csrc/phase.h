// A running sum of angles that stays exact over millions of steps, and its sine and cosine.
//
// The sum is stored as half_turns * pi + rest with |rest| <= pi/2; only the parity of half_turns is needed. Each step adds an
// angle and subtracts the nearest multiple of pi, in two parts whose products are exact. So the rounding error of a step is that
// of one addition of numbers below |angle| + pi/2 and does not grow with the number of steps. Angles must be below 2^22 half turns.
#pragma once

#include "simd.h"

namespace longscan::LONGSCAN_ISA {

template <class T> struct HalfTurns {
  static constexpr T INVERSE = T(0.318309886183790671537767526745);
#if defined(__FMA__) || defined(__aarch64__)  // a fused multiply-add rounds once, so the product may have any number of bits
  static constexpr T PART1 = T(3.14159265358979323846);
  static constexpr T PART2 = sizeof(T) == 4 ? T(-8.74227800037248e-8) : T(1.2246467991473532e-16);
  static constexpr T PART3 = 0;
#else
  static constexpr T PART1 = sizeof(T) == 4 ? T(3.140625) : T(3.1415926218032836914);
  static constexpr T PART2 = sizeof(T) == 4 ? T(0.0009670257568359375) : T(3.1786509424591713469e-8);
  static constexpr T PART3 = sizeof(T) == 4 ? T(6.278329572959626e-7) : T(1.2246467864107188502e-16);
#endif
};

// sin(r) and cos(r) for |r| <= pi/2 and a rounding beyond: near-minimax, errors 5e-9 and 2e-10 (float), 1e-18 (double).
INLINE SinCos<float> sincos_half_turn(Floats r) {
  constexpr float S[] = {-0.166666570889362478f, 0.00833301710461481536f, -0.000198066015967426324f, 2.60002448459523376e-6f};
  constexpr float C[] = {1.0f, -0.499999995491106717f, 0.041666640707521854f, -0.00138884032207222194f, 0.00002476187063885143f,
                         -2.60768168437181856e-7f};
  Floats rr = r * r;
  return {(r * rr) * polynomial<float>(rr, S) + r, polynomial<float>(rr, C)};
}
INLINE SinCos<double> sincos_half_turn(Doubles r) {
  constexpr double S[] = {-0.166666666666666645,   0.0083333333333331137,   -0.00019841269841185861, 2.75573192077708485e-6,
                          -2.5052106605225255e-8, 1.60589277674820232e-10, -7.64271116775693643e-13, 2.71847808645552081e-15};
  constexpr double C[] = {1.0,
                          -0.5,
                          0.041666666666666661,
                          -0.00138888888888885705,
                          0.0000248015873014998723,
                          -2.7557319210405044e-7,
                          2.08767557135584128e-9,
                          -1.14706719101165939e-11,
                          4.77690764831524881e-14,
                          -1.51228493859344402e-16};
  Doubles rr = r * r;
  return {(r * rr) * polynomial<double>(rr, S) + r, polynomial<double>(rr, C)};
}

template <class T> struct Phase {
  using Sign = IntVec<T>;

  Vec<T> rest;
  Sign half_turns;  // only the lowest bit is used

  // Adds an angle and `more` half turns.
  INLINE void add(Vec<T> angle, Sign more) {
    using H = HalfTurns<T>;
    Vec<T> total = rest + angle;
    Vec<T> shifted = total * H::INVERSE + ROUNDING<T>;
    Vec<T> n = shifted - ROUNDING<T>;
    rest = (total - n * H::PART1) - n * H::PART2;
    if constexpr (H::PART3 != 0) rest -= n * H::PART3;
    half_turns ^= bits<Sign>(shifted) ^ more;
  }

  // The sine and cosine of `rest`; those of the whole phase have the sign bit flipped where `sign()` has it set.
  INLINE SinCos<T> sincos() const { return sincos_half_turn(rest); }
  INLINE Sign sign() const { return half_turns << (8 * int(sizeof(T)) - 1); }
};

template <class T> INLINE Vec<T> flip(Vec<T> x, IntVec<T> sign) { return bits<Vec<T>>(bits<IntVec<T>>(x) ^ sign); }

}  // namespace longscan::LONGSCAN_ISA
