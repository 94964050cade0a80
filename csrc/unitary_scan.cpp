// Forward and backward of the AUSSM scan, nothing of size (batch, L, D, N) in memory.
//
// Algebra. With G_t the running sum of the angles, h_t = e^{i G_t} w_t and V_t = e^{-i G_t}, the state in the rotating frame is a
// plain sum, w_t = w_0 + B S_t with S_t = sum_{k<=t} x_k V_k, x = dt silu(u). Nothing is ever multiplied by a rounded rotation
// and fed back, so |h| cannot drift, and the phase drifts as one wrapped addition a step does (phase.h). With g = dL/dy silu(z):
//   Re C h_t   = Re(conj(V_t) omega_t),  omega_t = C w_t = C w_0 + (C B) S_t
//   R_t        = sum_{k>=t} g_k V_k, and mu_t = m + conj(C) R_t is dL/dh_t in the frame, m = V_last dL/dh_last
//   dL/dtheta  = Im(mu_t conj(w_{t-1})) = Im(R_t conj(omega_{t-1})) + Im(m conj(w_{t-1}))
//   dL/dx      = sum_n Re(B V_t conj(mu_t))
//   dL/dB      = conj(C) Z + m conj(S_last),  Z = sum_t x_t conj(V_t) R_t
//   dL/dC      = sum_t g_t V_t conj(w_t) = conj(w_0) (R_0 - R_next) + conj(B) (Z - R_next conj(S_last))    (summation by parts)
// where w_0, S start anew with every chunk and segment, and R_next is what R brings from the steps after it.
// At the end of a chunk an odd number of half turns is moved from the phase into the sign of w, so a state between chunks is
// three numbers (rest of the phase, w): this is what chunk_states holds for the first step of every chunk.
//
// Layout. The lanes of a vector are channels at one state index, so sums over states are plain additions; where fewer channels
// than lanes are left, they take a power of two of lanes and the others hold further states of the same channels, folded at the
// end. Work is cut into units of one or two vectors. For a unit and a chunk: the angles of 4 or 8 steps come out of the
// registers of a small GEMM straight into the recurrence; the backward keeps (V, omega) of one unit and chunk in cache, runs
// back over them, and feeds the gradients of the angles to two more GEMMs.
// Steps marked INVALID are left out when a chunk's inputs are gathered, so nothing that stands there is ever read.
//
// Counted per (batch, t, d, n) at D = N = 64, fused multiply-adds and multiplications: forward 64 for the projection and 22 (3
// reduction, 11 sine and cosine, 2 sum, 4 omega, 2 output); backward 192 for the three products and 34. Two AVX-512 cores with one
// unit each at 3.6 GHz (115e9 multiply-adds a second) need 0.75 ns and 2.7 ns for these, with two units each half of that. Memory
// traffic is (4 + 3 N / chunk) numbers per (t, d) forward and (10 + 3 N / chunk) backward, below a tenth of it.
//
// Parallel over groups of batch rows, and over the units within a row by threads that meet twice a chunk. Sums are taken in an
// order fixed by the sizes and the number of threads.
#include "unitary_scan.h"

#include "gemm.h"
#include "parallel.h"
#include "phase.h"

