// The transform of S4's kernel, forward and backward. Symbols: dplr_spectrum.h; equations: src/longscan/ops/dplr_spectrum.
//
// Lanes contain neighbouring frequencies, and a task is a channel. The terms of the four sums stay in registers. The backward pass
// computes a block of frequencies after another: first the sums again and their gradients, then for each state the products of
// these with the derivatives of its terms, added up in one vector for each gradient.
#include "dplr_spectrum.h"

#include "arrays.h"
#include "numbers.h"

namespace longscan::LONGSCAN_ISA {
namespace {

constexpr int64_t BLOCK = 512;  // frequencies of a block, a multiple of the lanes of every instruction set
constexpr int64_t STATE = 9;    // numbers of a state: Re and Im of C B and C P, P* P, Re and Im of P* B and lambda
constexpr int64_t PLANES = 8;   // real and imaginary parts of the gradients of the four sums

template <class T> struct Sums {
  Complex<T> cb, cp, pp, pb;
};

template <class T> INLINE Complex<T> reciprocal(Complex<T> a) {
  const Vec<T> scale = 1 / (a.re * a.re + a.im * a.im);
  return {a.re * scale, -a.im * scale};
}

template <class T> INLINE void store_plane(T* p, int64_t stride, Complex<T> x) {
  store(p, x.re);
  store(p + stride, x.im);
}
template <class T> INLINE Complex<T> load_plane(const T* p, int64_t stride) { return {load(p), load(p + stride)}; }

// The table with real and imaginary parts apart, (6, padded). After the last frequency its entries are repeated: other numbers
// could be at a pole, and 0 times infinity is NaN.
template <class T> void split_table(const DplrSpectrum& s, T* planes, int64_t padded) {
  const T* table = at<T>(s.table, 0);
  for (int64_t row = 0; row < 3; row++)
    for (int64_t f = 0; f < padded; f++)
      for (int64_t part = 0; part < 2; part++)
        planes[(2 * row + part) * padded + f] =
            table[(row * s.frequencies + (f < s.frequencies ? f : s.frequencies - 1)) * 2 + part];
}

// The numerators and eigenvalues of all states of channel d.
template <class T> void prepare_states(const DplrSpectrum& s, int64_t d, T* states) {
  const int64_t first = d * s.states * 2;
  const T *lambda = at<T>(s.eigenvalues, first), *P = at<T>(s.P, first), *B = at<T>(s.B, first), *C = at<T>(s.C, first);
  for (int64_t n = 0; n < s.states; n++, lambda += 2, P += 2, B += 2, C += 2, states += STATE) {
    states[0] = C[0] * B[0] - C[1] * B[1];
    states[1] = C[0] * B[1] + C[1] * B[0];
    states[2] = C[0] * P[0] - C[1] * P[1];
    states[3] = C[0] * P[1] + C[1] * P[0];
    states[4] = P[0] * P[0] + P[1] * P[1];
    states[5] = P[0] * B[0] + P[1] * B[1];
    states[6] = P[0] * B[1] - P[1] * B[0];
    states[7] = lambda[0];
    states[8] = lambda[1];
  }
}

// X = 1 / (a - t lambda) and Y = 1 / (a - t conj(lambda)), with one division.
template <class T> INLINE void poles(Complex<T> a, Complex<T> t, const T* state, Complex<T>& X, Complex<T>& Y) {
  const T re = state[7], im = state[8];
  const Complex<T> e = {a.re - t.re * re, a.im - t.im * re};
  const Complex<T> x = {e.re + t.im * im, e.im - t.re * im}, y = {e.re - t.im * im, e.im + t.re * im};
  const Vec<T> x_size = x.re * x.re + x.im * x.im, y_size = y.re * y.re + y.im * y.im;
  const Vec<T> scale = 1 / (x_size * y_size);
  const Vec<T> x_scale = y_size * scale, y_scale = x_size * scale;
  X = {x.re * x_scale, -x.im * x_scale};
  Y = {y.re * y_scale, -y.im * y_scale};
}

// A term of a sum is Re(v) (X + Y) + Im(v) i (X - Y).
template <class T> INLINE Sums<T> cauchy_sums(const T* states, int64_t count, Complex<T> a, Complex<T> t) {
  Sums<T> sums = {};
  for (int64_t n = 0; n < count; n++) {
    const T* v = states + n * STATE;
    Complex<T> X, Y;
    poles(a, t, v, X, Y);
    const Complex<T> even = X + Y, odd = {Y.im - X.im, X.re - Y.re};
    sums.cb.re += v[0] * even.re + v[1] * odd.re;
    sums.cb.im += v[0] * even.im + v[1] * odd.im;
    sums.cp.re += v[2] * even.re + v[3] * odd.re;
    sums.cp.im += v[2] * even.im + v[3] * odd.im;
    sums.pp.re += v[4] * even.re;
    sums.pp.im += v[4] * even.im;
    sums.pb.re += v[5] * even.re + v[6] * odd.re;
    sums.pb.im += v[5] * even.im + v[6] * odd.im;
  }
  return sums;
}

template <class T> void forward(const DplrSpectrum& s) {
  const int64_t F = s.frequencies, N = s.states, padded = ceil_div(F, lanes<T>) * lanes<T>;
  Buffer<T> table(6 * padded), states(workers(s.channels, s.threads) * N * STATE);
  split_table(s, table.data(), padded);
  parallel_for(s.channels, s.threads, [&](int64_t d, int worker) {
    T* const state = states.slice(worker, N * STATE);
    prepare_states(s, d, state);
    const Vec<T> dt = broadcast<T>(at<T>(s.dt, 0)[d]);
    T* y = at<T>(s.spectrum, d * F * 2);
    for (int64_t f = 0; f < F; f += lanes<T>) {
      const T* row = table.data() + f;
      const Complex<T> a = load_plane(row, padded), t = times(load_plane(row + 2 * padded, padded), dt);
      const Complex<T> e = times(load_plane(row + 4 * padded, padded), dt);
      const Sums<T> sums = cauchy_sums(state, N, a, t);
      Complex<T> m = t * sums.pp;
      m.re += 1;
      const Complex<T> used = reciprocal(m) * t * (sums.cp * sums.pb);
      T parts[2 * lanes<T>];
      store_number(parts, e * Complex<T>{sums.cb.re - used.re, sums.cb.im - used.im});
      for (int64_t i = 0; i < lanes<T> && f + i < F; i++) y[2 * (f + i)] = parts[i], y[2 * (f + i) + 1] = parts[lanes<T> + i];
    }
  });
}

// The gradients of the four sums at `count` frequencies, (PLANES, BLOCK). Returns the gradient of dt without what it contributes
// to the sums.
template <class T>
Vec<T> differentiate_sums(const DplrSpectrum& s, const T* g, const T* table, int64_t padded, int64_t count, T dt, const T* state,
                          T* planes) {
  Vec<T> total = {};
  for (int64_t f = 0; f < count; f += lanes<T>) {
    const T* row = table + f;
    const Complex<T> a = load_plane(row, padded), c = load_plane(row + 2 * padded, padded);
    const Complex<T> e = load_plane(row + 4 * padded, padded), t = times(c, broadcast<T>(dt));
    T parts[2 * lanes<T>] = {};
    for (int64_t i = 0; i < lanes<T> && f + i < count; i++) parts[i] = g[2 * (f + i)], parts[lanes<T> + i] = g[2 * (f + i) + 1];
    Complex<T> grad = load_number<Complex<T>>(parts);
    const Sums<T> sums = cauchy_sums(state, s.states, a, t);
    Complex<T> m = t * sums.pp;
    m.re += 1;
    m = reciprocal(m);
    // y = dt e^w (S_CB - (m t) S_CP S_PB), m = 1 / (1 + t S_PP); m t has the derivatives m^2 by t and -(m t)^2 by S_PP.
    const Complex<T> gain = m * t, rank = sums.cp * sums.pb, used = gain * rank;
    const Complex<T> y = e * Complex<T>{sums.cb.re - used.re, sums.cb.im - used.im};
    total += grad.re * y.re + grad.im * y.im;
    grad = conj(times(e, broadcast<T>(dt))) * grad;
    const Complex<T> by_t = m * m * rank * c;
    total -= by_t.re * grad.re + by_t.im * grad.im;
    const Complex<T> minus = {-grad.re, -grad.im};
    store_plane(planes + f, BLOCK, grad);
    store_plane(planes + 2 * BLOCK + f, BLOCK, conj(gain * sums.pb) * minus);
    store_plane(planes + 4 * BLOCK + f, BLOCK, conj(gain * used) * grad);
    store_plane(planes + 6 * BLOCK + f, BLOCK, conj(gain * sums.cp) * minus);
  }
  return total;
}

// Adds to `totals`, one vector for each of the numbers of a state, their gradients at `count` frequencies; for lambda that of
// dt lambda.
template <class T>
void add_gradients(const T* table, int64_t padded, int64_t count, T dt, const T* planes, const T* v, T* totals) {
  Vec<T> sums[STATE];
  for (int64_t i = 0; i < STATE; i++) sums[i] = load(totals + i * lanes<T>);
  for (int64_t f = 0; f < count; f += lanes<T>) {
    const Complex<T> c = load_plane(table + 2 * padded + f, padded), t = times(c, broadcast<T>(dt));
    const Complex<T> cb = load_plane(planes + f, BLOCK), cp = load_plane(planes + 2 * BLOCK + f, BLOCK);
    const Complex<T> pp = load_plane(planes + 4 * BLOCK + f, BLOCK), pb = load_plane(planes + 6 * BLOCK + f, BLOCK);
    Complex<T> X, Y;
    poles(load_plane(table + f, padded), t, v, X, Y);
    const Complex<T> even = X + Y, odd = {Y.im - X.im, X.re - Y.re};
    sums[0] += cb.re * even.re + cb.im * even.im;
    sums[1] += cb.re * odd.re + cb.im * odd.im;
    sums[2] += cp.re * even.re + cp.im * even.im;
    sums[3] += cp.re * odd.re + cp.im * odd.im;
    sums[4] += pp.re * even.re + pp.im * even.im;
    sums[5] += pb.re * even.re + pb.im * even.im;
    sums[6] += pb.re * odd.re + pb.im * odd.im;
    // The gradients of X + Y and of i (X - Y), and with them the conjugate gradients of X and of Y. The derivative of X by
    // dt lambda is cosh(w) X^2, that of Y by its conjugate is cosh(w) Y^2.
    const Vec<T> even_re = v[0] * cb.re + v[2] * cp.re + v[4] * pp.re + v[5] * pb.re;
    const Vec<T> even_im = v[0] * cb.im + v[2] * cp.im + v[4] * pp.im + v[5] * pb.im;
    const Vec<T> odd_re = v[1] * cb.re + v[3] * cp.re + v[6] * pb.re;
    const Vec<T> odd_im = v[1] * cb.im + v[3] * cp.im + v[6] * pb.im;
    const Complex<T> by_X = X * X * Complex<T>{even_re + odd_im, odd_re - even_im};
    const Complex<T> by_Y = Y * Y * Complex<T>{even_re - odd_im, -odd_re - even_im};
    sums[7] += c.re * (by_X.re + by_Y.re) - c.im * (by_X.im + by_Y.im);
    sums[8] += c.re * (by_Y.im - by_X.im) + c.im * (by_Y.re - by_X.re);
  }
  for (int64_t i = 0; i < STATE; i++) store(totals + i * lanes<T>, sums[i]);
}

// The gradients of all parameters of channel d from the sums over the frequencies. d_dt: the gradient of dt without that by dt lambda.
template <class T> void differentiate_parameters(const DplrSpectrumGradients& g, int64_t d, const T* totals, T d_dt) {
  const DplrSpectrum& s = g.forward;
  const int64_t first = d * s.states * 2;
  const T dt = at<T>(s.dt, 0)[d];
  for (int64_t n = 0; n < s.states; n++) {
    const int64_t i = first + 2 * n;
    const T *lambda = at<T>(s.eigenvalues, i), *P = at<T>(s.P, i), *B = at<T>(s.B, i), *C = at<T>(s.C, i);
    T v[STATE];
    for (int64_t k = 0; k < STATE; k++) v[k] = sum<T>(load(totals + (n * STATE + k) * lanes<T>));
    T *d_lambda = at<T>(g.eigenvalues, i), *d_P = at<T>(g.P, i), *d_B = at<T>(g.B, i), *d_C = at<T>(g.C, i);
    d_C[0] = B[0] * v[0] + B[1] * v[1] + P[0] * v[2] + P[1] * v[3];
    d_C[1] = B[0] * v[1] - B[1] * v[0] + P[0] * v[3] - P[1] * v[2];
    d_B[0] = C[0] * v[0] + C[1] * v[1] + P[0] * v[5] - P[1] * v[6];
    d_B[1] = C[0] * v[1] - C[1] * v[0] + P[0] * v[6] + P[1] * v[5];
    d_P[0] = C[0] * v[2] + C[1] * v[3] + 2 * P[0] * v[4] + B[0] * v[5] + B[1] * v[6];
    d_P[1] = C[0] * v[3] - C[1] * v[2] + 2 * P[1] * v[4] + B[1] * v[5] - B[0] * v[6];
    d_lambda[0] = dt * v[7];
    d_lambda[1] = dt * v[8];
    d_dt += lambda[0] * v[7] + lambda[1] * v[8];
  }
  at<T>(g.dt, 0)[d] = d_dt;
}

template <class T> void backward(const DplrSpectrumGradients& g) {
  const DplrSpectrum& s = g.forward;
  const int64_t F = s.frequencies, N = s.states, padded = ceil_div(F, lanes<T>) * lanes<T>;
  const int64_t totals_size = N * STATE * lanes<T>, planes_size = PLANES * BLOCK;
  const int team = workers(s.channels, s.threads);
  Buffer<T> table(6 * padded), states(team * N * STATE), totals(team * totals_size), planes(team * planes_size);
  split_table(s, table.data(), padded);
  parallel_for(s.channels, s.threads, [&](int64_t d, int worker) {
    T *const state = states.slice(worker, N * STATE), *const total = totals.slice(worker, totals_size);
    T* const d_sums = planes.slice(worker, planes_size);
    const T dt = at<T>(s.dt, 0)[d];
    prepare_states(s, d, state);
    memset(total, 0, sizeof(T) * totals_size);
    Vec<T> d_dt = {};
    for (int64_t f = 0; f < F; f += BLOCK) {
      const int64_t count = F - f < BLOCK ? F - f : BLOCK;
      const T* row = table.data() + f;
      d_dt += differentiate_sums(s, at<T>(g.g, (d * F + f) * 2), row, padded, count, dt, state, d_sums);
      for (int64_t n = 0; n < N; n++)
        add_gradients(row, padded, count, dt, d_sums, state + n * STATE, total + n * STATE * lanes<T>);
    }
    differentiate_parameters(g, d, total, sum<T>(d_dt));
  });
}

}  // namespace

void dplr_spectrum_forward(const DplrSpectrum& s) { s.is_double ? forward<double>(s) : forward<float>(s); }
void dplr_spectrum_backward(const DplrSpectrumGradients& g) {
  g.forward.is_double ? backward<double>(g) : backward<float>(g);
}

}  // namespace longscan::LONGSCAN_ISA
