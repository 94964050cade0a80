// The linear scan, forward and backward. Symbols: linear_scan.h.
//
// Lanes contain neighbouring numbers of S. A task is one batch row and a strip of S, all of S unless threads would have no task; it
// goes through time once, step by step over the whole strip, so that each tensor is read or written as one run of memory: the scan is
// limited by memory bandwidth. The state is the previous row of x. Backward, in the reverse order of the scan:
//   g_t = dL/dx_t + conj(a_next) g_next        db_t = g_t        da_t = g_t conj(x_before)
// "next" and "before" being the neighbouring valid steps; across a restart both terms with a are zero. Where a is constant, da is
// summed over the steps in pieces of PIECE, then over the batch in order.
#include "linear_scan.h"

#include "arrays.h"
#include "simd.h"

namespace longscan::LONGSCAN_ISA {
namespace {

constexpr int PIECE = 64;
constexpr int STRIP = 4;  // the least number of vectors of a strip
// Bytes by which the backward pass fetches its five tensors into the cache before it reads or writes them, where rows are shorter:
// hardware fetches long rows.
constexpr int AHEAD = 2048;

// A vector of factors in the form in which they multiply numbers: a x = re x + im swap(x), where im has alternating signs.
template <class T, bool is_complex> struct Factor;
template <class T> struct Factor<T, false> {
  Vec<T> re;
  INLINE Factor(Vec<T> a) : re(a) {}
  INLINE Vec<T> operator()(Vec<T> x) const { return re * x; }
  INLINE Factor conj() const { return *this; }
};
template <class T> struct Factor<T, true> {
  Vec<T> re, im;
  INLINE Factor(Vec<T> a) : re(first_of_pairs(a)), im(second_of_pairs(a) * signs()) {}
  INLINE Vec<T> operator()(Vec<T> x) const { return re * x + im * swap_pairs(x); }
  INLINE Factor conj() const {
    Factor out = *this;
    out.im = -im;
    return out;
  }
  INLINE static Vec<T> signs() {
    alignas(64) static constexpr T alternating[16] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
    return load(alternating);
  }
};

template <class T, bool is_complex> void run_forward(const LinearScan& s, int64_t row, int64_t first, int64_t last) {
  using F = Factor<T, is_complex>;
  const int64_t S = s.size, L = s.length, bytes = sizeof(T) * (last - first);
  const T *a = at<T>(s.a, s.constant ? 0 : row * L * S), *b = at<T>(s.b, row * L * S);
  const uint8_t* flags = s.flags ? s.flags + row * L : nullptr;
  const T* state = at<T>(s.initial_state, row * S);
  for (int64_t i = 0; i < L; i++) {
    const int64_t t = s.reverse ? L - 1 - i : i;
    T* const x = at<T>(s.x, (row * L + t) * S);
    if (flags && flags[t] & INVALID) {
      memset(x + first, 0, bytes);
      continue;
    }
    const T *factors = s.constant ? a : a + t * S, *inputs = b + t * S;
    if (flags && flags[t] & RESET)
      memcpy(x + first, inputs + first, bytes);
    else
      for_vectors<T>(first, last, [&](int64_t d, int count) __attribute__((always_inline)) {
        store(x + d, F(load(factors + d, count))(load(state + d, count)) + load(inputs + d, count), count);
      });
    state = x;
  }
  memcpy(at<T>(s.final_state, row * S + first), state + first, bytes);
}

// Scratch memory of a backward task: numbers of its strip, and where a is constant the sums of da over a piece and over the pieces.
template <class T> struct Scratch {
  T *carry, *piece, *total;  // carry: conj(a_next) g_next
};

// da_parts (B, S) receives the sums over time where a is constant.
template <class T, bool is_complex>
void run_backward(const LinearScanGradients& g, Scratch<T> scratch, T* da_parts, int64_t row, int64_t first, int64_t last) {
  using F = Factor<T, is_complex>;
  const LinearScan& s = g.forward;
  const int64_t S = s.size, L = s.length, bytes = sizeof(T) * (last - first);
  const uint8_t* flags = s.flags ? s.flags + row * L : nullptr;
  auto time = [&](int64_t i) { return s.reverse ? L - 1 - i : i; };  // step of the tensors for step i of the scan
  const int64_t distance = S * int64_t(sizeof(T)) < AHEAD ? AHEAD / int64_t(sizeof(T)) : 0, ahead = s.reverse ? distance : -distance;
  T *const carry = scratch.carry - first, *const piece = scratch.piece - first, *const total = scratch.total - first;
  if (g.final_state)
    memcpy(carry + first, at<T>(g.final_state, row * S + first), bytes);
  else
    memset(carry + first, 0, bytes);
  if (s.constant) memset(piece + first, 0, bytes), memset(total + first, 0, bytes);
  int64_t before = L - 1;  // the last valid step of the scan before the present one; -1: the initial state
  for (int64_t i = L - 1; i >= 0; i--) {
    const int64_t t = time(i), start = (row * L + t) * S;
    T *const da = s.constant ? nullptr : at<T>(g.a, start), *const db = at<T>(g.b, start);
    if (flags && flags[t] & INVALID) {
      memset(db + first, 0, bytes);
      if (da) memset(da + first, 0, bytes);
      continue;
    }
    if (before >= i) before = i - 1;
    while (flags && before >= 0 && flags[time(before)] & INVALID) before--;
    const T *const gx = at<T>(g.gx, start), *const a = at<T>(s.a, s.constant ? 0 : start);
    const T* const x = before < 0 ? at<T>(s.initial_state, row * S) : at<T>(static_cast<const void*>(s.x), (row * L + time(before)) * S);
    if (flags && flags[t] & RESET) {
      for_vectors<T>(first, last, [&](int64_t d, int count) __attribute__((always_inline)) {
        store(db + d, load(carry + d, count) + load(gx + d, count), count);
      });
      if (da) memset(da + first, 0, bytes);
      memset(carry + first, 0, bytes);
    } else {
      for_vectors<T>(first, last, [&](int64_t d, int count) __attribute__((always_inline)) {
        __builtin_prefetch(gx + d + ahead);
        __builtin_prefetch(x + d + ahead);
        __builtin_prefetch(db + d + ahead, 1);
        const Vec<T> now = load(carry + d, count) + load(gx + d, count), product = F(load(x + d, count)).conj()(now);
        store(db + d, now, count);
        store(carry + d, F(load(a + d, count)).conj()(now), count);
        if (da) {
          __builtin_prefetch(a + d + ahead);
          __builtin_prefetch(da + d + ahead, 1);
          store(da + d, product, count);
        } else {
          store(piece + d, load(piece + d, count) + product, count);
        }
      });
    }
    if (s.constant && i % PIECE == 0)
      for (int64_t d = first; d < last; d++) total[d] += piece[d], piece[d] = 0;
  }
  memcpy(at<T>(g.initial_state, row * S + first), carry + first, bytes);
  if (s.constant)
    for (int64_t d = first; d < last; d++) da_parts[row * S + d] = total[d] + piece[d];
}

// The numbers of a strip: all, or if the rows of the batch are fewer than two for each thread, a part that is a multiple of STRIP
// vectors. No result depends on it.
template <class T> int64_t strip_width(const LinearScan& s) {
  const int64_t strips = ceil_div(2 * s.threads, s.batch > 0 ? s.batch : 1), least = STRIP * lanes<T>;
  return s.threads > 1 ? ceil_div(ceil_div(s.size, strips), least) * least : s.size;
}

// Calls task(row, first, last, worker) for every batch row and strip of S.
template <class Task> void for_strips(const LinearScan& s, int64_t width, const Task& task) {
  const int64_t strips = width > 0 ? ceil_div(s.size, width) : 0;
  parallel_for(s.batch * strips, s.threads, [&](int64_t i, int worker) {
    const int64_t first = i % strips * width;
    task(i / strips, first, first + width < s.size ? first + width : s.size, worker);
  });
}

template <class T, bool is_complex> void forward(const LinearScan& s) {
  for_strips(s, strip_width<T>(s), [&](int64_t row, int64_t first, int64_t last, int) {
    run_forward<T, is_complex>(s, row, first, last);
  });
}

template <class T, bool is_complex> void backward(const LinearScanGradients& g) {
  const LinearScan& s = g.forward;
  const int64_t width = strip_width<T>(s);
  const int team = s.threads > 1 ? s.threads : 1;
  Buffer<T> carries(team * width), pieces(s.constant ? team * width : 0), totals(s.constant ? team * width : 0);
  Buffer<T> da_parts(s.constant ? s.batch * s.size : 0);
  for_strips(s, width, [&](int64_t row, int64_t first, int64_t last, int worker) {
    const Scratch<T> scratch = {carries.slice(worker, width), pieces.slice(worker, width), totals.slice(worker, width)};
    run_backward<T, is_complex>(g, scratch, da_parts.data(), row, first, last);
  });
  if (s.constant) add_up(at<T>(g.a, 0), da_parts.data(), s.batch, s.size, s.threads);
}

}  // namespace

void linear_scan_forward(const LinearScan& s) {
  if (s.is_double)
    s.is_complex ? forward<double, true>(s) : forward<double, false>(s);
  else
    s.is_complex ? forward<float, true>(s) : forward<float, false>(s);
}

void linear_scan_backward(const LinearScanGradients& g) {
  if (g.forward.is_double)
    g.forward.is_complex ? backward<double, true>(g) : backward<double, false>(g);
  else
    g.forward.is_complex ? backward<float, true>(g) : backward<float, false>(g);
}

}  // namespace longscan::LONGSCAN_ISA