namespace longscan::LONGSCAN_ISA {

constexpr uint8_t INVALID = 1, RESET = 2;
constexpr int ROWS = GEMM_ROWS;

// ---------------------------------------------------------------------------------------------- layout

INLINE int64_t round_up(int64_t x, int64_t multiple) { return ceil_div(x, multiple) * multiple; }

struct Block {
  int64_t channel;  // its first
  int count;        // channels
  int fold;         // lanes they take: lane l holds channel l % fold
  int64_t vector;   // its first vector
  int64_t vectors;
};

struct Unit {
  int64_t block, vector;
  int vectors;
};

// Which channel and state each lane of each vector holds.
template <class T> class Layout {
 public:
  static constexpr int LANES = lanes<T>;

  Layout(int64_t channels, int64_t states) : channels_(channels), states_(states), full_(channels / LANES) {
    rest_ = int(channels % LANES);
    for (fold_ = 1; fold_ < rest_;) fold_ *= 2;
    blocks = full_ + (rest_ > 0);
    rest_vectors_ = rest_ > 0 ? ceil_div(states, LANES / fold_) : 0;
    vectors = full_ * states + rest_vectors_;
    units = full_ * ceil_div(states, 2) + ceil_div(rest_vectors_, 2);
  }

  int64_t blocks, vectors, units;

  Block block(int64_t b) const {
    if (b < full_) return {b * LANES, LANES, LANES, b * states_, states_};
    return {b * LANES, rest_, fold_, b * states_, rest_vectors_};
  }
  Unit unit(int64_t index) const {
    int64_t per_block = ceil_div(states_, 2), b = index / (per_block > 0 ? per_block : 1);
    if (b > full_) b = full_;
    Block in = block(b);
    int64_t first = 2 * (index - b * per_block);
    return {b, in.vector + first, in.vectors - first < 2 ? 1 : 2};
  }
  // Row of (D, N) that a lane holds, -1 for none.
  int64_t row(const Block& in, int64_t vector, int lane) const {
    int64_t channel = lane % in.fold, state = (vector - in.vector) * (LANES / in.fold) + lane / in.fold;
    return channel < in.count && state < states_ ? (in.channel + channel) * states_ + state : -1;
  }
  int64_t channels() const { return channels_; }

 private:
  int64_t channels_, states_, full_;
  int rest_, fold_;
  int64_t rest_vectors_;
};

// A block's channels of a row (.., D) in the lanes, each as often as it takes part.
template <class T> INLINE Vec<T> load_channels(const T* row, const Block& in) {
  if (in.count == lanes<T>) return load(row + in.channel);
  T buffer[lanes<T>];
  for (int l = 0; l < lanes<T>; l++) buffer[l] = l % in.fold < in.count ? row[in.channel + l % in.fold] : 0;
  return load(buffer);
}

// The sum over the lanes that hold the same channel, in that channel's first lane.
template <class T> INLINE Vec<T> fold_channels(Vec<T> x, const Block& in) {
  if (in.fold == lanes<T>) return x;
  T buffer[lanes<T>];
  store(buffer, x);
  for (int width = lanes<T> / 2; width >= in.fold; width /= 2)
    for (int l = 0; l < width; l++) buffer[l] += buffer[l + width];
  return load(buffer);
}

template <class T> INLINE void store_channels(T* row, const Block& in, Vec<T> x) {
  if (in.count == lanes<T>) return store(row + in.channel, x);
  store(row + in.channel, x, in.count);
}

// ---------------------------------------------------------------------------------------------- parameters in lanes

enum Constant { BIAS, BIAS_LOW, TURNED, B_RE, B_IM, C_RE, C_IM, CONSTANTS };

template <class T> struct Parameters {
  const Layout<T>& layout;
  int64_t padded;       // channels rounded up to whole vectors: the row length of `rows`
  Buffer<T> panels;     // per unit: [p][vector][lane] weights of the projection
  Buffer<T> constants;  // per vector: [Constant][lane]
  Buffer<T> rows;       // backward only: per vector and lane its row of W

  Parameters(const Layout<T>& layout, bool backward)
      : layout(layout),
        padded(round_up(layout.channels(), lanes<T>)),
        panels(layout.vectors * lanes<T> * layout.channels()),
        constants(layout.vectors * CONSTANTS * lanes<T>),
        rows(backward ? layout.vectors * lanes<T> * padded : 0) {}

  const T* panel(const Unit& unit) { return panels.data() + unit.vector * lanes<T> * layout.channels(); }
  const T* weights(const Unit& unit) { return rows.data() + unit.vector * lanes<T> * padded; }
  T* constant(int64_t vector) { return constants.data() + vector * CONSTANTS * lanes<T>; }

  void pack(const UnitaryScan& a, const Unit& unit, bool backward) {
    constexpr int W = lanes<T>;
    int64_t D = layout.channels();
    Block block = layout.block(unit.block);
    T* panel = panels.data() + unit.vector * W * D;
    for (int v = 0; v < unit.vectors; v++) {
      T* constant = this->constant(unit.vector + v);
      for (int l = 0; l < W; l++) {
        int64_t row = layout.row(block, unit.vector + v, l);
        T* weights = rows.data() + ((unit.vector + v) * W + l) * padded;
        if (row < 0) {
          for (int64_t p = 0; p < D; p++) panel[(p * unit.vectors + v) * W + l] = 0;
          for (int i = 0; i < CONSTANTS; i++) constant[i * W + l] = 0;
          if (backward) memset(weights, 0, padded * sizeof(T));
          continue;
        }
        const T* source = static_cast<const T*>(a.W) + row * D;
        for (int64_t p = 0; p < D; p++) panel[(p * unit.vectors + v) * W + l] = source[p];
        if (backward) {
          memcpy(weights, source, D * sizeof(T));
          memset(weights + D, 0, (padded - D) * sizeof(T));
        }
        pack_bias(a, row, constant, l);
        for (int part = 0; part < 2; part++) {
          constant[(B_RE + part) * W + l] = static_cast<const T*>(a.B)[2 * row + part];
          constant[(C_RE + part) * W + l] = static_cast<const T*>(a.C)[2 * row + part];
        }
      }
    }
  }

 private:
  // The bias without its whole half turns, which would cost the sum of phases bits at every step, and what rounding the rest to T
  // leaves, which would add up. With phase_dt it is multiplied first.
  static void pack_bias(const UnitaryScan& a, int64_t row, T* constant, int lane) {
    T bias = static_cast<const T*>(a.bias)[row];
    Phase<double> phase = {broadcast<double>(0), IntVec<double>{}};
    if (!a.phase_dt) phase.add(broadcast<double>(double(bias)), IntVec<double>{});
    double rest = a.phase_dt ? double(bias) : phase.rest[0];
    constant[BIAS * lanes<T> + lane] = T(rest);
    constant[BIAS_LOW * lanes<T> + lane] = T(rest - double(T(rest)));
    IntVec<T> turned = IntVec<T>{} + int(phase.half_turns[0] & 1);
    memcpy(constant + TURNED * lanes<T> + lane, &turned, sizeof(T));
  }
};

// The constants of a unit in registers.
template <class T, int V> struct Coefficients {
  Vec<T> bias[V], bias_low[V], Br[V], Bi[V], Cr[V], Ci[V];
  IntVec<T> turned[V];

  INLINE explicit Coefficients(const T* constant) {
    constexpr int W = lanes<T>;
#pragma GCC unroll 2
    for (int v = 0; v < V; v++, constant += CONSTANTS * W) {
      bias[v] = load(constant + BIAS * W);
      bias_low[v] = load(constant + BIAS_LOW * W);
      turned[v] = bits<IntVec<T>>(load(constant + TURNED * W));
      Br[v] = load(constant + B_RE * W);
      Bi[v] = load(constant + B_IM * W);
      Cr[v] = load(constant + C_RE * W);
      Ci[v] = load(constant + C_IM * W);
    }
  }
};

// ---------------------------------------------------------------------------------------------- the steps of a chunk

// The valid steps of a chunk of one batch row, gathered: shared by the threads that work on this row.
template <class T> struct Tile {
  int64_t steps, row;     // valid steps; length of a row of u
  const int32_t* times;   // [step] its index in the chunk
  const uint8_t* resets;  // [step] whether the state restarts there; null where it never does
  int64_t lanes_row;      // length of a row of x, dt, g
  T *u, *u_columns;       // [step][p], and [step / ROWS][p][step % ROWS]
  T *x, *dt, *g;          // [step][block * lanes + lane]: dt silu(u), dt, and the gradient of the sum over states
};

template <class T, int V> INLINE void project(const Tile<T>& tile, int64_t first, const T* panel, int64_t D, const Vec<T> (&bias)[V], T* angles) {
  Vec<T> sums[ROWS][V];
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++) {
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) sums[m][v] = bias[v];
  }
  multiply_add<T, V, 1>(sums, tile.u_columns + first * D, ROWS, panel, V * lanes<T>, D);
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++) {
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) store(angles + (m * V + v) * lanes<T>, sums[m][v]);
  }
}

// state: per vector [rest of the phase, re w, im w][lane], brought from the chunk's start to its end. y: [step][lane] += Re sum C h.
template <class T, int V, bool PHASE_DT>
void forward_unit(const Tile<T>& tile, int64_t block, const T* panel, int64_t D, const T* constant, T* state, T* y) {
  constexpr int W = lanes<T>;
  const Coefficients<T, V> k(constant);
  Phase<T> phase[V];
  Vec<T> wr[V], wi[V], ar[V], ai[V], pr[V], pi[V], Sr[V], Si[V];
#pragma GCC unroll 2
  for (int v = 0; v < V; v++) {
    phase[v] = {load(state + v * 3 * W), IntVec<T>{}};
    wr[v] = load(state + (v * 3 + 1) * W);
    wi[v] = load(state + (v * 3 + 2) * W);
    ar[v] = k.Cr[v] * wr[v] - k.Ci[v] * wi[v];
    ai[v] = k.Cr[v] * wi[v] + k.Ci[v] * wr[v];
    pr[v] = k.Cr[v] * k.Br[v] - k.Ci[v] * k.Bi[v];
    pi[v] = k.Cr[v] * k.Bi[v] + k.Ci[v] * k.Br[v];
    Sr[v] = Si[v] = Vec<T>{};
  }
  alignas(64) T angles[ROWS * V * W];
  for (int64_t first = 0; first < tile.steps; first += ROWS) {
    project<T, V>(tile, first, panel, D, k.bias, angles);
    int64_t last = tile.steps < first + ROWS ? tile.steps : first + ROWS;
    const T* angle = angles;
    for (int64_t step = first; step < last; step++, angle += V * W) {
      if (tile.resets && tile.resets[step]) {
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) wr[v] = wi[v] = ar[v] = ai[v] = Sr[v] = Si[v] = Vec<T>{};
      }
      int64_t at = step * tile.lanes_row + block * W;
      Vec<T> x = load(tile.x + at), sum = load(y + at);
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) {
        Vec<T> theta = load(angle + v * W);
        if constexpr (PHASE_DT) theta *= load(tile.dt + at);
        phase[v].add(theta, k.turned[v]);
        SinCos<T> e = phase[v].sincos();
        Vec<T> signed_x = flip<T>(x, phase[v].sign());
        Sr[v] += signed_x * e.cos;
        Si[v] -= signed_x * e.sin;
        Vec<T> omega_r = ar[v] + pr[v] * Sr[v] - pi[v] * Si[v];
        Vec<T> omega_i = ai[v] + pr[v] * Si[v] + pi[v] * Sr[v];
        sum += flip<T>(e.cos * omega_r - e.sin * omega_i, phase[v].sign());
      }
      store(y + at, sum);
    }
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) phase[v].rest += k.bias_low[v] * T(last - first);
  }
