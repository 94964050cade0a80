// The S6 scan, forward and backward. Symbols: selective_scan.h.
//
// Lanes contain neighbouring channels: the recurrence needs no communication between lanes, and N states share one load of dt.
// Work is divided into chunks of CHUNK steps and blocks of `lanes` channels. For a block and chunk, dt (after bias, softplus and
// scale), dt u and y are in scratch memory that fits into the first-level cache. NB states are computed together, with the loop
// over time innermost, so that h and A stay in registers.
//
// The backward pass computes the chunks in reverse. For each it runs the recurrence again from the saved state and stores
//   decay_t = exp(dt_t A)   and   the state before the step, h_{t-1}, which is 0 where the state restarts
// Then it goes back through the chunk with the adjoint g_t = dL/dh_t = k gy_t conj(C_t) + conj(decay_{t+1}) g_{t+1}, without
// g_{t+1} where the state restarts at t + 1:
//   dC_t = sum_d k gy_t conj(h_t)        dB_t = sum_d g_t dt_t u_t        d(dt_t u_t) = sum_n Re(g_t conj(B_t))
//   dA   = sum_t w_t dt_t                d(dt_t) += sum_n Re(w_t conj(A)),  w_t = conj(decay_t) g_t conj(h_{t-1}) = dL/d(dt_t A)
// Sums over channels (dB, dC, d dt_scale) go over the blocks of a group, then over lanes, then over groups, always in this order; sums over the batch (dA, dD, d dt_bias) go over rows in order. No result depends on the number of threads.
//
// An invalid step is replaced by dt = 0, u = 0, B = C = 0, z = 0 when its chunk is loaded. So it does not change the state, and
// the values of the inputs there, such as NaN, reach no result.
#include "selective_scan.h"

#include "arrays.h"
#include "numbers.h"

namespace longscan::LONGSCAN_ISA {
namespace {

constexpr int CHUNK = selective_scan_chunk(Isa::LONGSCAN_ISA);
// Number of states that are computed together in the inner loops: as many as fit into the registers.
template <class Num> constexpr int BATCH = VECTOR_BYTES == 64 ? (Num::PARTS == 1 ? 8 : 2) : (Num::PARTS == 1 ? 2 : 1);

// The runs of steps of a chunk between restarts of the state.
struct Segments {
  int count = 0, start[CHUNK + 1];
  bool first_resets = false;

