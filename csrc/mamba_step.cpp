// One token through a Mamba block. Symbols: mamba_step.h.
//
// For one token most of the time is spent on reading the weights. Each weight is read once for all rows, in one parallel region
// with a barrier between stages (in_proj and convolution; x_proj; dt_proj and scan; out_proj). Each worker computes with the same
// rows of the weights at every token, so that they stay in its cache. The order of every sum is independent of the number of threads.
#include "mamba_step.h"

#include "arrays.h"
#include "simd.h"

namespace longscan::LONGSCAN_ISA {
namespace {

constexpr int OUTPUTS = 4;  // rows of a weight that are computed together and share the loads of x

// to[i] = W_i . x for `rows` (up to OUTPUTS) consecutive rows of W of length `size`
template <class T, int rows> INLINE void dots(T* to, const T* W, const T* x, int64_t size) {
  Vec<T> sums[rows] = {};
  for (int64_t k = 0; k < size; k += lanes<T>) {
    const int count = int(size - k < lanes<T> ? size - k : lanes<T>);
    const Vec<T> part = load(x + k, count);
    for (int i = 0; i < rows; i++) sums[i] += load(W + i * size + k, count) * part;
  }
  for (int i = 0; i < rows; i++) to[i] = sum<T>(sums[i]);
}

// outputs (B, total)[:, begin:end] = inputs (B, size) W^T; a strip of W stays in the cache for all rows of the batch.
template <class T>
void project(T* outputs, const T* W, const T* inputs, int64_t batch, int64_t size, int64_t total, int64_t begin, int64_t end) {
  for (int64_t o = begin; o < end; o += OUTPUTS)
    for (int64_t b = 0; b < batch; b++) {
      T* const to = outputs + b * total + o;
      const T* const x = inputs + b * size;
      if (o + OUTPUTS <= end)
        dots<T, OUTPUTS>(to, W + o * size, x, size);
      else
        for (int64_t i = 0; o + i < end; i++) dots<T, 1>(to + i, W + (o + i) * size, x, size);
    }
}

// A worker's share [begin, end) of `items`, in whole vectors where `items` allows.
struct Share {
  int64_t begin, end;
  Share(int64_t items, int64_t grain, Worker worker) {
    const int64_t grains = ceil_div(items, grain);
    begin = grains * worker.index / worker.team * grain;
    end = grains * (worker.index + 1) / worker.team * grain;
    if (end > items) end = items;
  }
};

template <class T> void run(const MambaStep& s) {
  const int64_t B = s.batch, M = s.width, E = s.inner, K = s.taps, R = s.rank, N = s.states, selected = R + 2 * N;
  Buffer<T> normed(B * M), inner(B * 2 * E), before(B * E), after(B * E), selection(B * selected), gated(B * E);
  auto skipped = [&](int64_t b) { return s.active && !s.active[b]; };

  // RMSNorm: small enough for the caller's thread.
  const T* x = at<T>(s.x, 0);
  if (s.norm_weight) {
    const T* weight = at<T>(s.norm_weight, 0);
    for (int64_t b = 0; b < B; b++) {
      Vec<T> squares{};
      for (int64_t i = 0; i < M; i += lanes<T>) {
        const Vec<T> part = load(x + b * M + i, int(M - i < lanes<T> ? M - i : lanes<T>));
        squares += part * part;
      }
      const T size = T(1) / T(__builtin_sqrt(double(sum<T>(squares)) / double(M) + s.norm_eps));
      for (int64_t i = 0; i < M; i++) normed.data()[b * M + i] = x[b * M + i] * size * weight[i];
    }
    x = normed.data();
  }

  parallel_stages(s.threads, [&](Worker worker) {
    // A worker's channels: their two rows of in_proj, then the convolution, and later the scan.
    const Share mine(E, lanes<T>, worker);
    project(inner.data(), at<T>(s.in_proj, 0), x, B, M, 2 * E, mine.begin, mine.end);
    project(inner.data(), at<T>(s.in_proj, 0), x, B, M, 2 * E, E + mine.begin, E + mine.end);
    for (int64_t b = 0; b < B; b++) {
      const T* state = at<T>(s.conv_state, b * E * (K - 1));
      T* next = at<T>(s.conv_after, b * E * (K - 1));
      for (int64_t e = mine.begin; e < mine.end; e++) {
        const T* weight = at<T>(s.conv_weight, e * K);
        const T input = inner.data()[b * 2 * E + e];
        T total = s.conv_bias ? at<T>(s.conv_bias, 0)[e] : T(0);
        for (int64_t k = 0; k < K - 1; k++) total += weight[k] * state[e * (K - 1) + k];
        before.data()[b * E + e] = total + weight[K - 1] * input;
        for (int64_t k = 0; k < K - 1; k++)
          next[e * (K - 1) + k] = skipped(b) ? state[e * (K - 1) + k] : k + 2 < K ? state[e * (K - 1) + k + 1] : input;
      }
      for (int64_t e = mine.begin; e < mine.end; e += lanes<T>) {
        const int count = int(mine.end - e < lanes<T> ? mine.end - e : lanes<T>);
        store(after.data() + b * E + e, silu(load(before.data() + b * E + e, count)), count);
      }
    }
    worker.barrier();

    const Share outputs(selected, OUTPUTS, worker);
    project(selection.data(), at<T>(s.x_proj, 0), s.selects_raw ? before.data() : after.data(), B, E, selected, outputs.begin,
            outputs.end);
    worker.barrier();

    for (int64_t b = 0; b < B; b++) {
      const T *q = selection.data() + b * selected, *selected_B = q + R, *selected_C = q + R + N;
      const T* state = at<T>(s.ssm_state, b * E * N);
      T* next = at<T>(s.ssm_after, b * E * N);
      if (skipped(b)) {
        memcpy(next + mine.begin * N, state + mine.begin * N, sizeof(T) * (mine.end - mine.begin) * N);
        continue;
      }
      for (int64_t first = mine.begin; first < mine.end; first += lanes<T>) {
        const int count = int(mine.end - first < lanes<T> ? mine.end - first : lanes<T>);
        T dt[lanes<T>] = {}, y[lanes<T>] = {};
        for (int i = 0; i < count; i++) dots<T, 1>(dt + i, at<T>(s.dt_proj, (first + i) * R), q, R);
        Vec<T> step = softplus(load(dt) + load(at<T>(s.dt_bias, first), count));
        if (s.elapsed) step *= at<T>(s.elapsed, 0)[b];
        const Vec<T> u = load(after.data() + b * E + first, count);
        store(dt, step);
        for (int i = 0; i < count; i++) {
          const T entering = dt[i] * after.data()[b * E + first + i];
          Vec<T> total{};
          for (int64_t n = 0; n < N; n += lanes<T>) {
            const int some = int(N - n < lanes<T> ? N - n : lanes<T>);
            const int64_t to = (first + i) * N + n;
            const Vec<T> decay = exp(-dt[i] * exp(load(at<T>(s.A_log, to), some)));
            const Vec<T> h = decay * load(state + to, some) + entering * load(selected_B + n, some);
            store(next + to, h, some);
            total += load(selected_C + n, some) * h;
          }
          y[i] = sum<T>(total);
        }
        Vec<T> out = load(y);
        if (s.D) out += load(at<T>(s.D, first), count) * u;
        store(gated.data() + b * E + first, out * silu(load(inner.data() + (2 * b + 1) * E + first, count)), count);
      }
    }
    worker.barrier();

    const Share rows(M, OUTPUTS, worker);
    T* const y = at<T>(s.y, 0);
    project(y, at<T>(s.out_proj, 0), gated.data(), B, E, M, rows.begin, rows.end);
    for (int64_t b = 0; b < B; b++)
      for (int64_t i = rows.begin; i < rows.end; i++)
        y[b * M + i] = (skipped(b) ? T(0) : y[b * M + i]) + (s.norm_weight ? at<T>(s.x, 0)[b * M + i] : T(0));
  });
}

}  // namespace

void mamba_step(const MambaStep& s) { s.is_double ? run<double>(s) : run<float>(s); }

}  // namespace longscan::LONGSCAN_ISA