#pragma GCC unroll 2
  for (int v = 0; v < V; v++) {
    store(state + v * 3 * W, phase[v].rest);
    store(state + (v * 3 + 1) * W, flip<T>(wr[v] + k.Br[v] * Sr[v] - k.Bi[v] * Si[v], phase[v].sign()));
    store(state + (v * 3 + 2) * W, flip<T>(wi[v] + k.Br[v] * Si[v] + k.Bi[v] * Sr[v], phase[v].sign()));
  }
}


// ---------------------------------------------------------------------------------------------- the backward of a unit

// What goes from chunk to chunk, backwards in time, for each vector of a batch row: R and m; and the sums for each vector.
enum Carried { R_RE, R_IM, M_RE, M_IM, CARRIED };
enum Summed { SUM_BIAS, SUM_B_RE, SUM_B_IM, SUM_C_RE, SUM_C_IM, SUMMED };

// Scratch memory of one thread, of the size of a unit and a chunk.
template <class T> struct Trace {
  T* rotation;  // [step][vector][re, -im of V][lane]
  T* omega;     // [step][vector][re, im][lane], before the step
  T* w;         // the same of w; where a gradient of the final state came in
  T* angles;    // [step][vector][lane]: the angle before the multiplication by dt; with phase_dt
  T* slopes;    // [step][vector][lane]: the gradient of the projection
};

// How a chunk ended going forward: needed where the way back begins.
template <class T, int V> struct Ending {
  Vec<T> rest[V], Sr[V], Si[V];
  IntVec<T> sign[V];
};

// Runs over the chunk as `forward_unit` does, from the same start, and keeps the trace. y: [step][lane] += Re sum C h, if not null.
template <class T, int V, bool PHASE_DT>
INLINE Ending<T, V> retrace(const Tile<T>& tile, int64_t block, const T* panel, int64_t D, const Coefficients<T, V>& k, const T* state,
                            const Trace<T>& trace, bool terminal, T* y) {
  constexpr int W = lanes<T>;
  Phase<T> phase[V];
  Vec<T> wr[V], wi[V], ar[V], ai[V], pr[V], pi[V], Sr[V], Si[V], omega_r[V], omega_i[V];
#pragma GCC unroll 2
  for (int v = 0; v < V; v++) {
    phase[v] = {load(state + v * 3 * W), IntVec<T>{}};
    wr[v] = load(state + (v * 3 + 1) * W);
    wi[v] = load(state + (v * 3 + 2) * W);
    omega_r[v] = ar[v] = k.Cr[v] * wr[v] - k.Ci[v] * wi[v];
    omega_i[v] = ai[v] = k.Cr[v] * wi[v] + k.Ci[v] * wr[v];
    pr[v] = k.Cr[v] * k.Br[v] - k.Ci[v] * k.Bi[v];
    pi[v] = k.Cr[v] * k.Bi[v] + k.Ci[v] * k.Br[v];
    Sr[v] = Si[v] = Vec<T>{};
  }
  alignas(64) T angles[ROWS * V * W];
  for (int64_t first = 0; first < tile.steps; first += ROWS) {
    project<T, V>(tile, first, panel, D, k.bias, angles);
    int64_t last = tile.steps < first + ROWS ? tile.steps : first + ROWS;
    const T* angle = angles;
    for (int64_t step = first; step < last; step++, angle += V * W) {
      if (tile.resets && tile.resets[step]) {
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
          wr[v] = wi[v] = ar[v] = ai[v] = Sr[v] = Si[v] = omega_r[v] = omega_i[v] = Vec<T>{};
      }
      int64_t at = step * tile.lanes_row + block * W;
      Vec<T> x = load(tile.x + at), sum{};
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) {
        int64_t pair = (step * V + v) * 2 * W;
        Vec<T> theta = load(angle + v * W);
        if constexpr (PHASE_DT) {
          store(trace.angles + (step * V + v) * W, theta);
          theta *= load(tile.dt + at);
        }
        phase[v].add(theta, k.turned[v]);
        SinCos<T> e = phase[v].sincos();
        e = {flip<T>(e.sin, phase[v].sign()), flip<T>(e.cos, phase[v].sign())};
        store(trace.rotation + pair, e.cos);
        store(trace.rotation + pair + W, e.sin);
        store(trace.omega + pair, omega_r[v]);
        store(trace.omega + pair + W, omega_i[v]);
        if (terminal) {
          store(trace.w + pair, wr[v] + k.Br[v] * Sr[v] - k.Bi[v] * Si[v]);
          store(trace.w + pair + W, wi[v] + k.Br[v] * Si[v] + k.Bi[v] * Sr[v]);
        }
        Sr[v] += x * e.cos;
        Si[v] -= x * e.sin;
        omega_r[v] = ar[v] + pr[v] * Sr[v] - pi[v] * Si[v];
        omega_i[v] = ai[v] + pr[v] * Si[v] + pi[v] * Sr[v];
        sum += e.cos * omega_r[v] - e.sin * omega_i[v];
      }
      if (y) store(y + at, load(y + at) + sum);
    }
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) phase[v].rest += k.bias_low[v] * T(last - first);
  }
  Ending<T, V> ending;
#pragma GCC unroll 2
  for (int v = 0; v < V; v++) {
    ending.rest[v] = phase[v].rest;
    ending.sign[v] = phase[v].sign();
    ending.Sr[v] = Sr[v];
    ending.Si[v] = Si[v];
  }
  return ending;
}

// Gradients of the tile's inputs, [step][block * lanes + lane], to be added to; y and dt may be null.
template <class T> struct TileGradients {
  T *x, *y, *dt;
};