  Segments(const uint8_t* flags, int steps) {
    start[count++] = 0;
    for (int t = 0; flags && t < steps; t++) {
      if (!(flags[t] & RESET)) continue;
      if (t == 0)
        first_resets = true;
      else
        start[count++] = t;
    }
    start[count] = steps;
  }
  bool resets(int i) const { return i > 0 || first_resets; }
};

// Reads `count` channels of a (D, N) tensor into [n][part][lane] scratch, or writes them.
template <class Num, class T> void gather_states(T* scratch, const T* tensor, int64_t states, int count) {
  for (int64_t n = 0; n < states; n++)
    for (int part = 0; part < Num::PARTS; part++)
      for (int lane = 0; lane < lanes<T>; lane++)
        scratch[(n * Num::PARTS + part) * lanes<T> + lane] =
            tensor && lane < count ? tensor[(lane * states + n) * Num::PARTS + part] : T(0);
}
template <class Num, class T> void scatter_states(T* tensor, const T* scratch, int64_t states, int count) {
  for (int64_t n = 0; n < states; n++)
    for (int part = 0; part < Num::PARTS; part++)
      for (int lane = 0; lane < count; lane++)
        tensor[(lane * states + n) * Num::PARTS + part] = scratch[(n * Num::PARTS + part) * lanes<T> + lane];
}

// B or C of a chunk, zero at invalid steps.
template <class Num, class T> const T* clean_rows(const T* rows, T* scratch, const uint8_t* flags, int steps, int64_t states) {
  if (!flags) return rows;
  int64_t width = states * Num::PARTS;
  for (int t = 0; t < steps; t++)
    for (int64_t i = 0; i < width; i++) scratch[t * width + i] = flags[t] & INVALID ? T(0) : rows[t * width + i];
  return scratch;
}

// Inputs and results of the recurrences at one step of one block of channels. The fields of a step are adjacent in memory, because
// arrays that are a multiple of 4 KiB apart would map to the same few cache sets.
template <class T> struct Step {
  T dt[lanes<T>];   // after bias, softplus and scale
  T du[lanes<T>];   // dt u
  T y[lanes<T>];    // before the gate
};

// The fields of Step and those that only the backward pass needs.
template <class T> struct GradStep : Step<T> {
  T softplus_derivative[lanes<T>];  // d dt / d raw dt
  T gy[lanes<T>];                   // the gradient of y before the gate
  T d_gate[lanes<T>];               // the gradient of the gate divided by y: of y after the gate, times the derivative of the gate
  T d_du[lanes<T>];                 // gradients of dt u and, through the decay, of dt
  T d_dt[lanes<T>];
};

template <class T> INLINE void store_softplus_derivative(Step<T>&, Vec<T>) {}
template <class T> INLINE void store_softplus_derivative(GradStep<T>& step, Vec<T> derivative) {
  store(step.softplus_derivative, derivative);
}

template <class T, class Steps>
void prepare(const SelectiveScan& a, Steps* block, int64_t row, int64_t d, int count, int steps, const uint8_t* flags) {
  const T *u = at<T>(a.u, row * a.channels + d), *dt = at<T>(a.dt, row * a.channels + d), *scale = at<T>(a.dt_scale, row);
  Vec<T> bias = a.dt_bias ? load(at<T>(a.dt_bias, d), count) : Vec<T>{}, skip = a.D ? load(at<T>(a.D, d), count) : Vec<T>{};
  for (int t = 0; t < steps; t++) {
    Softplus<T> step = {};
    Vec<T> input{};
    if (!flags || !(flags[t] & INVALID)) {
      Vec<T> raw = load(dt + t * a.channels, count) + bias, factor = broadcast<T>(scale ? scale[t] : T(1));
      step = a.dt_softplus ? softplus_and_derivative<T>(raw) : Softplus<T>{raw, broadcast<T>(1)};
      step = {step.value * factor, step.derivative * factor};
      input = load(u + t * a.channels, count);
    }
    store_softplus_derivative<T>(block[t], step.derivative);
    store(block[t].dt, step.value);
    store(block[t].du, step.value * input);
    store(block[t].y, skip * input);
  }
}

// A with its real part times log2(e), and exp(dt A) from it.
template <class Num> INLINE Num times_log2e(Num A) {
  A.re *= typename Num::value_type(1.4426950408889634);
  return A;
}
template <class T> INLINE Real<T> decay(Vec<T> dt, Real<T> A) { return {exp2_bounded(dt * A.re)}; }
template <class T> INLINE Complex<T> decay(Vec<T> dt, Complex<T> A) {
  Vec<T> size = exp2_bounded(dt * A.re);
  SinCos<T> turn = sincos(dt * A.im);
  return {size * turn.cos, size * turn.sin};
}

// ---------------------------------------------------------------------------------------------- forward

// Prefetches rows of the next chunk while this one is computed: rows are too far apart for hardware prefetchers.
template <class T> struct Ahead {
  const T *first, *second;
  int64_t stride;
  INLINE void fetch(int t) const {
    __builtin_prefetch(first + t * stride);
    __builtin_prefetch(second + t * stride);
  }
};

// Steps [begin, end) of NB states: h is continued in `state`, k Re(C h) is added to block.y.
template <class Num, int NB, class T = typename Num::value_type>
void recur(Step<T>* block, const T* A, T* state, const T* B, const T* C, int64_t row_size, T k, int begin, int end, Ahead<T> ahead) {
  constexpr int WIDTH = Num::PARTS * lanes<T>;
  Num a[NB], h[NB];
  for (int i = 0; i < NB; i++) a[i] = times_log2e(load_number<Num>(A + i * WIDTH)), h[i] = load_number<Num>(state + i * WIDTH);
  for (int t = begin; t < end; t++) {
    Vec<T> dt = load(block[t].dt), du = load(block[t].du);
    ahead.fetch(t);
    Vec<T> y{};
    for (int i = 0; i < NB; i++) {
      h[i] = decay(dt, a[i]) * h[i] + times(broadcast_number<Num>(B + t * row_size + i * Num::PARTS), du);
      y = add_real_product(y, broadcast_number<Num>(C + t * row_size + i * Num::PARTS), h[i]);
    }
    store(block[t].y, load(block[t].y) + k * y);
  }
  for (int i = 0; i < NB; i++) store_number(state + i * WIDTH, h[i]);
}

template <class Num, int NB, class T = typename Num::value_type>
void recur_segments(const Segments& segments, Step<T>* block, const T* A, T* state, const T* B, const T* C, int64_t row_size, T k,
                    Ahead<T> ahead) {
  for (int i = 0; i < segments.count; i++) {
    if (segments.resets(i)) memset(state, 0, sizeof(T) * NB * Num::PARTS * lanes<T>);
    recur<Num, NB>(block, A, state, B, C, row_size, k, segments.start[i], segments.start[i + 1], ahead);
  }
}

template <class Num> void forward(const SelectiveScan& a) {
  using T = typename Num::value_type;
  constexpr int PARTS = Num::PARTS, WIDTH = PARTS * lanes<T>, NB = BATCH<Num>;
  const int64_t L = a.length, D = a.channels, N = a.states;
  const int64_t blocks = ceil_div(D, lanes<T>), chunks = ceil_div(L, CHUNK);
  // A task computes up to 16 neighbouring blocks, for longer runs of contiguous memory, if enough tasks remain.
  int64_t group = 16;
  while (group > 1 && a.batch * ceil_div(blocks, group) < 2 * a.threads) group /= 2;
  const int64_t groups = ceil_div(blocks, group), tasks = a.batch * groups;
  const int team = workers(tasks, a.threads);
  const T k = T(a.is_complex && a.paired ? 2 : 1);

  Buffer<Step<T>> block_memory(team * CHUNK);
  Buffer<T> A_memory(team * group * N * WIDTH), state_memory(team * group * N * WIDTH);
  Buffer<T> B_memory(a.flags ? team * CHUNK * N * PARTS : 0), C_memory(a.flags ? team * CHUNK * N * PARTS : 0);

  parallel_for(tasks, a.threads, [&](int64_t task, int worker) {
    const int64_t b = task / groups, first = task % groups * group, last = first + group < blocks ? first + group : blocks;
    Step<T>* const block = block_memory.slice(worker, CHUNK);
    T* A = A_memory.slice(worker, group * N * WIDTH);
    T* state = state_memory.slice(worker, group * N * WIDTH);
    for (int64_t j = first; j < last; j++) {
      const int64_t d = j * lanes<T>, offset = (j - first) * N * WIDTH;
      const int count = int(D - d < lanes<T> ? D - d : lanes<T>);
      gather_states<Num>(A + offset, at<T>(a.A, d * N * PARTS), N, count);
      gather_states<Num>(state + offset, at<T>(a.initial_state, (b * D + d) * N * PARTS), N, count);
    }
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
      const int64_t row = b * L + chunk * CHUNK;
      const int steps = int(L - chunk * CHUNK < CHUNK ? L - chunk * CHUNK : CHUNK);
      const uint8_t* flags = a.flags ? a.flags + row : nullptr;
      const Segments segments(flags, steps);
      const T* B = clean_rows<Num>(at<T>(a.B, row * N * PARTS), B_memory.slice(worker, CHUNK * N * PARTS), flags, steps, N);
      const T* C = clean_rows<Num>(at<T>(a.C, row * N * PARTS), C_memory.slice(worker, CHUNK * N * PARTS), flags, steps, N);
      for (int64_t j = first; j < last; j++) {
        const int64_t d = j * lanes<T>, offset = (j - first) * N * WIDTH;
        const int count = int(D - d < lanes<T> ? D - d : lanes<T>);
        if (a.chunk_states) {
          T* saved = at<T>(a.chunk_states, (b * chunks + chunk) * N * PARTS * D + d);
          for (int64_t i = 0; i < N * PARTS; i++) {
            store(saved + i * D, load(state + offset + i * lanes<T>), count);
            if (j + 1 < last) __builtin_prefetch(saved + i * D + lanes<T>, 1);  // of the next block
          }
        }
        prepare<T>(a, block, row, d, count, steps, flags);
        // The first batch of states prefetches u and dt, the others z and y (of this chunk again if there is no next one).
        const T* rows[] = {at<T>(a.u, row * D + d), at<T>(a.dt, row * D + d), at<T>(a.z ? a.z : a.y, row * D + d), at<T>(a.y, row * D + d)};
        const int64_t next = chunk + 1 < chunks ? CHUNK * D : 0;
        auto ahead = [&](bool others) { return Ahead<T>{rows[2 * others] + next, rows[2 * others + 1] + next, D}; };
        int64_t n = 0;
        for (; n + NB <= N; n += NB)
          recur_segments<Num, NB>(segments, block, A + offset + n * WIDTH, state + offset + n * WIDTH, B + n * PARTS,
                                  C + n * PARTS, N * PARTS, k, ahead(n > 0));
        for (; n < N; n++)
          recur_segments<Num, 1>(segments, block, A + offset + n * WIDTH, state + offset + n * WIDTH, B + n * PARTS,
                                 C + n * PARTS, N * PARTS, k, ahead(n > 0));
        T* y = at<T>(a.y, row * D + d);
        const T* z = at<T>(a.z, row * D + d);
        for (int t = 0; t < steps; t++) {
          Vec<T> value = load(block[t].y);
          if (z) value *= silu(load(z + t * D, count));
          if (flags && flags[t] & INVALID) value = Vec<T>{};
          store(y + t * D, value, count);
        }
      }
    }
    for (int64_t j = first; j < last; j++) {
      const int64_t d = j * lanes<T>;
      const int count = int(D - d < lanes<T> ? D - d : lanes<T>);
      scatter_states<Num>(at<T>(a.final_state, (b * D + d) * N * PARTS), state + (j - first) * N * WIDTH, N, count);
    }
  });
}

// ---------------------------------------------------------------------------------------------- backward

// Blocks taken together in the backward: dB and dC are summed over them before their lanes are summed, and with vectors of 64 bytes
// their rows are 1 KiB of contiguous memory.
constexpr int GROUP = 16;
template <class Num> constexpr int BACK_BATCH = VECTOR_BYTES == 64 ? (Num::PARTS == 1 ? 4 : 2) : (Num::PARTS == 1 ? 2 : 1);

// What a step of one state of a block keeps between the two passes over a chunk.
template <class Num> struct Tape {
  static constexpr int WIDTH = Num::PARTS * lanes<typename Num::value_type>;
  typename Num::value_type decay[WIDTH], before[WIDTH];  // before: the state before the step
};

// The sums of dB and dC over the blocks of a group, lane by lane: (CHUNK, NB) numbers for NB states that are computed together.
template <class Num> struct GroupSums {
  static constexpr int SIZE = CHUNK * BACK_BATCH<Num> * Num::PARTS * lanes<typename Num::value_type>;
  typename Num::value_type dB[SIZE], dC[SIZE];
};
// sum += x s, in memory
template <class Num, class T = typename Num::value_type> INLINE void add_times(T* sum, Num x, Vec<T> s) {
  store_number(sum, load_number<Num>(sum) + times(x, s));
}

// The recurrence again, from the chunk-start state h, onto the tape, with dC; block.y += k Re(C h) where with_y.
template <class Num, int NB, bool with_y, class T = typename Num::value_type>
void replay(GradStep<T>* block, Tape<Num>* tape, GroupSums<Num>* sums, const T* A, const T* start, int64_t start_stride, int count,
            const T* B, const T* C, int64_t row_size, T k, const Segments& segments) {
  constexpr int WIDTH = Num::PARTS * lanes<T>;
  Num a[NB], h[NB];
  for (int i = 0; i < NB; i++) {
    T parts[WIDTH];
    for (int part = 0; part < Num::PARTS; part++)
      store(parts + part * lanes<T>, load(start + (i * Num::PARTS + part) * start_stride, count));
    a[i] = times_log2e(load_number<Num>(A + i * WIDTH)), h[i] = load_number<Num>(parts);
  }
  for (int segment = 0; segment < segments.count; segment++) {
    if (segments.resets(segment))
      for (int i = 0; i < NB; i++) h[i] = Num{};
    for (int t = segments.start[segment]; t < segments.start[segment + 1]; t++) {
      Vec<T> dt = load(block[t].dt), du = load(block[t].du), gy = k * load(block[t].gy);
      Vec<T> y{};
      for (int i = 0; i < NB; i++) {
        const Num d = decay(dt, a[i]);
        Tape<Num>& saved = tape[t * NB + i];
        store_number(saved.decay, d);
        store_number(saved.before, h[i]);
        h[i] = d * h[i] + times(broadcast_number<Num>(B + t * row_size + i * Num::PARTS), du);
        add_times(sums->dC + (t * NB + i) * WIDTH, conj(h[i]), gy);
        if (with_y) y = add_real_product(y, broadcast_number<Num>(C + t * row_size + i * Num::PARTS), h[i]);
      }
      if (with_y) store(block[t].y, load(block[t].y) + k * y);
    }
  }
}

// Back over the chunk: `carry` is conj(decay_{t+1}) g_{t+1} after the chunk's last step, and becomes that before its first. It is
// set to 0 where the state restarts, not multiplied by 0: what is infinite or NaN in one sequence must not reach the one before.
template <class Num, int NB, class T = typename Num::value_type>
void sweep(GradStep<T>* block, const Tape<Num>* tape, GroupSums<Num>* sums, const T* A, T* carry, T* dA, const T* B, const T* C,
           int64_t row_size, T k, const Segments& segments, Ahead<T> ahead) {
  constexpr int WIDTH = Num::PARTS * lanes<T>;
  Num a[NB], g[NB], da[NB];
  for (int i = 0; i < NB; i++) {
    a[i] = conj(load_number<Num>(A + i * WIDTH));
    g[i] = load_number<Num>(carry + i * WIDTH);
    da[i] = Num{};
  }
  for (int segment = segments.count - 1; segment >= 0; segment--) {
    for (int t = segments.start[segment + 1] - 1; t >= segments.start[segment]; t--) {
      Vec<T> dt = load(block[t].dt), du = load(block[t].du), gy = k * load(block[t].gy);
      Vec<T> d_du = load(block[t].d_du), d_dt = load(block[t].d_dt);
      ahead.fetch(t);
      for (int i = 0; i < NB; i++) {
        const Tape<Num>& saved = tape[t * NB + i];
        Num b = broadcast_number<Num>(B + t * row_size + i * Num::PARTS);
        Num c = broadcast_number<Num>(C + t * row_size + i * Num::PARTS);
        g[i] = g[i] + times(conj(c), gy);
        add_times(sums->dB + (t * NB + i) * WIDTH, g[i], du);
        d_du = add_real_product(d_du, g[i], conj(b));
        g[i] = conj(load_number<Num>(saved.decay)) * g[i];
        const Num w = g[i] * conj(load_number<Num>(saved.before));
        d_dt = add_real_product(d_dt, w, a[i]);
        da[i] = da[i] + times(w, dt);
      }
      store(block[t].d_du, d_du);
      store(block[t].d_dt, d_dt);
    }
    if (segments.resets(segment))
      for (int i = 0; i < NB; i++) g[i] = Num{};
  }
  for (int i = 0; i < NB; i++) {
    store_number(carry + i * WIDTH, g[i]);
    store_number(dA + i * WIDTH, load_number<Num>(dA + i * WIDTH) + da[i]);  // chunk by chunk: shorter chains of rounding
  }
}

// What stays the same over a task of the backward: one batch row, one chunk, one group of blocks.
template <class T> struct Span {
  int64_t row, chunk;  // index of the chunk's first step among B L rows; of the chunk among B ceil(L / CHUNK)
  int steps;
  bool first_chunk;
  int64_t first, last;  // blocks
  const T *B, *C;
  T *dB, *dC;      // where the group's sums go, (steps, N)
  bool add;        // to what is there
};

// Adds up the lanes of each of `sums` (CHUNK, numbers, lanes), and writes the totals to `to` (steps, row_size) or adds them to it.
template <int numbers, class T> void write_sums(T* to, int64_t row_size, const T* sums, int steps, bool add) {
  constexpr int STEPS = lanes<T> / numbers;  // whose sums fill one vector
  for (int first = 0; first < steps; first += STEPS) {
    Vec<T> x[lanes<T>];
    T total[lanes<T>];
    for (int i = 0; i < lanes<T>; i++) x[i] = load(sums + (first * numbers + i) * lanes<T>);
    store(total, fold_lanes<T, lanes<T>>(x));
    for (int t = first; t < first + STEPS && t < steps; t++)
      for (int i = 0; i < numbers; i++) {
        T* const at = to + t * row_size + i;
        *at = (add ? *at : T(0)) + total[(t - first) * numbers + i];
      }
  }
}

// NB states, from n on, of every block of a group in one chunk.
template <class Num, int NB, class T = typename Num::value_type>
void group_states(const SelectiveScanGradients& s, const Span<T>& span, const Segments& segments, Tape<Num>* tape, GroupSums<Num>* sums,
                  GradStep<T>* blocks, const T* A, T* carry, T* dA, int64_t n, T k) {
  constexpr int PARTS = Num::PARTS, WIDTH = PARTS * lanes<T>;
  const SelectiveScan& a = s.forward;
  const int64_t N = a.states, D = a.channels;
  memset(sums, 0, sizeof *sums);
  const T *B = span.B + n * PARTS, *C = span.C + n * PARTS;
  for (int64_t j = span.first; j < span.last; j++) {
    const int64_t d = j * lanes<T>, offset = ((j - span.first) * N + n) * WIDTH;
    const int count = int(D - d < lanes<T> ? D - d : lanes<T>);
    const T* start = at<T>(a.chunk_states, (span.chunk * N + n) * PARTS * D + d);
    GradStep<T>* const block = blocks + (j - span.first) * CHUNK;
    for (int i = 0; i < NB * PARTS && j + 1 < span.last; i++) __builtin_prefetch(start + i * D + lanes<T>);  // of the next block
    if (a.z)
      replay<Num, NB, true>(block, tape, sums, A + offset, start, D, count, B, C, N * PARTS, k, segments);
    else
      replay<Num, NB, false>(block, tape, sums, A + offset, start, D, count, B, C, N * PARTS, k, segments);
    // While the first states are swept, the rows that the chunk before will read are fetched, then those about to be written.
    const int64_t here = span.row * D + d, next = here - (span.first_chunk ? 0 : CHUNK * D);
    const T* const rows[] = {at<T>(a.u, next), at<T>(a.dt, next), at<T>(s.gy, next), at<T>(a.z ? a.z : s.gy, next),
                             at<T>(s.u, here), at<T>(s.dt, here), at<T>(a.z ? s.z : s.u, here), at<T>(s.dt, here)};
    const int pair = n < 4 * NB ? 2 * int(n / NB) : 6;
    const Ahead<T> ahead = {rows[pair], rows[pair + 1], D};
    sweep<Num, NB>(block, tape, sums, A + offset, carry + offset, dA + offset, B, C, N * PARTS, k, segments, ahead);
  }
  write_sums<NB * PARTS>(span.dB + n * PARTS, N * PARTS, sums->dB, span.steps, span.add);
  write_sums<NB * PARTS>(span.dC + n * PARTS, N * PARTS, sums->dC, span.steps, span.add);
}

// The gradients of y, before the gate and times the derivative of the gate, and zeroed sums, for a block and chunk that prepare()
// has loaded.
template <class T>
void prepare_gradients(const SelectiveScanGradients& s, GradStep<T>* block, int64_t row, int64_t d, int count, int steps,
                       const uint8_t* flags) {
  const SelectiveScan& a = s.forward;
  const T *gy = at<T>(s.gy, row * a.channels + d), *z = at<T>(a.z, row * a.channels + d);
  for (int t = 0; t < steps; t++) {
    Vec<T> g{}, d_gate{};
    if (!flags || !(flags[t] & INVALID)) {
      g = load(gy + t * a.channels, count);
      if (z) {
        const Vec<T> gate = load(z + t * a.channels, count), s1 = sigmoid(gate);
        d_gate = g * s1 * (1 + gate * (1 - s1));
        g *= gate * s1;
      }
    }
    store(block[t].gy, g);
    store(block[t].d_gate, d_gate);
    store(block[t].d_du, Vec<T>{});
    store(block[t].d_dt, Vec<T>{});
  }
}

// From the gradients of dt u and of dt to those of the inputs. d_scale (steps) collects sums over channels, lane by lane.
template <class T> struct ChannelSums {
  Vec<T> dD, d_bias;
};
template <class T>
void finish(const SelectiveScanGradients& s, const GradStep<T>* block, ChannelSums<T>& sums, T* d_scale, int64_t row, int64_t d,
            int count, int steps, const uint8_t* flags) {
  const SelectiveScan& a = s.forward;
  const int64_t D = a.channels, at_row = row * D + d;
  ChannelSums<T> here = {};
  const T *u = at<T>(a.u, at_row), *dt = at<T>(a.dt, at_row);
  const T* scale = at<T>(a.dt_scale, row);
  T *du = at<T>(s.u, at_row), *ddt = at<T>(s.dt, at_row), *dz = at<T>(s.z, at_row);
  Vec<T> bias = a.dt_bias ? load(at<T>(a.dt_bias, d), count) : Vec<T>{}, skip = a.D ? load(at<T>(a.D, d), count) : Vec<T>{};
  for (int t = 0; t < steps; t++) {
    if (flags && flags[t] & INVALID) {
      store(du + t * D, Vec<T>{}, count);
      store(ddt + t * D, Vec<T>{}, count);
      if (dz) store(dz + t * D, Vec<T>{}, count);
      continue;
    }
    Vec<T> input = load(u + t * D, count), g = load(block[t].gy);
    if (dz) store(dz + t * D, load(block[t].d_gate) * load(block[t].y), count);
    Vec<T> d_du = load(block[t].d_du);
    store(du + t * D, d_du * load(block[t].dt) + skip * g, count);
    here.dD += g * input;
    Vec<T> gradient = d_du * input + load(block[t].d_dt);
    if (scale) {
      Vec<T> raw = load(dt + t * D, count) + bias;
      store(d_scale + t * lanes<T>, load(d_scale + t * lanes<T>) + gradient * (a.dt_softplus ? softplus(raw) : raw));
    }
    gradient *= load(block[t].softplus_derivative);
    store(ddt + t * D, gradient, count);
    here.d_bias += gradient;
  }
  sums.dD += here.dD;
  sums.d_bias += here.d_bias;
}

template <class Num> void backward(const SelectiveScanGradients& s) {
  using T = typename Num::value_type;
  constexpr int PARTS = Num::PARTS, WIDTH = PARTS * lanes<T>, NB = BACK_BATCH<Num>;
  const SelectiveScan& a = s.forward;
  const int64_t L = a.length, D = a.channels, N = a.states, rows = a.batch * L, NP = N * PARTS;
  const int64_t blocks = ceil_div(D, lanes<T>), chunks = ceil_div(L, CHUNK);
  // Channels are split over `slots` tasks a batch row, each with its own dB and dC: for parallel work at small batches (8 tasks, or
  // 16 of whole groups), but few enough that these take no more memory than a quarter of the inputs, outputs and their gradients.
  // Not a function of the number of threads, on which no result may depend.
  const int64_t batch = a.batch > 0 ? a.batch : 1, least = ceil_div(8, batch), whole = blocks / GROUP;
  int64_t slots = ceil_div(16, batch);
  if (slots > whole) slots = whole > least ? whole : least;
  if (slots > D / NP) slots = D / NP;
  if (slots > blocks) slots = blocks;
  if (slots < 1) slots = 1;
  const int64_t slot_blocks = ceil_div(blocks, slots), tasks = a.batch * slots;
  const int team = workers(tasks, a.threads);
  const T k = T(a.is_complex && a.paired ? 2 : 1);
  const int64_t group_states_size = GROUP * N * WIDTH;

  Buffer<GradStep<T>> block_memory(team * GROUP * CHUNK);
  Buffer<Tape<Num>> tape_memory(team * CHUNK * NB);
  Buffer<GroupSums<Num>> sums_memory(team);
  Buffer<T> A_memory(team * group_states_size), carry_memory(team * group_states_size), dA_memory(team * group_states_size);
  Buffer<T> clean_memory(a.flags ? team * 2 * CHUNK * NP : 0), scale_memory(team * CHUNK * lanes<T>);
  Buffer<T> dB_parts(slots > 1 ? slots * rows * NP : 0), dC_parts(slots > 1 ? slots * rows * NP : 0);
  Buffer<T> scale_parts(a.dt_scale ? slots * rows : 0);
  Buffer<T> dA_parts(a.batch * D * NP), dD_parts(a.batch * D), bias_parts(a.batch * D);

  parallel_for(tasks, a.threads, [&](int64_t task, int worker) {
    const int64_t b = task / slots, slot = task % slots;
    const int64_t slot_first = slot * slot_blocks, slot_last = slot_first + slot_blocks < blocks ? slot_first + slot_blocks : blocks;
    GradStep<T>* const group = block_memory.slice(worker, GROUP * CHUNK);
    Tape<Num>* const tape = tape_memory.slice(worker, CHUNK * NB);
    GroupSums<Num>* const group_sums = sums_memory.slice(worker, 1);
    T* const A = A_memory.slice(worker, group_states_size);
    T* const carry = carry_memory.slice(worker, group_states_size);
    T* const dA = dA_memory.slice(worker, group_states_size);
    T* const d_scale = scale_memory.slice(worker, CHUNK * lanes<T>);
    T* const dB = slots > 1 ? dB_parts.slice(slot, rows * NP) : at<T>(s.B, 0);
    T* const dC = slots > 1 ? dC_parts.slice(slot, rows * NP) : at<T>(s.C, 0);

    // A slot beyond the last block (blocks need not divide evenly) has nothing but zeros to give.
    if (slot_first >= slot_last) {
      memset(dB + b * L * NP, 0, sizeof(T) * L * NP);
      memset(dC + b * L * NP, 0, sizeof(T) * L * NP);
      if (a.dt_scale) memset(scale_parts.slice(slot, rows) + b * L, 0, sizeof(T) * L);
    }
    for (int64_t first = slot_first; first < slot_last; first += GROUP) {
      const int64_t last = first + GROUP < slot_last ? first + GROUP : slot_last;
      ChannelSums<T> sums[GROUP] = {};
      memset(dA, 0, sizeof(T) * group_states_size);
      for (int64_t j = first; j < last; j++) {
        const int64_t d = j * lanes<T>, offset = (j - first) * N * WIDTH;
        const int count = int(D - d < lanes<T> ? D - d : lanes<T>);
        gather_states<Num>(A + offset, at<T>(a.A, d * NP), N, count);
        gather_states<Num>(carry + offset, at<T>(s.final_state, (b * D + d) * NP), N, count);
      }
      for (int64_t chunk = chunks - 1; chunk >= 0; chunk--) {
        const int64_t row = b * L + chunk * CHUNK;
        const int steps = int(L - chunk * CHUNK < CHUNK ? L - chunk * CHUNK : CHUNK);
        const uint8_t* flags = a.flags ? a.flags + row : nullptr;
        const Segments segments(flags, steps);
        T* const clean = clean_memory.slice(worker, 2 * CHUNK * NP);
        const Span<T> span = {row, b * chunks + chunk, steps, chunk == 0, first, last,
                              clean_rows<Num>(at<T>(a.B, row * NP), clean, flags, steps, N),
                              clean_rows<Num>(at<T>(a.C, row * NP), clean + CHUNK * NP, flags, steps, N),
                              dB + row * NP, dC + row * NP, first > slot_first};
        for (int64_t j = first; j < last; j++) {
          const int64_t d = j * lanes<T>;
          const int count = int(D - d < lanes<T> ? D - d : lanes<T>);
          prepare<T>(a, group + (j - first) * CHUNK, row, d, count, steps, flags);
          prepare_gradients<T>(s, group + (j - first) * CHUNK, row, d, count, steps, flags);
        }
        int64_t n = 0;
        for (; n + NB <= N; n += NB)
          group_states<Num, NB>(s, span, segments, tape, group_sums, group, A, carry, dA, n, k);
        for (; n < N; n++)
          group_states<Num, 1>(s, span, segments, tape, group_sums, group, A, carry, dA, n, k);
        memset(d_scale, 0, sizeof(T) * CHUNK * lanes<T>);
        for (int64_t j = first; j < last; j++) {
          const int64_t d = j * lanes<T>;
          const int count = int(D - d < lanes<T> ? D - d : lanes<T>);
          finish<T>(s, group + (j - first) * CHUNK, sums[j - first], d_scale, row, d, count, steps, flags);
        }
        if (a.dt_scale) {
          T* const to = scale_parts.slice(slot, rows) + row;
          for (int t = 0; t < steps; t++) {
            T total = sum<T>(load(d_scale + t * lanes<T>));
            to[t] = span.add ? to[t] + total : total;
          }
        }
      }
      for (int64_t j = first; j < last; j++) {
        const int64_t d = j * lanes<T>, offset = (j - first) * N * WIDTH;
        const int count = int(D - d < lanes<T> ? D - d : lanes<T>);
        scatter_states<Num>(dA_parts.data() + (b * D + d) * NP, dA + offset, N, count);
        if (s.initial_state) scatter_states<Num>(at<T>(s.initial_state, (b * D + d) * NP), carry + offset, N, count);
        store(dD_parts.data() + b * D + d, sums[j - first].dD, count);
        store(bias_parts.data() + b * D + d, sums[j - first].d_bias, count);
      }
    }
  });

  if (slots > 1) {
    add_up(at<T>(s.B, 0), dB_parts.data(), slots, rows * NP, a.threads);
    add_up(at<T>(s.C, 0), dC_parts.data(), slots, rows * NP, a.threads);
  }
  add_up(at<T>(s.dt_scale, 0), scale_parts.data(), slots, rows, a.threads);
  add_up(at<T>(s.A, 0), dA_parts.data(), a.batch, D * NP, a.threads);
  add_up(at<T>(s.D, 0), dD_parts.data(), a.batch, D, a.threads);
  add_up(at<T>(s.dt_bias, 0), bias_parts.data(), a.batch, D, a.threads);
}

}  // namespace

void selective_scan_forward(const SelectiveScan& a) {
  if (a.is_double)
    a.is_complex ? forward<Complex<double>>(a) : forward<Real<double>>(a);
  else
    a.is_complex ? forward<Complex<float>>(a) : forward<Real<float>>(a);
}

void selective_scan_backward(const SelectiveScanGradients& s) {
  if (s.forward.is_double)
    s.forward.is_complex ? backward<Complex<double>>(s) : backward<Real<double>>(s);
  else
    s.forward.is_complex ? backward<Complex<float>>(s) : backward<Real<float>>(s);
}

}  // namespace longscan::LONGSCAN_ISA
