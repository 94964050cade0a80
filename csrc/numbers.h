// Vectors of real or complex numbers with the same operations, so that a recurrence is written once for both.
//
// A number type Num has value_type (float or double), PARTS (1 or 2) and the parts re and im; in scratch memory its parts are
// planar (`lanes` reals, then `lanes` imaginaries), in tensors they are interleaved. Gradients follow torch: the gradient of a
// complex number is d/dRe + i d/dIm, so adjoints use conj().
#pragma once

#include "simd.h"

namespace longscan::LONGSCAN_ISA {

template <class T> struct Real {
  using value_type = T;
  static constexpr int PARTS = 1;
  Vec<T> re;
};
template <class T> struct Complex {
  using value_type = T;
  static constexpr int PARTS = 2;
  Vec<T> re, im;
};
template <class T, bool is_complex> struct NumberOf {
  using type = Real<T>;
};
template <class T> struct NumberOf<T, true> {
  using type = Complex<T>;
};

template <class T> INLINE Real<T> operator*(Real<T> a, Real<T> b) { return {a.re * b.re}; }
template <class T> INLINE Complex<T> operator*(Complex<T> a, Complex<T> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class T> INLINE Real<T> operator+(Real<T> a, Real<T> b) { return {a.re + b.re}; }
template <class T> INLINE Complex<T> operator+(Complex<T> a, Complex<T> b) { return {a.re + b.re, a.im + b.im}; }
template <class T> INLINE Real<T> conj(Real<T> a) { return a; }
template <class T> INLINE Complex<T> conj(Complex<T> a) { return {a.re, -a.im}; }
// by a vector of reals
template <class T> INLINE Real<T> times(Real<T> a, Vec<T> s) { return {a.re * s}; }
template <class T> INLINE Complex<T> times(Complex<T> a, Vec<T> s) { return {a.re * s, a.im * s}; }
// c + Re(a b)
template <class T> INLINE Vec<T> add_real_product(Vec<T> c, Real<T> a, Real<T> b) { return c + a.re * b.re; }
template <class T> INLINE Vec<T> add_real_product(Vec<T> c, Complex<T> a, Complex<T> b) { return c + a.re * b.re - a.im * b.im; }

template <class Num> INLINE Num zero() { return Num{}; }

// Scratch memory: PARTS vectors at p.
template <class Num> INLINE Num load_number(const typename Num::value_type* p) {
  using T = typename Num::value_type;
  if constexpr (Num::PARTS == 1)
    return {load(p)};
  else
    return {load(p), load(p + lanes<T>)};
}
template <class T> INLINE void store_number(T* p, Real<T> x) { store(p, x.re); }
template <class T> INLINE void store_number(T* p, Complex<T> x) {
  store(p, x.re);
  store(p + lanes<T>, x.im);
}
// One number of a tensor in every lane.
template <class Num> INLINE Num broadcast_number(const typename Num::value_type* p) {
  using T = typename Num::value_type;
  if constexpr (Num::PARTS == 1)
    return {broadcast<T>(p[0])};
  else
    return {broadcast<T>(p[0]), broadcast<T>(p[1])};
}
template <class T> INLINE void sum_number(T* p, Real<T> x) { p[0] = sum<T>(x.re); }
template <class T> INLINE void sum_number(T* p, Complex<T> x) {
  p[0] = sum<T>(x.re);
  p[1] = sum<T>(x.im);
}

}  // namespace longscan::LONGSCAN_ISA