// final_state: per vector [re, im][lane] of its gradient if the chunk is the row's last, else null.
template <class T, int V, bool PHASE_DT>
void backward_unit(const Tile<T>& tile, int64_t block, const T* panel, int64_t D, const T* constant, const T* state, const Trace<T>& trace,
                   const T* final_state, bool terminal, T* carried, T* sums, const TileGradients<T>& gradients) {
  constexpr int W = lanes<T>;
  const Coefficients<T, V> k(constant);
  const Ending<T, V> ending = retrace<T, V, PHASE_DT>(tile, block, panel, D, k, state, trace, terminal, gradients.y);
  Vec<T> pr[V], pi[V], Rr[V], Ri[V], next_r[V], next_i[V], mr[V], mi[V], br[V], bi[V], Zr[V], Zi[V], bias[V];
#pragma GCC unroll 2
  for (int v = 0; v < V; v++) {
    pr[v] = k.Cr[v] * k.Br[v] - k.Ci[v] * k.Bi[v];
    pi[v] = k.Cr[v] * k.Bi[v] + k.Ci[v] * k.Br[v];
    const T* from = carried + v * CARRIED * W;
    mr[v] = load(from + M_RE * W);
    mi[v] = load(from + M_IM * W);
    if (final_state) {
      SinCos<T> e = sincos_half_turn(ending.rest[v]);
      Vec<T> fr = load(final_state + v * 2 * W), fi = load(final_state + (v * 2 + 1) * W);
      mr[v] = e.cos * fr + e.sin * fi;
      mi[v] = e.cos * fi - e.sin * fr;
    }
    mr[v] = flip<T>(mr[v], ending.sign[v]);
    mi[v] = flip<T>(mi[v], ending.sign[v]);
    Rr[v] = next_r[v] = flip<T>(load(from + R_RE * W), ending.sign[v]);
    Ri[v] = next_i[v] = flip<T>(load(from + R_IM * W), ending.sign[v]);
    // dL/dB and dL/dC: what the chunk's end contributes
    T* into = sums + v * SUMMED * W;
    store(into + SUM_B_RE * W, load(into + SUM_B_RE * W) + mr[v] * ending.Sr[v] + mi[v] * ending.Si[v]);
    store(into + SUM_B_IM * W, load(into + SUM_B_IM * W) + mi[v] * ending.Sr[v] - mr[v] * ending.Si[v]);
    Zr[v] = Zi[v] = bias[v] = Vec<T>{};
    br[v] = k.Br[v] * mr[v] + k.Bi[v] * mi[v];  // B conj(m)
    bi[v] = k.Bi[v] * mr[v] - k.Br[v] * mi[v];
  }
  bool restarted = false;
  for (int64_t step = tile.steps - 1; step >= 0; step--) {
    int64_t at = step * tile.lanes_row + block * W;
    Vec<T> x = load(tile.x + at), g = load(tile.g + at), sum{}, sum_dt{};
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) {
      int64_t pair = (step * V + v) * 2 * W;
      Vec<T> cos = load(trace.rotation + pair), sin = load(trace.rotation + pair + W);
      Rr[v] += g * cos;
      Ri[v] -= g * sin;
      Vec<T> slope = Ri[v] * load(trace.omega + pair) - Rr[v] * load(trace.omega + pair + W);
      Vec<T> kr = cos * Rr[v] - sin * Ri[v];  // V conj(R)
      Vec<T> ki = -(cos * Ri[v] + sin * Rr[v]);
      Vec<T> entering = pr[v] * kr - pi[v] * ki;
      Zr[v] += x * kr;
      Zi[v] -= x * ki;
      if (terminal) {
        slope += mi[v] * load(trace.w + pair) - mr[v] * load(trace.w + pair + W);
        entering += br[v] * cos + bi[v] * sin;
      }
      if constexpr (PHASE_DT) {
        sum_dt += slope * load(trace.angles + (step * V + v) * W);
        slope *= load(tile.dt + at);
      }
      bias[v] += slope;
      store(trace.slopes + (step * V + v) * W, slope);
      sum += entering;
    }
    store(gradients.x + at, load(gradients.x + at) + sum);
    if constexpr (PHASE_DT) store(gradients.dt + at, load(gradients.dt + at) + sum_dt);
    if (tile.resets && tile.resets[step]) {
      restarted = true;  // the steps before belong to another segment
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) Rr[v] = Ri[v] = mr[v] = mi[v] = br[v] = bi[v] = Vec<T>{};
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < V; v++) {
    T* from = carried + v * CARRIED * W;
    store(from + R_RE * W, Rr[v]);
    store(from + R_IM * W, Ri[v]);
    store(from + M_RE * W, mr[v]);
    store(from + M_IM * W, mi[v]);
    T* into = sums + v * SUMMED * W;
    store(into + SUM_BIAS * W, load(into + SUM_BIAS * W) + bias[v]);
    store(into + SUM_B_RE * W, load(into + SUM_B_RE * W) + k.Cr[v] * Zr[v] + k.Ci[v] * Zi[v]);
    store(into + SUM_B_IM * W, load(into + SUM_B_IM * W) + k.Cr[v] * Zi[v] - k.Ci[v] * Zr[v]);
    // dL/dC = conj(w_0) (R_0 - R_next) + conj(B) (Z - R_next conj(S_last)); no R_next reaches w_0 over a restart
    Vec<T> Yr = Zr[v] - (next_r[v] * ending.Sr[v] + next_i[v] * ending.Si[v]);
    Vec<T> Yi = Zi[v] - (next_i[v] * ending.Sr[v] - next_r[v] * ending.Si[v]);
    Vec<T> dr = restarted ? Rr[v] : Rr[v] - next_r[v], di = restarted ? Ri[v] : Ri[v] - next_i[v];
    Vec<T> wr = load(state + (v * 3 + 1) * W), wi = load(state + (v * 3 + 2) * W);
    store(into + SUM_C_RE * W, load(into + SUM_C_RE * W) + (wr * dr + wi * di) + (k.Br[v] * Yr + k.Bi[v] * Yi));
    store(into + SUM_C_IM * W, load(into + SUM_C_IM * W) + (wr * di - wi * dr) + (k.Br[v] * Yi - k.Bi[v] * Yr));
  }
}

// ---------------------------------------------------------------------------------------------- threads

// The threads form groups; a group takes every groups-th batch row, its members share the units of a row.
struct Member {
  int group, groups, rank, ranks;

  int64_t begin(int64_t items) const { return items * rank / ranks; }
  int64_t end(int64_t items) const { return items * (rank + 1) / ranks; }
  void meet() const {
#if defined(_OPENMP)
    if (ranks > 1) {
#pragma omp barrier
    }
#endif
  }
};

// How many groups and members: as many groups as leave every thread the same number of batch rows, unless copies of what a group
// holds (`group_size` numbers) would outgrow `limit`.
INLINE Member plan(int threads, int64_t batch, int64_t units, int64_t group_size, int64_t limit) {
  int total = workers(INT64_MAX, threads), groups = 1;
  for (int n = 2; n <= total; n++)
    if (total % n == 0 && batch % n == 0 && batch > 0 && n * group_size <= limit) groups = n;
  int ranks = total / groups;
  return {0, groups, 0, ranks < units ? ranks : int(units > 0 ? units : 1)};
}

