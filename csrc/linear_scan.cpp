// The linear scan, forward and backward. Symbols: linear_scan.h.
//
// Lanes contain neighbouring numbers of S. A task is one batch row and a strip of vectors whose states stay in registers; the scan
// goes through time once and is limited by memory bandwidth. Backward, in the reverse order of the scan:
//   g_t = dL/dx_t + conj(a_next) g_next        db_t = g_t        da_t = g_t conj(x_before)
// "next" and "before" being the neighbouring valid steps; across a restart both terms with a are zero. Where a is constant, da is
// summed over the steps in pieces of PIECE, then over the batch in order.
#include "linear_scan.h"

#include "arrays.h"
#include "simd.h"

namespace longscan::LONGSCAN_ISA {
namespace {

constexpr int PIECE = 64;
constexpr int STRIP = 4;  // vectors of a task
// Steps by which the backward pass fetches rows into the cache before it reads or writes them: 2 KiB of a strip, because the five
// tensors rarely fit into the second-level cache together. Only in whole strips and where rows are whole cache lines: elsewhere the
// further instructions cost more time than they save.
constexpr int AHEAD = 2048 / (STRIP * VECTOR_BYTES);
constexpr int LINE = 64;  // bytes of a cache line

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

// The number of elements of vector `j` of a task that starts at `first`; the last vector may be incomplete.
template <class T> INLINE int lanes_left(int64_t size, int64_t first) {
  return int(size - first < lanes<T> ? size - first : lanes<T>);
}

template <class T, bool is_complex, int VECTORS> void run_forward(const LinearScan& s, int64_t row, int64_t first) {
  using F = Factor<T, is_complex>;
  const int64_t S = s.size, L = s.length;
  const int count = VECTORS == 1 ? lanes_left<T>(S, first) : lanes<T>;
  const T *b = at<T>(s.b, row * L * S + first), *a = at<T>(s.a, s.constant ? first : row * L * S + first);
  T* x = at<T>(s.x, row * L * S + first);
  const uint8_t* flags = s.flags ? s.flags + row * L : nullptr;
  Vec<T> state[VECTORS], factor[VECTORS];
  for (int j = 0; j < VECTORS; j++) {
    state[j] = load(at<T>(s.initial_state, row * S + first + j * lanes<T>), count);
    factor[j] = s.constant ? load(a + j * lanes<T>, count) : Vec<T>{};
  }
  for (int64_t i = 0; i < L; i++) {
    const int64_t t = s.reverse ? L - 1 - i : i;
    const bool invalid = flags && flags[t] & INVALID, reset = flags && flags[t] & RESET;
    for (int j = 0; j < VECTORS; j++) {
      const int64_t to = t * S + j * lanes<T>;
      if (invalid) {
        store(x + to, Vec<T>{}, count);
        continue;
      }
      const F now(s.constant ? factor[j] : load(a + to, count));
      state[j] = (reset ? Vec<T>{} : now(state[j])) + load(b + to, count);
      store(x + to, state[j], count);
    }
  }
  for (int j = 0; j < VECTORS; j++) store(at<T>(s.final_state, row * S + first + j * lanes<T>), state[j], count);
}

// da_parts (B, S) receives the sums over time where a is constant.
template <class T, bool is_complex, int VECTORS>
void run_backward(const LinearScanGradients& g, T* da_parts, int64_t row, int64_t first) {
  using F = Factor<T, is_complex>;
  const LinearScan& s = g.forward;
  const int64_t S = s.size, L = s.length;
  const int count = VECTORS == 1 ? lanes_left<T>(S, first) : lanes<T>;
  const int64_t start = row * L * S + first;
  const T *a = at<T>(s.a, s.constant ? first : start), *x = at<T>(static_cast<const void*>(s.x), start), *gx = at<T>(g.gx, start);
  T *da = s.constant ? nullptr : at<T>(g.a, start), *db = at<T>(g.b, start);
  const uint8_t* flags = s.flags ? s.flags + row * L : nullptr;
  auto time = [&](int64_t i) { return s.reverse ? L - 1 - i : i; };  // step of the tensors for step i of the scan
  Vec<T> carry[VECTORS], factor[VECTORS], piece[VECTORS], total[VECTORS];
  for (int j = 0; j < VECTORS; j++) {
    carry[j] = g.final_state ? load(at<T>(g.final_state, row * S + first + j * lanes<T>), count) : Vec<T>{};
    factor[j] = s.constant ? load(a + j * lanes<T>, count) : Vec<T>{};
    piece[j] = total[j] = Vec<T>{};
  }
  const bool fetches = VECTORS == STRIP && S * sizeof(T) % LINE == 0;
  const int64_t ahead = (s.reverse ? AHEAD : -AHEAD) * S;
  int64_t before = L - 1;  // the last valid step of the scan before the present one; -1: the initial state
  for (int64_t i = L - 1; i >= 0; i--) {
    const int64_t t = time(i);
    const bool reset = flags && flags[t] & RESET;
    if (flags && flags[t] & INVALID) {
      for (int j = 0; j < VECTORS; j++) {
        store(db + t * S + j * lanes<T>, Vec<T>{}, count);
        if (da) store(da + t * S + j * lanes<T>, Vec<T>{}, count);
      }
      continue;
    }
    if (before >= i) before = i - 1;
    while (flags && before >= 0 && flags[time(before)] & INVALID) before--;
    for (int j = 0; j < VECTORS; j++) {
      const int64_t to = t * S + j * lanes<T>;
      if (fetches && i >= AHEAD && j * VECTOR_BYTES % LINE == 0) {
        const int64_t next = to + ahead;
        __builtin_prefetch(gx + next);
        __builtin_prefetch(x + next);
        __builtin_prefetch(db + next, 1);
        if (da) __builtin_prefetch(a + next), __builtin_prefetch(da + next, 1);
      }
      carry[j] += load(gx + to, count);
      store(db + to, carry[j], count);
      Vec<T> product{};
      if (!reset) {
        const T* previous =
            before < 0 ? at<T>(s.initial_state, row * S + first + j * lanes<T>) : x + time(before) * S + j * lanes<T>;
        product = F(load(previous, count)).conj()(carry[j]);
        carry[j] = F(s.constant ? factor[j] : load(a + to, count)).conj()(carry[j]);
      } else {
        carry[j] = Vec<T>{};
      }
      if (da) store(da + to, product, count);
      piece[j] += product;
    }
    if (i % PIECE == 0)
      for (int j = 0; j < VECTORS; j++) total[j] += piece[j], piece[j] = Vec<T>{};
  }
  for (int j = 0; j < VECTORS; j++) {
    store(at<T>(g.initial_state, row * S + first + j * lanes<T>), carry[j], count);
    if (s.constant) store(da_parts + row * S + first + j * lanes<T>, total[j] + piece[j], count);
  }
}

// Calls task(row, first, whole) for every batch row and strip of S; whole: the strip has STRIP vectors, otherwise a single one.
template <class T, class Task> void for_strips(const LinearScan& s, const Task& task) {
  const int64_t whole = s.size / (STRIP * lanes<T>), rest = ceil_div(s.size - whole * STRIP * lanes<T>, lanes<T>);
  parallel_for(s.batch * (whole + rest), s.threads, [&](int64_t i, int) {
    const int64_t row = i / (whole + rest), strip = i % (whole + rest);
    if (strip < whole)
      task(row, strip * STRIP * lanes<T>, true);
    else
      task(row, (whole * STRIP + strip - whole) * lanes<T>, false);
  });
}

template <class T, bool is_complex> void forward(const LinearScan& s) {
  for_strips<T>(s, [&](int64_t row, int64_t first, bool whole) {
    whole ? run_forward<T, is_complex, STRIP>(s, row, first) : run_forward<T, is_complex, 1>(s, row, first);
  });
}

template <class T, bool is_complex> void backward(const LinearScanGradients& g) {
  const LinearScan& s = g.forward;
  Buffer<T> da_parts(s.constant ? s.batch * s.size : 0);
  for_strips<T>(s, [&](int64_t row, int64_t first, bool whole) {
    whole ? run_backward<T, is_complex, STRIP>(g, da_parts.data(), row, first)
          : run_backward<T, is_complex, 1>(g, da_parts.data(), row, first);
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
