// The short convolution, forward and backward. Symbols: short_conv.h.
//
// Lanes hold neighbouring channels. What a step sees is a window of K rows of D channels: earlier rows of u, rows of the initial
// state, or zeros after a restart. So the window is a list of K pointers, moved on at each valid step, and one loop serves every
// pattern of masks. Forward, tasks are runs of steps; backward, strips of channels, each going through time once and adding
//   weight_k gs_t   to the gradient of row k of the window of step t,   gs_t = gy_t activation'
// (again a list of pointers), so that no two tasks touch the same numbers.
#include "short_conv.h"

#include "arrays.h"
#include "simd.h"

namespace longscan::LONGSCAN_ISA {
namespace {

constexpr int STEPS = 64;  // of a forward task
constexpr int STRIP = 4;   // vectors of a backward task where the batch alone does not keep the threads busy

// (D, columns) to (columns, D)
template <class T> void transpose(T* to, const T* from, int64_t channels, int64_t columns) {
  for (int64_t d = 0; d < channels; d++)
    for (int64_t k = 0; k < columns; k++) to[k * channels + d] = from[d * columns + k];
}

// The K - 1 rows before a step, oldest first, found by going back over the valid steps; older ones come from `state` (K-1, D),
// or are `zeros` where the segment began.
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
  // Without a restart among the rows found, one may still lie further back: only the very first steps see the initial state.
  for (int64_t row = K - 2; k >= 0; k--, row--) window[k] = restarted ? zeros : state + row * D;
}

// Moves the window on: the row of step t enters.
template <class Row> void advance(Row* window, int64_t taps, Row row) {
  for (int64_t k = 0; k + 2 < taps; k++) window[k] = window[k + 1];
  if (taps > 1) window[taps - 2] = row;
}

// body(d, count) for every vector of the channels [first, last). `count` is a constant for whole vectors, so that their loads and
// stores have no branch.
template <class T, class Body> INLINE void for_vectors(int64_t first, int64_t last, const Body& body) {
  int64_t d = first;
  for (; d + lanes<T> <= last; d += lanes<T>) body(d, lanes<T>);
  if (d < last) body(d, int(last - d));
}

// TAPS: the number of taps, or 0 if it is only known when the kernel runs.
template <class T, int TAPS> void forward(const ShortConv& s) {
  const int64_t L = s.length, D = s.channels, K = TAPS ? TAPS : s.taps, runs = ceil_div(L, STEPS);
  const int team = workers(s.batch * runs, s.threads);
  Buffer<T> weight(K * D), states(s.batch * (K - 1) * D), zeros(D);
  Buffer<const T*> windows(team * K);
  transpose(weight.data(), at<T>(s.weight, 0), D, K);
  for (int64_t b = 0; b < s.batch; b++)
    transpose(states.slice(b, (K - 1) * D), at<T>(s.initial_state, b * D * (K - 1)), D, K - 1);
  for (int64_t d = 0; d < D; d++) zeros.data()[d] = 0;

  parallel_for(s.batch * runs, s.threads, [&](int64_t task, int worker) {
    const int64_t b = task / runs, begin = task % runs * STEPS, end = begin + STEPS < L ? begin + STEPS : L;
    const T *u = at<T>(s.u, b * L * D), *bias = at<T>(s.bias, 0), *w = weight.data();
    T* y = at<T>(s.y, b * L * D);
    const uint8_t* flags = s.flags ? s.flags + b * L : nullptr;
    const T** window = windows.slice(worker, K);
    window_before(s, window, b, begin, u, states.slice(b, (K - 1) * D), zeros.data());
    for (int64_t t = begin; t < end; t++) {
      if (flags && flags[t] & INVALID) {
        memset(y + t * D, 0, sizeof(T) * D);
        continue;
      }
      if (flags && flags[t] & RESET)
        for (int64_t k = 0; k < K - 1; k++) window[k] = zeros.data();
      window[K - 1] = u + t * D;
      for_vectors<T>(0, D, [&](int64_t d, int count) __attribute__((always_inline)) {
        Vec<T> sum = bias ? load(bias + d, count) : Vec<T>{};
        for (int64_t k = 0; k < K; k++) sum += load(w + k * D + d, count) * load(window[k] + d, count);
        store(y + t * D + d, s.silu ? silu(sum) : sum, count);
      });
      advance(window, K, u + t * D);
    }
    if (end == L)
      for (int64_t d = 0; d < D; d++)
        for (int64_t k = 0; k < K - 1; k++) at<T>(s.final_state, 0)[(b * D + d) * (K - 1) + k] = window[k][d];
  });
}

template <class T, int TAPS> void backward(const ShortConvGradients& g) {
  const ShortConv& s = g.forward;
  const int64_t L = s.length, D = s.channels, K = TAPS ? TAPS : s.taps;
  // Whole rows are read fastest. No sum goes over channels, so results do not depend on the width.
  const int64_t width = s.batch >= 2 * s.threads ? ceil_div(D, lanes<T>) * lanes<T> : STRIP * lanes<T>;
  const int64_t strips = ceil_div(D, width);
  const int64_t tasks = s.batch * strips;
  const int team = workers(tasks, s.threads);
  Buffer<T> weight(K * D), states(s.batch * (K - 1) * D), zeros(D), unused(team * width);
  Buffer<T> d_states(team * (K - 1) * width), sums(team * 2 * (K + 1) * width), d_weight(s.batch * K * D), d_bias(s.batch * D);
  Buffer<const T*> windows(team * K);
  Buffer<T*> d_windows(team * K);
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
    const T** window = windows.slice(worker, K);
    T** d_window = d_windows.slice(worker, K);
    for (int64_t k = 0; k < K - 1; k++) {
      window[k] = states.slice(b, (K - 1) * D) + k * D;
      d_window[k] = d_state + k * width - first;
    }
    for (int64_t t = 0; t < L; t++) {
      if (flags && flags[t] & INVALID) {
        memset(du + t * D + first, 0, sizeof(T) * (last - first));
        continue;
      }
      if (flags && flags[t] & RESET)
        for (int64_t k = 0; k < K - 1; k++) window[k] = zeros.data(), d_window[k] = nowhere;
      window[K - 1] = u + t * D;
      d_window[K - 1] = du + t * D;
      for_vectors<T>(first, last, [&](int64_t d, int count) __attribute__((always_inline)) {
        Vec<T> d_sum = load(gy + t * D + d, count);
        if (s.silu) {
          Vec<T> sum = bias ? load(bias + d, count) : Vec<T>{};
          for (int64_t k = 0; k < K; k++) sum += load(w + k * D + d, count) * load(window[k] + d, count);
          const Vec<T> sigma = sigmoid(sum);
          d_sum *= sigma * (1 + sum * (1 - sigma));
        }
        for (int64_t k = 0; k < K; k++) {
          T* const to = part + k * width + d - first;
          store(to, load(to) + d_sum * load(window[k] + d, count));
          const Vec<T> back = load(w + k * D + d, count) * d_sum;
          store(d_window[k] + d, k == K - 1 ? back : load(d_window[k] + d, count) + back, count);
        }
        T* const to = part + K * width + d - first;
        store(to, load(to) + d_sum);
      });
      advance(window, K, u + t * D);
      advance(d_window, K, du + t * D);
      if (t % STEPS == STEPS - 1)
        for (int64_t i = 0; i < (K + 1) * width; i++) total[i] += part[i], part[i] = 0;
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
