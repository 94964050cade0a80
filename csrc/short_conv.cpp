// The short convolution, forward and backward. Symbols: short_conv.h.
//
// Lanes contain neighbouring channels. The window of a step has K rows of D channels: earlier rows of u, rows of the initial
// state, or zeros after a restart. So the window is a list of pointers to rows, which is shifted at each valid step, and one loop
// handles every pattern of masks. Forward tasks are runs of steps. Backward tasks are strips of channels, so that no two tasks
// write the same numbers; each goes through time once and adds
//   weight_k gs_t   to the gradient of row k of the window of step t,   gs_t = gy_t activation'
// with a list of pointers to these gradients.
//
// Where the number of taps is known, up to TOGETHER steps without masks are computed together: each row of their windows is then
// loaded once for all of them, and so are the weights, the sums of their gradients, and the gradients of the rows.
#include "short_conv.h"

#include "arrays.h"
#include "simd.h"

namespace longscan::LONGSCAN_ISA {
namespace {

constexpr int STEPS = 64;    // steps of a forward task
constexpr int TOGETHER = 4;  // steps that are computed together
constexpr int STRIP = 4;     // vectors of a backward task if there are fewer batch rows than threads

// (D, columns) to (columns, D)
template <class T> void transpose(T* to, const T* from, int64_t channels, int64_t columns) {
  for (int64_t d = 0; d < channels; d++)
    for (int64_t k = 0; k < columns; k++) to[k * channels + d] = from[d * columns + k];
}

// The K - 1 rows before a step, oldest first: rows of the valid steps before it, then of `state` (K-1, D), or `zeros` before the
// start of the segment.
template <class T>
void window_before(const ShortConv& s, const T** window, int64_t b, int64_t t, const T* u, const T* state, const T* zeros) {
  const int64_t D = s.channels, K = s.taps;
  const uint8_t* flags = s.flags ? s.flags + b * s.length : nullptr;
  int64_t k = K - 2;
  bool restarted = false;
  for (t--; t >= 0 && k >= 0 && !restarted; t--) {
    if (flags && flags[t] & INVALID) continue;
    window[k--] = u + t * D;
    restarted = flags && flags[t] & RESET;
  }
  // The segment may also have started before these rows: only windows that reach back to the first step contain the initial state.
  for (int64_t row = K - 2; k >= 0; k--, row--) window[k] = restarted ? zeros : state + row * D;
}

// Shifts the window by `steps` steps, whose rows follow its first K - 1 rows.
template <class Row> void advance(Row* window, int64_t taps, int steps) {
  for (int64_t k = 0; k + 1 < taps; k++) window[k] = window[k + steps];
}

// The number of steps from t on that can be computed together: TOGETHER, or 1 if fewer are left before `end` or some have flags.
INLINE int steps_together(const uint8_t* flags, int64_t t, int64_t end) {
  if (t + TOGETHER > end) return 1;
  for (int i = 0; flags && i < TOGETHER; i++)
    if (flags[t + i]) return 1;
  return TOGETHER;
}

// y of TIMES steps, whose windows are the rows i to i + K - 1 of `window`. TAPS: the number of taps, or 0 if it is only known when
// the kernel runs.
template <class T, int TAPS, int TIMES>
void forward_steps(const ShortConv& s, const T* const* window, const T* w, const T* bias, T* y) {
  const int64_t D = s.channels, K = TAPS ? TAPS : s.taps;
  for_vectors<T>(0, D, [&](int64_t d, int count) __attribute__((always_inline)) {
    Vec<T> sums[TIMES];
    for (int i = 0; i < TIMES; i++) sums[i] = bias ? load(bias + d, count) : Vec<T>{};
    for (int64_t k = 0; k < K; k++) {
      const Vec<T> factor = load(w + k * D + d, count);
      for (int i = 0; i < TIMES; i++) sums[i] += factor * load(window[i + k] + d, count);
    }
    for (int i = 0; i < TIMES; i++) store(y + i * D + d, s.silu ? silu(sums[i]) : sums[i], count);
  });
}

template <class T, int TAPS> void forward(const ShortConv& s) {
  const int64_t L = s.length, D = s.channels, K = TAPS ? TAPS : s.taps, runs = ceil_div(L, STEPS);
  const int team = workers(s.batch * runs, s.threads);
  Buffer<T> weight(K * D), states(s.batch * (K - 1) * D), zeros(D);
  Buffer<const T*> windows(team * (K + TOGETHER - 1));
  transpose(weight.data(), at<T>(s.weight, 0), D, K);
  for (int64_t b = 0; b < s.batch; b++)
    transpose(states.slice(b, (K - 1) * D), at<T>(s.initial_state, b * D * (K - 1)), D, K - 1);
  for (int64_t d = 0; d < D; d++) zeros.data()[d] = 0;

  parallel_for(s.batch * runs, s.threads, [&](int64_t task, int worker) {
    const int64_t b = task / runs, begin = task % runs * STEPS, end = begin + STEPS < L ? begin + STEPS : L;
    const T *u = at<T>(s.u, b * L * D), *bias = at<T>(s.bias, 0), *w = weight.data();
    T* y = at<T>(s.y, b * L * D);
    const uint8_t* flags = s.flags ? s.flags + b * L : nullptr;
    const T** window = windows.slice(worker, K + TOGETHER - 1);
    window_before(s, window, b, begin, u, states.slice(b, (K - 1) * D), zeros.data());
    for (int64_t t = begin; t < end;) {
      const int times = TAPS ? steps_together(flags, t, end) : 1;
      if (flags && flags[t] & INVALID) {
        memset(y + t * D, 0, sizeof(T) * D);
        t++;
        continue;
      }
      if (flags && flags[t] & RESET)
        for (int64_t k = 0; k < K - 1; k++) window[k] = zeros.data();
      for (int i = 0; i < times; i++) window[K - 1 + i] = u + (t + i) * D;
      if (times == 1)
        forward_steps<T, TAPS, 1>(s, window, w, bias, y + t * D);
      else
        forward_steps<T, TAPS, TOGETHER>(s, window, w, bias, y + t * D);
      advance(window, K, times);
      t += times;
    }
    if (end == L)
      for (int64_t d = 0; d < D; d++)
        for (int64_t k = 0; k < K - 1; k++) at<T>(s.final_state, 0)[(b * D + d) * (K - 1) + k] = window[k][d];
  });
}

// Adds to the gradients of the rows of TIMES windows, and of weight and bias to `part` (K + 1, width), of the channels from `first`
// on; rows that only the last of these steps sees have no gradient before and are set.
template <class T, int TAPS, int TIMES>
void backward_steps(const ShortConv& s, const T* const* window, T* const* d_window, const T* w, const T* bias, const T* gy, T* part,
                    int64_t width, int64_t first, int64_t last) {
  const int64_t D = s.channels, K = TAPS ? TAPS : s.taps;
  for_vectors<T>(first, last, [&](int64_t d, int count) __attribute__((always_inline)) {
    Vec<T> d_sums[TIMES];
    for (int i = 0; i < TIMES; i++) d_sums[i] = load(gy + i * D + d, count);
    if (s.silu) {
      Vec<T> sums[TIMES];
      for (int i = 0; i < TIMES; i++) sums[i] = bias ? load(bias + d, count) : Vec<T>{};
      for (int64_t k = 0; k < K; k++) {
        const Vec<T> factor = load(w + k * D + d, count);
        for (int i = 0; i < TIMES; i++) sums[i] += factor * load(window[i + k] + d, count);
      }
      for (int i = 0; i < TIMES; i++) {
        const Vec<T> sigma = sigmoid(sums[i]);
        d_sums[i] *= sigma * (1 + sums[i] * (1 - sigma));
      }
    }
    for (int64_t k = 0; k < K; k++) {
      T* const to = part + k * width + d - first;
      Vec<T> total = load(to);
      for (int i = 0; i < TIMES; i++) total += d_sums[i] * load(window[i + k] + d, count);
      store(to, total);
    }
    T* const to = part + K * width + d - first;
    Vec<T> total = load(to);
    for (int i = 0; i < TIMES; i++) total += d_sums[i];
    store(to, total);
    for (int64_t row = 0; row < K + TIMES - 1; row++) {
      Vec<T> back = row < K - 1 ? load(d_window[row] + d, count) : Vec<T>{};
      for (int i = 0; i < TIMES; i++)
        if (row - i >= 0 && row - i < K) back += load(w + (row - i) * D + d, count) * d_sums[i];
      store(d_window[row] + d, back, count);
    }
  });
}

template <class T, int TAPS> void backward(const ShortConvGradients& g) {
  const ShortConv& s = g.forward;
  const int64_t L = s.length, D = s.channels, K = TAPS ? TAPS : s.taps;
  // Strips of whole rows are read fastest. There is no sum over channels, so results do not depend on the width of a strip.
  const int64_t width = s.batch >= 2 * s.threads ? ceil_div(D, lanes<T>) * lanes<T> : STRIP * lanes<T>;
  const int64_t strips = ceil_div(D, width);
  const int64_t tasks = s.batch * strips;
  const int team = workers(tasks, s.threads);
  Buffer<T> weight(K * D), states(s.batch * (K - 1) * D), zeros(D), unused(team * width);
  Buffer<T> d_states(team * (K - 1) * width), sums(team * 2 * (K + 1) * width), d_weight(s.batch * K * D), d_bias(s.batch * D);
  Buffer<const T*> windows(team * (K + TOGETHER - 1));
  Buffer<T*> d_windows(team * (K + TOGETHER - 1));
  transpose(weight.data(), at<T>(s.weight, 0), D, K);
  for (int64_t b = 0; b < s.batch; b++)
    transpose(states.slice(b, (K - 1) * D), at<T>(s.initial_state, b * D * (K - 1)), D, K - 1);
  for (int64_t d = 0; d < D; d++) zeros.data()[d] = 0;

  parallel_for(tasks, s.threads, [&](int64_t task, int worker) {
    const int64_t b = task / strips, first = task % strips * width, last = first + width < D ? first + width : D;
    const T *u = at<T>(s.u, b * L * D), *gy = at<T>(g.gy, b * L * D), *bias = at<T>(s.bias, 0), *w = weight.data();
    T* du = at<T>(g.u, b * L * D);
    const uint8_t* flags = s.flags ? s.flags + b * L : nullptr;
    // Gradients of the rows of the state, this strip of channels only; pointers to them are shifted so that index d fits.
    T* const d_state = d_states.slice(worker, (K - 1) * width);
    T* const nowhere = unused.slice(worker, width) - first;
    memset(d_state, 0, sizeof(T) * (K - 1) * width);
    // Of weight and bias: over STEPS steps, then over those sums.
    T* const part = sums.slice(worker, 2 * (K + 1) * width);
    T* const total = part + (K + 1) * width;
    memset(part, 0, sizeof(T) * 2 * (K + 1) * width);
    const T** window = windows.slice(worker, K + TOGETHER - 1);
    T** d_window = d_windows.slice(worker, K + TOGETHER - 1);
    for (int64_t k = 0; k < K - 1; k++) {
      window[k] = states.slice(b, (K - 1) * D) + k * D;
      d_window[k] = d_state + k * width - first;
    }
    for (int64_t t = 0; t < L;) {
      const int times = TAPS ? steps_together(flags, t, L) : 1;
      if (flags && flags[t] & INVALID) {
        memset(du + t * D + first, 0, sizeof(T) * (last - first));
        t++;
        continue;
      }
      if (flags && flags[t] & RESET)
        for (int64_t k = 0; k < K - 1; k++) window[k] = zeros.data(), d_window[k] = nowhere;
      for (int i = 0; i < times; i++) window[K - 1 + i] = u + (t + i) * D, d_window[K - 1 + i] = du + (t + i) * D;
      if (times == 1)
        backward_steps<T, TAPS, 1>(s, window, d_window, w, bias, gy + t * D, part, width, first, last);
      else
        backward_steps<T, TAPS, TOGETHER>(s, window, d_window, w, bias, gy + t * D, part, width, first, last);
      advance(window, K, times);
      advance(d_window, K, times);
      if (t / STEPS != (t + times) / STEPS)
        for (int64_t i = 0; i < (K + 1) * width; i++) total[i] += part[i], part[i] = 0;
      t += times;
    }
    for (int64_t d = first; d < last; d++) {
      for (int64_t k = 0; k < K - 1; k++)
        if (g.final_state) d_window[k][d] += at<T>(g.final_state, 0)[(b * D + d) * (K - 1) + k];
      for (int64_t k = 0; k < K - 1; k++) at<T>(g.initial_state, 0)[(b * D + d) * (K - 1) + k] = d_state[k * width + d - first];
      for (int64_t k = 0; k < K; k++)
        d_weight.data()[(b * D + d) * K + k] = total[k * width + d - first] + part[k * width + d - first];
      d_bias.data()[b * D + d] = total[K * width + d - first] + part[K * width + d - first];
    }
  });
  add_up(at<T>(g.weight, 0), d_weight.data(), s.batch, K * D, s.threads);
  add_up(at<T>(g.bias, 0), d_bias.data(), s.batch, D, s.threads);
}

}  // namespace

template <class T> static void forward_of(const ShortConv& s) { s.taps == 4 ? forward<T, 4>(s) : forward<T, 0>(s); }
template <class T> static void backward_of(const ShortConvGradients& g) {
  g.forward.taps == 4 ? backward<T, 4>(g) : backward<T, 0>(g);
}

void short_conv_forward(const ShortConv& s) { s.is_double ? forward_of<double>(s) : forward_of<float>(s); }
void short_conv_backward(const ShortConvGradients& g) { g.forward.is_double ? backward_of<double>(g) : backward_of<float>(g); }

}  // namespace longscan::LONGSCAN_ISA