// body(member, index, total) on every thread of the team, or on one if the team came out smaller than planned.
template <class Body> void run_team(Member member, const Body& body) {
  int total = member.groups * member.ranks;
  if (total > 1) {
#if defined(_OPENMP)
#pragma omp parallel num_threads(total)
    {
      FlushDenormals flush;
      int index = omp_get_thread_num();
      if (omp_get_num_threads() == total)
        body(Member{index / member.ranks, member.groups, index % member.ranks, member.ranks}, index, total);
      else if (index == 0)
        body(Member{0, 1, 0, 1}, 0, 1);
    }
#endif
    return;
  }
  FlushDenormals flush;
  body(Member{0, 1, 0, 1}, 0, 1);
}

// Cuts a piece of scratch memory into arrays, null where empty; without memory it counts.
template <class T> class Cutter {
 public:
  explicit Cutter(T* memory = nullptr) : memory_(memory) {}
  T* take(int64_t count) {
    T* piece = memory_ && count > 0 ? memory_ + size : nullptr;
    size += round_up(count, 64 / sizeof(T));
    return piece;
  }
  int64_t size = 0;

 private:
  T* memory_;
};

// ---------------------------------------------------------------------------------------------- what both directions share

template <class T> struct Problem {
  static constexpr int W = lanes<T>;

  const UnitaryScan& a;
  Layout<T> layout;
  int64_t D, chunk, chunks, padded_chunk;  // padded to whole register blocks of steps
  int64_t lanes_row;                       // numbers in a row of lanes
  int64_t padded;                          // channels in whole vectors
  int64_t u_row;                           // a cache line longer: rows a power of two apart would share cache sets

  explicit Problem(const UnitaryScan& a)
      : a(a),
        layout(a.channels, a.states),
        D(a.channels),
        chunk(a.chunk < a.length ? a.chunk : a.length),
        chunks(ceil_div(a.length, a.chunk)),
        padded_chunk(round_up(chunk, ROWS)),
        lanes_row(layout.blocks * W),
        padded(round_up(D, W)),
        u_row(round_up(padded, ROWS) + W) {}

  // The blocks that a member's units lie in, and the members whose units lie in a block.
  int64_t first_block(const Member& m) const { return m.begin(layout.units) < m.end(layout.units) ? layout.unit(m.begin(layout.units)).block : 0; }
  int64_t last_block(const Member& m) const { return m.begin(layout.units) < m.end(layout.units) ? layout.unit(m.end(layout.units) - 1).block : -1; }
  void owners(const Member& m, int64_t block, int& first, int& last) const {
    first = m.ranks, last = -1;
    for (int rank = 0; rank < m.ranks; rank++) {
      Member other = {m.group, m.groups, rank, m.ranks};
      if (first_block(other) > block || last_block(other) < block) continue;
      if (rank < first) first = rank;
      last = rank;
    }
  }

  // Lists the valid steps of a chunk.
  void list_steps(int64_t b, int64_t first, Tile<T>& tile, int32_t* times, uint8_t* resets) const {
    int64_t last = first + a.chunk < a.length ? first + a.chunk : a.length;
    const uint8_t* flags = a.flags ? a.flags + b * a.length : nullptr;
    bool restarts = false;
    tile.steps = 0;
    for (int64_t t = first; t < last; t++) {
      if (flags && flags[t] & INVALID) continue;
      times[tile.steps] = int32_t(t - first);
      resets[tile.steps] = flags && flags[t] & RESET;
      restarts |= resets[tile.steps] != 0;
      tile.steps++;
    }
    tile.times = times;
    tile.resets = restarts ? resets : nullptr;
  }

  // The part of a chunk's steps that a member gathers and finishes.
  int64_t begin_step(const Member& m, const Tile<T>& tile) const { return clip(m.begin(padded_chunk / ROWS) * ROWS, tile.steps); }
  int64_t end_step(const Member& m, const Tile<T>& tile) const { return clip(m.end(padded_chunk / ROWS) * ROWS, tile.steps); }

  void zero_invalid(const Member& m, int64_t b, int64_t first, T* rows) const {
    if (!a.flags || !rows) return;
    int64_t last = first + a.chunk < a.length ? first + a.chunk : a.length;
    for (int64_t t = first + m.rank; t < last; t += m.ranks)
      if (a.flags[b * a.length + t] & INVALID) memset(rows + (b * a.length + t) * D, 0, D * sizeof(T));
  }

  // u, dt silu(u) and dt of the steps [begin, end) of a tile that starts at (b, first).
  void gather(int64_t b, int64_t first, const Tile<T>& tile, int64_t begin, int64_t end) const {
    for (int64_t step = begin; step < end; step++) {
      int64_t at = (b * a.length + first + tile.times[step]) * D;
      const T *u = static_cast<const T*>(a.u) + at, *dt = static_cast<const T*>(a.dt) + at;
      T* columns = tile.u_columns + step / ROWS * ROWS * D + step % ROWS;
      for (int64_t p = 0; p < D; p++) columns[p * ROWS] = u[p];
      for (int64_t n = 0; n < layout.blocks; n++) {
        Block block = layout.block(n);
        Vec<T> dts = load_channels(dt, block);
        store(tile.x + step * lanes_row + n * W, dts * silu(load_channels(u, block)));
        if (a.phase_dt) store(tile.dt + step * lanes_row + n * W, dts);
      }
    }
    if (end == tile.steps)
      for (int64_t step = end; step % ROWS; step++)
        for (int64_t p = 0; p < D; p++) tile.u_columns[step / ROWS * ROWS * D + step % ROWS + p * ROWS] = 0;
  }

  // `parts` numbers of each lane's row between [.., D, N, parts] and [vector][part][lane].
  void to_lanes(const Unit& unit, const T* rows, int parts, T* vectors) const {
    Block block = layout.block(unit.block);
    for (int v = 0; v < unit.vectors; v++)
      for (int l = 0; l < W; l++) {
        int64_t row = layout.row(block, unit.vector + v, l);
        for (int i = 0; i < parts; i++) vectors[(v * parts + i) * W + l] = row < 0 ? 0 : rows[row * parts + i];
      }
  }
  void from_lanes(const Unit& unit, T* rows, int parts, const T* vectors) const {
    Block block = layout.block(unit.block);
    for (int v = 0; v < unit.vectors; v++)
      for (int l = 0; l < W; l++) {
        int64_t row = layout.row(block, unit.vector + v, l);
        if (row >= 0)
          for (int i = 0; i < parts; i++) rows[row * parts + i] = vectors[(v * parts + i) * W + l];
      }
  }

 private:
  static int64_t clip(int64_t x, int64_t limit) { return x < limit ? x : limit; }
};

// The sum of a vector of lanes over the members that own its block, folded to channels.
template <class T> INLINE Vec<T> collect(T* const* tiles, int first, int last, int64_t at, const Block& block) {
  Vec<T> sum{};
  for (int rank = first; rank <= last; rank++) sum += load(tiles[rank] + at);
  return fold_channels<T>(sum, block);
}

// ---------------------------------------------------------------------------------------------- forward

template <class T> struct ForwardMemory {
  Tile<T> tile;  // of the group
  T* states;     // of the group: [vector][rest of the phase, re w, im w][lane]
  T* y;          // of the member: [step][block * lanes + lane]

  ForwardMemory(const Problem<T>& p, Cutter<T>& group, Cutter<T>& member) : tile() {
    int64_t tile_size = p.chunk * p.lanes_row;
    tile.lanes_row = p.lanes_row;
    tile.u_columns = group.take(p.padded_chunk * p.D);
    tile.x = group.take(tile_size);
    tile.dt = group.take(p.a.phase_dt ? tile_size : 0);
    states = group.take(p.layout.vectors * 3 * lanes<T>);
    y = member.take(tile_size);
  }
};

template <class T> static void forward(const UnitaryScan& a) {
  constexpr int W = lanes<T>;
  const Problem<T> p(a);
  const Layout<T>& layout = p.layout;
  Parameters<T> parameters(layout, false);
  parallel_for(layout.units, a.threads, [&](int64_t u, int) { parameters.pack(a, layout.unit(u), false); });

  const Member team = plan(a.threads, a.batch, layout.units, 0, 0);
  Cutter<T> group_count, member_count;
  ForwardMemory<T>(p, group_count, member_count);
  Buffer<T> group_memory(team.groups * group_count.size), member_memory(team.groups * team.ranks * member_count.size);
  Buffer<int32_t> times(team.groups * team.ranks * p.chunk);
  Buffer<uint8_t> resets(team.groups * team.ranks * p.chunk);
  Buffer<T*> y_tiles(team.groups * team.ranks);

  run_team(team, [&](const Member& m, int index, int) {
    Cutter<T> group(group_memory.slice(m.group, group_count.size)), own(member_memory.slice(index, member_count.size));
    ForwardMemory<T> memory(p, group, own);
    Tile<T>& tile = memory.tile;
    T** tiles = y_tiles.data() + m.group * m.ranks;
    tiles[m.rank] = memory.y;
    const int64_t first_unit = m.begin(layout.units), last_unit = m.end(layout.units);
    const int64_t first_block = p.first_block(m), own_lanes = (p.last_block(m) - first_block + 1) * W;
    alignas(64) T lanes_of_unit[2 * 3 * W];

    for (int64_t b = m.group; b < a.batch; b += m.groups) {
      const int64_t state_size = a.channels * a.states;
      for (int64_t n = first_unit; n < last_unit; n++) {
        Unit unit = layout.unit(n);
        p.to_lanes(unit, static_cast<const T*>(a.initial_state) + b * state_size * 2, 2, lanes_of_unit);
        for (int v = 0; v < unit.vectors; v++) {
          T* state = memory.states + (unit.vector + v) * 3 * W;
          memset(state, 0, W * sizeof(T));
          memcpy(state + W, lanes_of_unit + v * 2 * W, 2 * W * sizeof(T));
        }
      }
      for (int64_t c = 0; c < p.chunks; c++) {
        const int64_t first = c * a.chunk;
        p.list_steps(b, first, tile, times.slice(index, p.chunk), resets.slice(index, p.chunk));
        const int64_t begin = p.begin_step(m, tile), end = p.end_step(m, tile);
        p.gather(b, first, tile, begin, end);
        m.meet();

        for (int64_t step = 0; step < tile.steps; step++)
          memset(memory.y + step * p.lanes_row + first_block * W, 0, own_lanes * sizeof(T));
        for (int64_t n = first_unit; n < last_unit; n++) {
          Unit unit = layout.unit(n);
          T* state = memory.states + unit.vector * 3 * W;
          if (a.chunk_states) p.from_lanes(unit, static_cast<T*>(a.chunk_states) + (b * p.chunks + c) * state_size * 3, 3, state);
          auto run = unit.vectors == 2 ? (a.phase_dt ? forward_unit<T, 2, true> : forward_unit<T, 2, false>)
                                       : (a.phase_dt ? forward_unit<T, 1, true> : forward_unit<T, 1, false>);
          run(tile, unit.block, parameters.panel(unit), p.D, parameters.constant(unit.vector), state, memory.y);
        }
        m.meet();

        for (int64_t n = 0; n < layout.blocks; n++) {
          Block block = layout.block(n);
          int first_rank, last_rank;
          p.owners(m, n, first_rank, last_rank);
          Vec<T> skip = a.D ? load_channels(static_cast<const T*>(a.D), block) : Vec<T>{};
          for (int64_t step = begin; step < end; step++) {
            int64_t at = (b * a.length + first + tile.times[step]) * p.D;
            Vec<T> y = collect(tiles, first_rank, last_rank, step * p.lanes_row + n * W, block);
            if (a.D) y += skip * silu(load_channels(static_cast<const T*>(a.u) + at, block));
            if (a.z) y *= silu(load_channels(static_cast<const T*>(a.z) + at, block));
            store_channels(static_cast<T*>(a.y) + at, block, y);
          }
        }
        p.zero_invalid(m, b, first, static_cast<T*>(a.y));
      }
      for (int64_t n = first_unit; n < last_unit; n++) {
        Unit unit = layout.unit(n);
        for (int v = 0; v < unit.vectors; v++) {
          const T* state = memory.states + (unit.vector + v) * 3 * W;
          SinCos<T> e = sincos_half_turn(load(state));
          Vec<T> wr = load(state + W), wi = load(state + 2 * W);
          store(lanes_of_unit + v * 2 * W, e.cos * wr - e.sin * wi);
          store(lanes_of_unit + (v * 2 + 1) * W, e.cos * wi + e.sin * wr);
        }
        p.from_lanes(unit, static_cast<T*>(a.final_state) + b * state_size * 2, 2, lanes_of_unit);
      }
    }
  });
}

// ---------------------------------------------------------------------------------------------- backward

template <class T> struct BackwardMemory {
  Tile<T> tile;  // of the group, as the next three
  T* carried;    // [vector][Carried][lane]
  T* sums;       // [vector][Summed][lane]
  T* weights;    // per unit: [p][vector][lane], the gradient of its weights
  TileGradients<T> gradients;  // of the member, as all that follow
  T* u;          // [step][p]: what the angles give to the gradient of u
  T* D;          // [block * lanes + lane]
  Trace<T> trace;

  BackwardMemory(const Problem<T>& p, bool terminal, Cutter<T>& group, Cutter<T>& member) : tile() {
    constexpr int W = lanes<T>;
    int64_t tile_size = p.chunk * p.lanes_row, unit_size = p.padded_chunk * 2 * W;
    tile.lanes_row = p.lanes_row;
    tile.row = p.u_row;
    tile.u = group.take(p.padded_chunk * p.u_row);
    tile.u_columns = group.take(p.padded_chunk * p.D);
    tile.x = group.take(tile_size);
    tile.g = group.take(tile_size);
    tile.dt = group.take(p.a.phase_dt ? tile_size : 0);
    carried = group.take(p.layout.vectors * CARRIED * W);
    sums = group.take(p.layout.vectors * SUMMED * W);
    weights = group.take(p.layout.vectors * W * round_up(p.D, ROWS));
    gradients.x = member.take(tile_size);
    gradients.y = member.take(p.a.z ? tile_size : 0);
    gradients.dt = member.take(p.a.phase_dt ? tile_size : 0);
    u = member.take(p.padded_chunk * p.padded);
    D = member.take(p.lanes_row);
    trace.rotation = member.take(2 * unit_size);
    trace.omega = member.take(2 * unit_size);
    trace.w = member.take(terminal ? 2 * unit_size : 0);
    trace.angles = member.take(p.a.phase_dt ? unit_size : 0);
    trace.slopes = member.take(unit_size);
  }
};

// weights += u^T slopes and u += slopes W for the steps of a tile.
template <class T, int V>
static void apply_slopes(const Problem<T>& p, const Tile<T>& tile, T* slopes, const T* rows, T* weights, T* u) {
  constexpr int W = lanes<T>;
  for (int64_t i = 0; i < p.D; i += ROWS)
    multiply_add<T, V, 1>(weights + i * V * W, V * W, tile.u + i, tile.row, slopes, V * W, tile.steps);
  memset(slopes + tile.steps * V * W, 0, (round_up(tile.steps, ROWS) - tile.steps) * V * W * sizeof(T));
  int64_t i = 0;
  for (; i + 2 * W <= p.padded; i += 2 * W)
    for (int64_t step = 0; step < tile.steps; step += ROWS)
      multiply_add<T, 2, V * W>(u + step * p.padded + i, p.padded, slopes + step * V * W, 1, rows + i, p.padded, V * W);
  if (i < p.padded)
    for (int64_t step = 0; step < tile.steps; step += ROWS)
      multiply_add<T, 1, V * W>(u + step * p.padded + i, p.padded, slopes + step * V * W, 1, rows + i, p.padded, V * W);
}

// The tiles of a group's members, [rank].
template <class T> struct Tiles {
  T **x, **y, **dt, **u;
};

// The gradients of the inputs at the steps [begin, end) of a tile that starts at (b, first). sums_D: [block * lanes + lane], added to.
template <class T>
static void finish_gradients(const Problem<T>& p, const UnitaryScanGradients& grads, const Member& m, int64_t b, int64_t first,
                             const Tile<T>& tile, int64_t begin, int64_t end, const Tiles<T>& tiles, T* sums_D) {
  constexpr int W = lanes<T>;
  const UnitaryScan& a = p.a;
  for (int64_t n = 0; n < p.layout.blocks; n++) {
    const Block block = p.layout.block(n);
    int first_rank, last_rank;
    p.owners(m, n, first_rank, last_rank);
    const Vec<T> skip = a.D ? load_channels(static_cast<const T*>(a.D), block) : Vec<T>{};
    Vec<T> sum_D = load(sums_D + n * W);
    for (int64_t step = begin; step < end; step++) {
      const int64_t at = (b * a.length + first + tile.times[step]) * p.D, lane = step * p.lanes_row + n * W;
      Vec<T> u = load_channels(static_cast<const T*>(a.u) + at, block), dt = load_channels(static_cast<const T*>(a.dt) + at, block);
      Vec<T> g = load(tile.g + lane), gate = sigmoid(u), activated = u * gate;
      Vec<T> dx = collect(tiles.x, first_rank, last_rank, lane, block);
      Vec<T> du = (dt * dx + skip * g) * (gate + activated * (1 - gate));
      for (int rank = 0; rank < m.ranks; rank++) du += load(tiles.u[rank] + step * p.padded + block.channel);
      store_channels(static_cast<T*>(grads.u) + at, block, du);
      Vec<T> ddt = dx * activated;
      if (a.phase_dt) ddt += collect(tiles.dt, first_rank, last_rank, lane, block);
      store_channels(static_cast<T*>(grads.dt) + at, block, ddt);
      if (a.z) {
        Vec<T> z = load_channels(static_cast<const T*>(a.z) + at, block), open = sigmoid(z);
        Vec<T> y = collect(tiles.y, first_rank, last_rank, lane, block) + skip * activated;
        Vec<T> dy = load_channels(static_cast<const T*>(grads.y) + at, block);
        store_channels(static_cast<T*>(grads.z) + at, block, dy * y * (open + z * open * (1 - open)));
      }
      sum_D += g * activated;
    }
    store(sums_D + n * W, sum_D);
  }
}

template <class T> static bool any_nonzero(const T* x, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (x[i] != 0) return true;
  return false;
}

template <class T> static void backward(const UnitaryScanGradients& grads) {
  constexpr int W = lanes<T>;
  const UnitaryScan& a = grads.forward;
  const Problem<T> p(a);
  const Layout<T>& layout = p.layout;
  const int64_t state_size = a.channels * a.states;
  Parameters<T> parameters(layout, true);
  parallel_for(layout.units, a.threads, [&](int64_t u, int) { parameters.pack(a, layout.unit(u), true); });

  const bool terminal = any_nonzero(static_cast<const T*>(grads.final_state), a.batch * state_size * 2);
  const Member team = plan(a.threads, a.batch, layout.units, state_size, 4 * a.batch * a.length);
  const int members = team.groups * team.ranks;
  Cutter<T> group_count, member_count;
  BackwardMemory<T>(p, terminal, group_count, member_count);
  Buffer<T> group_memory(team.groups * group_count.size), member_memory(members * member_count.size);
  Buffer<int32_t> times(members * p.chunk);
  Buffer<uint8_t> resets(members * p.chunk);
  Buffer<T*> pointers(5 * members);

  run_team(team, [&](const Member& m, int index, int total) {
    Cutter<T> group(group_memory.slice(m.group, group_count.size)), own(member_memory.slice(index, member_count.size));
    BackwardMemory<T> memory(p, terminal, group, own);
    Tile<T>& tile = memory.tile;
    T** of_group = pointers.data() + m.group * m.ranks;
    const Tiles<T> tiles = {of_group, of_group + members, of_group + 2 * members, of_group + 3 * members};
    tiles.x[m.rank] = memory.gradients.x;
    tiles.y[m.rank] = memory.gradients.y;
    tiles.dt[m.rank] = memory.gradients.dt;
    tiles.u[m.rank] = memory.u;
    pointers.data()[4 * members + index] = memory.D;
    const int64_t first_unit = m.begin(layout.units), last_unit = m.end(layout.units);
    const int64_t first_block = p.first_block(m), own_lanes = (p.last_block(m) - first_block + 1) * W;
    const int64_t weight_rows = round_up(p.D, ROWS);
    memset(memory.D, 0, p.lanes_row * sizeof(T));
    for (int64_t n = first_unit; n < last_unit; n++) {
      Unit unit = layout.unit(n);
      memset(memory.sums + unit.vector * SUMMED * W, 0, unit.vectors * SUMMED * W * sizeof(T));
      memset(memory.weights + unit.vector * W * weight_rows, 0, unit.vectors * W * weight_rows * sizeof(T));
    }
    alignas(64) T state[2 * 3 * W], final_state[2 * 2 * W];

    for (int64_t b = m.group; b < a.batch; b += m.groups) {
      for (int64_t n = first_unit; n < last_unit; n++) {
        Unit unit = layout.unit(n);
        memset(memory.carried + unit.vector * CARRIED * W, 0, unit.vectors * CARRIED * W * sizeof(T));
      }
      for (int64_t c = p.chunks - 1; c >= 0; c--) {
        const int64_t first = c * a.chunk;
        p.list_steps(b, first, tile, times.slice(index, p.chunk), resets.slice(index, p.chunk));
        const int64_t begin = p.begin_step(m, tile), end = p.end_step(m, tile);
        p.gather(b, first, tile, begin, end);
        for (int64_t step = begin; step < end; step++) {
          int64_t at = (b * a.length + first + tile.times[step]) * p.D;
          memcpy(tile.u + step * tile.row, static_cast<const T*>(a.u) + at, p.D * sizeof(T));
          memset(tile.u + step * tile.row + p.D, 0, (tile.row - p.D) * sizeof(T));
          for (int64_t n = 0; n < layout.blocks; n++) {
            Block block = layout.block(n);
            Vec<T> g = load_channels(static_cast<const T*>(grads.y) + at, block);
            if (a.z) g *= silu(load_channels(static_cast<const T*>(a.z) + at, block));
            store(tile.g + step * p.lanes_row + n * W, g);
          }
        }
        m.meet();

        memset(memory.u, 0, p.padded_chunk * p.padded * sizeof(T));
        T* const to_clear[] = {memory.gradients.x, memory.gradients.y, memory.gradients.dt};
        for (T* gradient : to_clear)
          for (int64_t step = 0; gradient && step < tile.steps; step++)
            memset(gradient + step * p.lanes_row + first_block * W, 0, own_lanes * sizeof(T));
        for (int64_t n = first_unit; n < last_unit; n++) {
          Unit unit = layout.unit(n);
          p.to_lanes(unit, static_cast<const T*>(a.chunk_states) + (b * p.chunks + c) * state_size * 3, 3, state);
          bool is_last = terminal && c == p.chunks - 1;
          if (is_last) p.to_lanes(unit, static_cast<const T*>(grads.final_state) + b * state_size * 2, 2, final_state);
          const T* panel = parameters.panel(unit);
          const T* constant = parameters.constant(unit.vector);
          T* carried = memory.carried + unit.vector * CARRIED * W;
          auto run = unit.vectors == 2 ? (a.phase_dt ? backward_unit<T, 2, true> : backward_unit<T, 2, false>)
                                       : (a.phase_dt ? backward_unit<T, 1, true> : backward_unit<T, 1, false>);
          run(tile, unit.block, panel, p.D, constant, state, memory.trace, is_last ? final_state : nullptr, terminal, carried,
              memory.sums + unit.vector * SUMMED * W, memory.gradients);
          auto apply = unit.vectors == 2 ? apply_slopes<T, 2> : apply_slopes<T, 1>;
          apply(p, tile, memory.trace.slopes, parameters.weights(unit), memory.weights + unit.vector * W * weight_rows, memory.u);
        }
        m.meet();

        finish_gradients(p, grads, m, b, first, tile, begin, end, tiles, memory.D);
        void* const per_step[] = {grads.u, grads.dt, grads.z};
        for (void* rows : per_step) p.zero_invalid(m, b, first, static_cast<T*>(rows));
      }
      // dL/dh before the first step: m + conj(C) R, the frame standing still there
      for (int64_t n = first_unit; n < last_unit; n++) {
        Unit unit = layout.unit(n);
        for (int v = 0; v < unit.vectors; v++) {
          const T* carried = memory.carried + (unit.vector + v) * CARRIED * W;
          const T* constant = parameters.constant(unit.vector + v);
          Vec<T> Rr = load(carried + R_RE * W), Ri = load(carried + R_IM * W), Cr = load(constant + C_RE * W), Ci = load(constant + C_IM * W);
          store(final_state + v * 2 * W, load(carried + M_RE * W) + Cr * Rr + Ci * Ri);
          store(final_state + (v * 2 + 1) * W, load(carried + M_IM * W) + Cr * Ri - Ci * Rr);
        }
        p.from_lanes(unit, static_cast<T*>(grads.initial_state) + b * state_size * 2, 2, final_state);
      }
    }

    // Gradients of the parameters: over the groups, in their order.
#if defined(_OPENMP)
    if (total > 1) {
#pragma omp barrier
    }
#endif
    const Member whole = {0, 1, index, total};
    for (int64_t n = whole.begin(layout.units); n < whole.end(layout.units); n++) {
      Unit unit = layout.unit(n);
      T *weights = nullptr, *sums = nullptr;
      for (int g = 0; g < m.groups; g++) {
        Cutter<T> other(group_memory.slice(g, group_count.size)), none;
        BackwardMemory<T> of(p, terminal, other, none);
        T *more_weights = of.weights + unit.vector * W * weight_rows, *more_sums = of.sums + unit.vector * SUMMED * W;
        if (g == 0) {
          weights = more_weights;
          sums = more_sums;
          continue;
        }
        for (int64_t i = 0; i < unit.vectors * weight_rows * W; i++) weights[i] += more_weights[i];
        for (int64_t i = 0; i < unit.vectors * SUMMED * W; i++) sums[i] += more_sums[i];
      }
      Block block = layout.block(unit.block);
      for (int v = 0; v < unit.vectors; v++)
        for (int l = 0; l < W; l++) {
          int64_t row = layout.row(block, unit.vector + v, l);
          if (row < 0) continue;
          T* out = static_cast<T*>(grads.W) + row * p.D;
          for (int64_t i = 0; i < p.D; i++) out[i] = weights[(i * unit.vectors + v) * W + l];
          const T* sum = sums + v * SUMMED * W + l;
          static_cast<T*>(grads.bias)[row] = sum[SUM_BIAS * W];
          for (int part = 0; part < 2; part++) {
            static_cast<T*>(grads.B)[2 * row + part] = sum[(SUM_B_RE + part) * W];
            static_cast<T*>(grads.C)[2 * row + part] = sum[(SUM_C_RE + part) * W];
          }
        }
    }
    if (a.D && index == 0)
      for (int64_t n = 0; n < layout.blocks; n++) {
        Block block = layout.block(n);
        Vec<T> sum{};
        for (int other = 0; other < total; other++) sum += load(pointers.data()[4 * members + other] + n * W);
        store_channels(static_cast<T*>(grads.D), block, sum);
      }
  });
}

void unitary_scan_forward(const UnitaryScan& a) { a.is_double ? forward<double>(a) : forward<float>(a); }
void unitary_scan_backward(const UnitaryScanGradients& a) { a.forward.is_double ? backward<double>(a) : backward<float>(a); }

}  // namespace longscan::LONGSCAN_ISA
