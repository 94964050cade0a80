// Forward and backward of the AUSSM scan, without a tensor of size (batch, L, D, N) in memory.
//
// Algebra. With G_t the running sum of the angles, h_t = e^{i G_t} w_t and V_t = e^{-i G_t}, the state in the rotating frame is a
// plain sum, w_t = w_0 + B S_t with S_t = sum_{k<=t} x_k V_k, x = dt silu(u). The state is never multiplied by a rounded rotation,
// so |h| does not drift, and the phase has the error of one wrapped addition for each step (phase.h). With g = dL/dy silu(z):
//   Re C h_t   = Re(conj(V_t) omega_t),  omega_t = C w_t = C w_0 + (C B) S_t
//   R_t        = sum_{k>=t} g_k V_k, and mu_t = m + conj(C) R_t is dL/dh_t in the frame, m = V_last dL/dh_last
//   dL/dtheta  = Im(mu_t conj(w_{t-1})) = Im(R_t conj(omega_{t-1})) + Im(m conj(w_{t-1}))
//   dL/dx      = sum_n Re(B V_t conj(mu_t))
//   dL/dB      = conj(C) Z + m conj(S_last),  Z = sum_t x_t conj(V_t) R_t
//   dL/dC      = sum_t g_t V_t conj(w_t) = conj(w_0) (R_0 - R_next) + conj(B) (Z - R_next conj(S_last))    (summation by parts)
// where w_0 and S restart with every chunk and segment, and R_next is R after the last step of the chunk or segment. G restarts
// with every segment; the first angle of a segment would rotate only the state that is dropped, so no sum crosses a restart.
// At the end of a chunk an odd number of half turns is moved from the phase into the sign of w. So a state between chunks is
// three numbers (rest of the phase, w), which chunk_states contains for the first step of every chunk.
//
// Units. lane_layout.h assigns channels to lanes and divides the work into units of one or two vectors. For a unit and a chunk, the
// angles of 4 or 8 steps go from the registers of a small GEMM directly into the recurrence. The backward pass stores (V, omega) of
// one unit and chunk in cache, goes back over them, and multiplies the gradients of the angles in two more GEMMs.
// INVALID steps are skipped when the inputs of a chunk are gathered, so their values are never read.
//
// Counted per (batch, t, d, n) at D = N = 64, multiplications and fused multiply-adds: forward 64 for the projection and 22 (3
// reduction of the phase, 11 sine and cosine, 2 S, 4 omega, 2 y); backward 192 for three products and 34. Two cores that each
// start one AVX-512 multiply-add a cycle at 3.6 GHz (115e9 lanes a second) need 0.75 and 2.0 ns for these; two a cycle, half.
// Memory: forward 4 numbers per (t, d) and 3 N / chunk of saved states, backward 10 and as many again, a tenth of that time.
//
// Threads. team.h: groups of threads compute different batch rows, and the members of a group share the units of a row, with two
// barriers for each span of chunks. The order of every sum depends only on the sizes and the number of threads.
#include "unitary_scan.h"

#include "arrays.h"
#include "gemm.h"
#include "lane_layout.h"
#include "phase.h"
#include "team.h"

namespace longscan::LONGSCAN_ISA {

constexpr int ROWS = GEMM_ROWS;

// ---------------------------------------------------------------------------------------------- parameters in lanes

enum Constant { BIAS, BIAS_LOW, BIAS_HALF_TURN, B_RE, B_IM, C_RE, C_IM, CONSTANTS };

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
        const T* source = at<T>(a.W, row * D);
        for (int64_t p = 0; p < D; p++) panel[(p * unit.vectors + v) * W + l] = source[p];
        if (backward) {
          memcpy(weights, source, D * sizeof(T));
          memset(weights + D, 0, (padded - D) * sizeof(T));
        }
        pack_bias(a, row, constant, l);
        for (int part = 0; part < 2; part++) {
          constant[(B_RE + part) * W + l] = *at<T>(a.B, 2 * row + part);
          constant[(C_RE + part) * W + l] = *at<T>(a.C, 2 * row + part);
        }
      }
    }
  }

 private:
  // The bias without whole half turns, which would reduce the precision of the sum of phases at every step, and the rounding error
  // of the rest in T, which would accumulate. With phase_dt the bias is multiplied first.
  static void pack_bias(const UnitaryScan& a, int64_t row, T* constant, int lane) {
    T bias = *at<T>(a.bias, row);
    Phase<double> phase = {broadcast<double>(0), IntVec<double>{}};
    if (!a.phase_dt) phase.add(broadcast<double>(double(bias)), IntVec<double>{});
    double rest = a.phase_dt ? double(bias) : phase.rest[0];
    constant[BIAS * lanes<T> + lane] = T(rest);
    constant[BIAS_LOW * lanes<T> + lane] = T(rest - double(T(rest)));
    IntVec<T> bias_half_turn = IntVec<T>{} + int(phase.half_turns[0] & 1);
    memcpy(constant + BIAS_HALF_TURN * lanes<T> + lane, &bias_half_turn, sizeof(T));
  }
};

// The constants of a unit in registers.
template <class T, int V> struct Coefficients {
  Vec<T> bias[V], bias_low[V], Br[V], Bi[V], Cr[V], Ci[V];
  IntVec<T> bias_half_turn[V];

  INLINE explicit Coefficients(const T* constant) {
    constexpr int W = lanes<T>;
#pragma GCC unroll 2
    for (int v = 0; v < V; v++, constant += CONSTANTS * W) {
      bias[v] = load(constant + BIAS * W);
      bias_low[v] = load(constant + BIAS_LOW * W);
      bias_half_turn[v] = bits<IntVec<T>>(load(constant + BIAS_HALF_TURN * W));
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
  int64_t b, first;       // batch row, and the step of the chunk's start
  int64_t steps, row;     // valid steps; length of a row of u
  const int32_t* times;   // [step] its index in the chunk
  const uint8_t* resets;  // [step] whether the state restarts there; null where it never does
  int64_t lanes_row;      // length of a row of x, dt, g
  T *u, *u_columns;       // [step][p], and [step / ROWS][p][step % ROWS]
  T *x, *dt, *g;          // [step][block * lanes + lane]: dt silu(u), dt, and the gradient of the sum over states
};

// The angles of ROWS steps: [step][vector][lane].
template <class T, int V>
INLINE void project(const Tile<T>& tile, int64_t first, const T* panel, int64_t D, const Vec<T> (&bias)[V], T* angles) {
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

// Values of every step of a unit and chunk that the backward pass needs: scratch memory of one thread.
template <class T> struct Trace {
  T* rotation;  // [step][vector][re, -im of V][lane]
  T* omega;     // [step][vector][re, im][lane], before the step
  T* w;         // the same of w; null unless the final state has a gradient
  T* angles;    // [step][vector][lane]: the angle before the multiplication by dt; with phase_dt
  T* d_theta;    // [step][vector][lane]: the gradient of the projection
};

// The state after a chunk: the phase, and w_0 and S of the last segment.
template <class T, int V> struct ChunkEnd {
  Vec<T> rest[V], wr[V], wi[V], Sr[V], Si[V];
  IntVec<T> sign[V];
};

// Runs over a chunk from the state at its start: per vector [rest of the phase, re w, im w][lane]. y, unless null: [step][lane]
// += Re sum C h.
template <class T, int V, bool PHASE_DT, bool TRACE>
INLINE ChunkEnd<T, V> sweep(const Tile<T>& tile, int64_t block, const T* panel, int64_t D, const Coefficients<T, V>& k,
                          const T* state, const Trace<T>& trace, T* y) {
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
    const int64_t last = tile.steps < first + ROWS ? tile.steps : first + ROWS;
    int64_t added = first;  // the first of the block's steps whose angles `phase` holds
    const T* angle = angles;
    for (int64_t step = first; step < last; step++, angle += V * W) {
      const bool restarts = tile.resets && tile.resets[step];
      if (restarts) {
        added = step + 1;
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) {
          wr[v] = wi[v] = ar[v] = ai[v] = Sr[v] = Si[v] = omega_r[v] = omega_i[v] = Vec<T>{};
          phase[v] = {Vec<T>{}, IntVec<T>{}};
        }
      }
      const int64_t at = step * tile.lanes_row + block * W;
      Vec<T> x = load(tile.x + at), sum{};
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) {
        const int64_t pair = (step * V + v) * 2 * W;
        Vec<T> theta = load(angle + v * W);
        if constexpr (PHASE_DT) {
          if constexpr (TRACE) store(trace.angles + (step * V + v) * W, theta);
          theta *= load(tile.dt + at);
        }
        if (!restarts) phase[v].add(theta, k.bias_half_turn[v]);
        SinCos<T> e = phase[v].sincos();
        e = {flip<T>(e.sin, phase[v].sign()), flip<T>(e.cos, phase[v].sign())};
        if constexpr (TRACE) {
          store(trace.rotation + pair, e.cos);
          store(trace.rotation + pair + W, e.sin);
          store(trace.omega + pair, omega_r[v]);
          store(trace.omega + pair + W, omega_i[v]);
          if (trace.w) {
            store(trace.w + pair, wr[v] + k.Br[v] * Sr[v] - k.Bi[v] * Si[v]);
            store(trace.w + pair + W, wi[v] + k.Br[v] * Si[v] + k.Bi[v] * Sr[v]);
          }
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
    for (int v = 0; v < V; v++) phase[v].rest += k.bias_low[v] * T(last - added);
  }
  ChunkEnd<T, V> end;
#pragma GCC unroll 2
  for (int v = 0; v < V; v++) {
    end.rest[v] = phase[v].rest;
    end.sign[v] = phase[v].sign();
    end.wr[v] = wr[v];
    end.wi[v] = wi[v];
    end.Sr[v] = Sr[v];
    end.Si[v] = Si[v];
  }
  return end;
}

// Advances the state of a unit from the start of a chunk to its end. y: [step][lane] += Re sum C h.
template <class T, int V, bool PHASE_DT>
void forward_unit(const Tile<T>& tile, int64_t block, const T* panel, int64_t D, const T* constant, T* state, T* y) {
  constexpr int W = lanes<T>;
  const Coefficients<T, V> k(constant);
  const ChunkEnd<T, V> end = sweep<T, V, PHASE_DT, false>(tile, block, panel, D, k, state, Trace<T>{}, y);
#pragma GCC unroll 2
  for (int v = 0; v < V; v++) {
    store(state + v * 3 * W, end.rest[v]);
    store(state + (v * 3 + 1) * W, flip<T>(end.wr[v] + k.Br[v] * end.Sr[v] - k.Bi[v] * end.Si[v], end.sign[v]));
    store(state + (v * 3 + 2) * W, flip<T>(end.wi[v] + k.Br[v] * end.Si[v] + k.Bi[v] * end.Sr[v], end.sign[v]));
  }
}

// ---------------------------------------------------------------------------------------------- the backward of a unit

// Values passed from chunk to chunk in reverse time for each vector of a batch row: R and m; and the sums for each vector.
enum Carried { R_RE, R_IM, M_RE, M_IM, CARRIED };
enum Summed { SUM_BIAS, SUM_B_RE, SUM_B_IM, SUM_C_RE, SUM_C_IM, SUMMED };

// Gradients of the tile's inputs, [step][block * lanes + lane], to be added to; y and dt may be null.
template <class T> struct TileGradients {
  T *x, *y, *dt;
};

// final_state: per vector [re, im][lane] of its gradient if the chunk is the row's last, else null.
template <class T, int V, bool PHASE_DT>
void backward_unit(const Tile<T>& tile, int64_t block, const T* panel, int64_t D, const T* constant, const T* state,
                   const Trace<T>& trace, const T* final_state, T* carried, T* sums, const TileGradients<T>& gradients) {
  constexpr int W = lanes<T>;
  const Coefficients<T, V> k(constant);
  const ChunkEnd<T, V> end = sweep<T, V, PHASE_DT, true>(tile, block, panel, D, k, state, trace, gradients.y);
  Vec<T> pr[V], pi[V], Rr[V], Ri[V], next_r[V], next_i[V], mr[V], mi[V], br[V], bi[V], Zr[V], Zi[V], bias[V];
#pragma GCC unroll 2
  for (int v = 0; v < V; v++) {
    pr[v] = k.Cr[v] * k.Br[v] - k.Ci[v] * k.Bi[v];
    pi[v] = k.Cr[v] * k.Bi[v] + k.Ci[v] * k.Br[v];
    const T* from = carried + v * CARRIED * W;
    mr[v] = load(from + M_RE * W);
    mi[v] = load(from + M_IM * W);
    if (final_state) {
      SinCos<T> e = sincos_half_turn(end.rest[v]);
      Vec<T> fr = load(final_state + v * 2 * W), fi = load(final_state + (v * 2 + 1) * W);
      mr[v] = e.cos * fr + e.sin * fi;
      mi[v] = e.cos * fi - e.sin * fr;
    }
    mr[v] = flip<T>(mr[v], end.sign[v]);
    mi[v] = flip<T>(mi[v], end.sign[v]);
    Rr[v] = next_r[v] = flip<T>(load(from + R_RE * W), end.sign[v]);
    Ri[v] = next_i[v] = flip<T>(load(from + R_IM * W), end.sign[v]);
    // dL/dB and dL/dC: what the chunk's end contributes
    T* into = sums + v * SUMMED * W;
    store(into + SUM_B_RE * W, load(into + SUM_B_RE * W) + mr[v] * end.Sr[v] + mi[v] * end.Si[v]);
    store(into + SUM_B_IM * W, load(into + SUM_B_IM * W) + mi[v] * end.Sr[v] - mr[v] * end.Si[v]);
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
      Vec<T> d_theta = Ri[v] * load(trace.omega + pair) - Rr[v] * load(trace.omega + pair + W);
      Vec<T> kr = cos * Rr[v] - sin * Ri[v];  // V conj(R)
      Vec<T> ki = -(cos * Ri[v] + sin * Rr[v]);
      Vec<T> d_x = pr[v] * kr - pi[v] * ki;
      Zr[v] += x * kr;
      Zi[v] -= x * ki;
      if (trace.w) {
        d_theta += mi[v] * load(trace.w + pair) - mr[v] * load(trace.w + pair + W);
        d_x += br[v] * cos + bi[v] * sin;
      }
      if constexpr (PHASE_DT) {
        sum_dt += d_theta * load(trace.angles + (step * V + v) * W);
        d_theta *= load(tile.dt + at);
      }
      bias[v] += d_theta;
      store(trace.d_theta + (step * V + v) * W, d_theta);
      sum += d_x;
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
    Vec<T> Yr = Zr[v] - (next_r[v] * end.Sr[v] + next_i[v] * end.Si[v]);
    Vec<T> Yi = Zi[v] - (next_i[v] * end.Sr[v] - next_r[v] * end.Si[v]);
    Vec<T> dr = restarted ? Rr[v] : Rr[v] - next_r[v], di = restarted ? Ri[v] : Ri[v] - next_i[v];
    Vec<T> wr = load(state + (v * 3 + 1) * W), wi = load(state + (v * 3 + 2) * W);
    store(into + SUM_C_RE * W, load(into + SUM_C_RE * W) + (wr * dr + wi * di) + (k.Br[v] * Yr + k.Bi[v] * Yi));
    store(into + SUM_C_IM * W, load(into + SUM_C_IM * W) + (wr * di - wi * dr) + (k.Br[v] * Yi - k.Bi[v] * Yr));
  }
}

// ---------------------------------------------------------------------------------------------- used in both directions

constexpr int MAX_SPAN = 8;

template <class T> struct Problem {
  static constexpr int W = lanes<T>;

  const UnitaryScan& a;
  Layout<T> layout;
  int64_t D, chunk, chunks, padded_chunk;  // padded to whole register blocks of steps
  int64_t lanes_row;                       // numbers in a row of lanes
  int64_t padded;                          // channels in whole vectors
  int64_t u_row;                           // a cache line longer: rows a power of two apart would share cache sets
  int64_t tile_size;                       // of a tile [step][block * lanes + lane]

  explicit Problem(const UnitaryScan& a)
      : a(a),
        layout(a.channels, a.states),
        D(a.channels),
        chunk(a.chunk < a.length ? a.chunk : a.length),
        chunks(ceil_div(a.length, a.chunk)),
        padded_chunk(round_up(chunk, ROWS)),
        lanes_row(layout.blocks * W),
        padded(round_up(D, W)),
        u_row(round_up(padded, ROWS) + W),
        tile_size(chunk * lanes_row) {}

  int64_t state_size() const { return a.channels * a.states; }
  int64_t position(int64_t b, int64_t t) const { return (b * a.length + t) * D; }

  // Chunks between two barriers of a group: several, as barriers cost time, but so few that their tiles stay small.
  int64_t span(const Member& team) const {
    if (team.ranks == 1) return 1;
    int64_t most = 65536 / tile_size < MAX_SPAN ? 65536 / tile_size : MAX_SPAN;
    return most < 1 ? 1 : most < chunks ? most : chunks;
  }

  // The blocks that a member's units lie in, and the members whose units lie in a block.
  int64_t first_block(const Member& m) const { return layout.unit(m.begin(layout.units)).block; }
  int64_t last_block(const Member& m) const { return layout.unit(m.end(layout.units) - 1).block; }
  void owners(const Member& m, int64_t block, int& first, int& last) const {
    first = m.ranks, last = -1;
    for (int rank = 0; rank < m.ranks; rank++) {
      Member other = {m.group, m.groups, rank, m.ranks};
      if (first_block(other) > block || last_block(other) < block) continue;
      if (rank < first) first = rank;
      last = rank;
    }
  }

  // Lists the valid steps of chunk `c` of batch row `b`.
  void list_steps(int64_t b, int64_t c, Tile<T>& tile, int32_t* times, uint8_t* resets) const {
    const uint8_t* flags = a.flags ? a.flags + b * a.length : nullptr;
    bool restarts = false;
    tile.b = b;
    tile.first = c * a.chunk;
    tile.steps = 0;
    for (int64_t t = tile.first; t < end_of(tile); t++) {
      if (flags && flags[t] & INVALID) continue;
      times[tile.steps] = int32_t(t - tile.first);
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

  void zero_invalid(const Member& m, const Tile<T>& tile, T* rows) const {
    if (!a.flags || !rows) return;
    for (int64_t t = tile.first + m.rank; t < end_of(tile); t += m.ranks)
      if (a.flags[tile.b * a.length + t] & INVALID) memset(rows + position(tile.b, t), 0, D * sizeof(T));
  }

  // A member's part of u, dt silu(u) and dt of a tile.
  void gather(const Member& m, const Tile<T>& tile) const {
    const int64_t end = end_step(m, tile);
    for (int64_t step = begin_step(m, tile); step < end; step++) {
      const int64_t from = position(tile.b, tile.first + tile.times[step]);
      const T *u = at<T>(a.u, from), *dt = at<T>(a.dt, from);
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
  int64_t end_of(const Tile<T>& tile) const { return clip(tile.first + a.chunk, a.length); }
};

// The same tile of every member of a group, [rank].
template <class T> struct Tiles {
  T* const* of;
  int64_t offset;

  // The sum of a vector of lanes over the members [first, last], folded to channels.
  INLINE Vec<T> collect(int first, int last, int64_t at, const Block& block) const {
    return fold_channels<T>(sum(first, last, at), block);
  }
  INLINE Vec<T> sum(int first, int last, int64_t at) const {
    Vec<T> total{};
    for (int rank = first; rank <= last; rank++) total += load(of[rank] + offset + at);
    return total;
  }
};

// Lists of the steps of the chunks of a span, for every member.
struct StepLists {
  int64_t chunk, span;
  Buffer<int32_t> times;
  Buffer<uint8_t> resets;

  StepLists(int members, int64_t span, int64_t chunk)
      : chunk(chunk), span(span), times(members * span * chunk), resets(members * span * chunk) {}
  int32_t* times_of(int member, int64_t i) { return times.slice(member * span + i, chunk); }
  uint8_t* resets_of(int member, int64_t i) { return resets.slice(member * span + i, chunk); }
};

// ---------------------------------------------------------------------------------------------- forward

template <class T> struct ForwardMemory {
  Tile<T> tiles[MAX_SPAN];  // of the group, for the chunks of a span
  T* states;                // of the group: [vector][rest of the phase, re w, im w][lane]
  T* y;                     // of the member: [chunk of the span][step][block * lanes + lane]

  ForwardMemory(const Problem<T>& p, int64_t span, Arena<T>& group, Arena<T>& member) : tiles() {
    for (int64_t i = 0; i < span; i++) {
      tiles[i].lanes_row = p.lanes_row;
      tiles[i].u_columns = group.allocate(p.padded_chunk * p.D);
      tiles[i].x = group.allocate(p.tile_size);
      tiles[i].dt = group.allocate(p.a.phase_dt ? p.tile_size : 0);
    }
    states = group.allocate(p.layout.vectors * 3 * lanes<T>);
    y = member.allocate(span * p.tile_size);
  }
};

// What one thread does.
template <class T> struct Forward {
  static constexpr int W = lanes<T>;

  const Problem<T>& p;
  Parameters<T>& parameters;
  const Member m;
  ForwardMemory<T> memory;
  T* const* y_tiles;  // of the members of the group

  void read_states(int64_t b) {
    alignas(64) T h[2 * 2 * W];
    for (int64_t n = m.begin(p.layout.units); n < m.end(p.layout.units); n++) {
      Unit unit = p.layout.unit(n);
      p.to_lanes(unit, at<T>(p.a.initial_state, b * p.state_size() * 2), 2, h);
      for (int v = 0; v < unit.vectors; v++) {
        T* state = memory.states + (unit.vector + v) * 3 * W;
        memset(state, 0, W * sizeof(T));
        memcpy(state + W, h + v * 2 * W, 2 * W * sizeof(T));
      }
    }
  }

  void run(const Tile<T>& tile, T* y) {
    const UnitaryScan& a = p.a;
    const int64_t first_lane = p.first_block(m) * W, own_lanes = (p.last_block(m) + 1) * W - first_lane;
    for (int64_t step = 0; step < tile.steps; step++) memset(y + step * p.lanes_row + first_lane, 0, own_lanes * sizeof(T));
    for (int64_t n = m.begin(p.layout.units); n < m.end(p.layout.units); n++) {
      Unit unit = p.layout.unit(n);
      T* state = memory.states + unit.vector * 3 * W;
      if (a.chunk_states) {
        int64_t saved = (tile.b * p.chunks + tile.first / a.chunk) * p.state_size() * 3;
        p.from_lanes(unit, at<T>(a.chunk_states, saved), 3, state);
      }
      auto kernel = unit.vectors == 2 ? (a.phase_dt ? forward_unit<T, 2, true> : forward_unit<T, 2, false>)
                                      : (a.phase_dt ? forward_unit<T, 1, true> : forward_unit<T, 1, false>);
      kernel(tile, unit.block, parameters.panel(unit), p.D, parameters.constant(unit.vector), state, y);
    }
  }

  void finish(const Tile<T>& tile, int64_t offset) {
    const UnitaryScan& a = p.a;
    const Tiles<T> y_of = {y_tiles, offset};
    const int64_t begin = p.begin_step(m, tile), end = p.end_step(m, tile);
    for (int64_t n = 0; n < p.layout.blocks; n++) {
      const Block block = p.layout.block(n);
      int first, last;
      p.owners(m, n, first, last);
      const Vec<T> skip = a.D ? load_channels(at<T>(a.D, 0), block) : Vec<T>{};
      for (int64_t step = begin; step < end; step++) {
        const int64_t from = p.position(tile.b, tile.first + tile.times[step]);
        Vec<T> y = y_of.collect(first, last, step * p.lanes_row + n * W, block);
        if (a.D) y += skip * silu(load_channels(at<T>(a.u, from), block));
        if (a.z) y *= silu(load_channels(at<T>(a.z, from), block));
        store_channels(at<T>(a.y, from), block, y);
      }
    }
    p.zero_invalid(m, tile, at<T>(a.y, 0));
  }

  void write_states(int64_t b) {
    alignas(64) T h[2 * 2 * W];
    for (int64_t n = m.begin(p.layout.units); n < m.end(p.layout.units); n++) {
      Unit unit = p.layout.unit(n);
      for (int v = 0; v < unit.vectors; v++) {
        const T* state = memory.states + (unit.vector + v) * 3 * W;
        SinCos<T> e = sincos_half_turn(load(state));
        Vec<T> wr = load(state + W), wi = load(state + 2 * W);
        store(h + v * 2 * W, e.cos * wr - e.sin * wi);
        store(h + (v * 2 + 1) * W, e.cos * wi + e.sin * wr);
      }
      p.from_lanes(unit, at<T>(p.a.final_state, b * p.state_size() * 2), 2, h);
    }
  }
};

template <class T> static void forward(const UnitaryScan& a) {
  const Problem<T> p(a);
  Parameters<T> parameters(p.layout, false);
  parallel_for(p.layout.units, a.threads, [&](int64_t n, int) { parameters.pack(a, p.layout.unit(n), false); });

  const Member team = plan(a.threads, a.batch, p.layout.units, 0, 0);
  const int members = team.groups * team.ranks;
  const int64_t span = p.span(team);
  Arena<T> group_count, member_count;
  ForwardMemory<T>{p, span, group_count, member_count};
  Buffer<T> group_memory(team.groups * group_count.size), member_memory(members * member_count.size);
  StepLists lists(members, span, p.chunk);
  Buffer<T*> y_tiles(members);

  run_team(team, [&](const Member& m, int index, int) {
    Arena<T> group(group_memory.slice(m.group, group_count.size)), own(member_memory.slice(index, member_count.size));
    Forward<T> work = {p, parameters, m, ForwardMemory<T>(p, span, group, own), y_tiles.data() + m.group * m.ranks};
    Tile<T>* tiles = work.memory.tiles;
    y_tiles.data()[index] = work.memory.y;
    for (int64_t b = m.group; b < a.batch; b += m.groups) {
      work.read_states(b);
      for (int64_t c = 0; c < p.chunks; c += span) {
        const int64_t count = p.chunks - c < span ? p.chunks - c : span;
        for (int64_t i = 0; i < count; i++) {
          p.list_steps(b, c + i, tiles[i], lists.times_of(index, i), lists.resets_of(index, i));
          p.gather(m, tiles[i]);
        }
        m.barrier();
        for (int64_t i = 0; i < count; i++) work.run(tiles[i], work.memory.y + i * p.tile_size);
        m.barrier();
        for (int64_t i = 0; i < count; i++) work.finish(tiles[i], i * p.tile_size);
      }
      work.write_states(b);
    }
  });
}

// ---------------------------------------------------------------------------------------------- backward

template <class T> struct BackwardMemory {
  Tile<T> tiles[MAX_SPAN];  // of the group, as the next three
  T* carried;               // [vector][Carried][lane]
  T* sums;                  // [vector][Summed][lane]
  T* weights;               // per unit: [p][vector][lane], the gradient of its weights
  TileGradients<T> gradients;  // of the member, as all that follow; for the chunks of a span
  T* u;                        // [chunk of the span][step][p]: the gradient of u through the angles
  T* D;                        // [block * lanes + lane]
  Trace<T> trace;

  BackwardMemory(const Problem<T>& p, int64_t span, bool terminal, Arena<T>& group, Arena<T>& member) : tiles() {
    constexpr int W = lanes<T>;
    const int64_t unit_size = p.padded_chunk * 2 * W;
    for (int64_t i = 0; i < span; i++) {
      tiles[i].row = p.u_row;
      tiles[i].lanes_row = p.lanes_row;
      tiles[i].u = group.allocate(p.padded_chunk * p.u_row);
      tiles[i].u_columns = group.allocate(p.padded_chunk * p.D);
      tiles[i].x = group.allocate(p.tile_size);
      tiles[i].g = group.allocate(p.tile_size);
      tiles[i].dt = group.allocate(p.a.phase_dt ? p.tile_size : 0);
    }
    carried = group.allocate(p.layout.vectors * CARRIED * W);
    sums = group.allocate(p.layout.vectors * SUMMED * W);
    weights = group.allocate(p.layout.vectors * W * weight_rows(p));
    gradients.x = member.allocate(span * p.tile_size);
    gradients.y = member.allocate(p.a.z ? span * p.tile_size : 0);
    gradients.dt = member.allocate(p.a.phase_dt ? span * p.tile_size : 0);
    u = member.allocate(span * u_size(p));
    D = member.allocate(p.lanes_row);
    trace.rotation = member.allocate(2 * unit_size);
    trace.omega = member.allocate(2 * unit_size);
    trace.w = member.allocate(terminal ? 2 * unit_size : 0);
    trace.angles = member.allocate(p.a.phase_dt ? unit_size : 0);
    trace.d_theta = member.allocate(unit_size);
  }

  static int64_t weight_rows(const Problem<T>& p) { return round_up(p.D, ROWS); }
  static int64_t u_size(const Problem<T>& p) { return p.padded_chunk * p.padded; }
  T* weights_of(const Problem<T>& p, const Unit& unit) { return weights + unit.vector * lanes<T> * weight_rows(p); }
  T* sums_of(const Unit& unit) { return sums + unit.vector * SUMMED * lanes<T>; }
  T* carried_of(const Unit& unit) { return carried + unit.vector * CARRIED * lanes<T>; }
};

// weights += u^T d_theta and u += d_theta W for the steps of a tile.
template <class T, int V>
static void add_projection_gradients(const Problem<T>& p, const Tile<T>& tile, T* d_theta, const T* rows, T* weights, T* u) {
  constexpr int W = lanes<T>;
  for (int64_t i = 0; i < p.D; i += ROWS)
    multiply_add<T, V, 1>(weights + i * V * W, V * W, tile.u + i, tile.row, d_theta, V * W, tile.steps);
  memset(d_theta + tile.steps * V * W, 0, (round_up(tile.steps, ROWS) - tile.steps) * V * W * sizeof(T));
  int64_t i = 0;
  for (; i + 2 * W <= p.padded; i += 2 * W)
    for (int64_t step = 0; step < tile.steps; step += ROWS)
      multiply_add<T, 2, V * W>(u + step * p.padded + i, p.padded, d_theta + step * V * W, 1, rows + i, p.padded, V * W);
  if (i < p.padded)
    for (int64_t step = 0; step < tile.steps; step += ROWS)
      multiply_add<T, 1, V * W>(u + step * p.padded + i, p.padded, d_theta + step * V * W, 1, rows + i, p.padded, V * W);
}

enum Gathered { OF_X, OF_Y, OF_DT, OF_U, OF_D, GATHERED };

// What one thread does.
template <class T> struct Backward {
  static constexpr int W = lanes<T>;

  const Problem<T>& p;
  const UnitaryScanGradients& grads;
  Parameters<T>& parameters;
  const bool terminal;
  const Member m;
  BackwardMemory<T> memory;
  T* const* pointers;  // [Gathered][member of any group]
  const int members;

  Tiles<T> tiles_of(Gathered what, int64_t offset) const { return {pointers + what * members + m.group * m.ranks, offset}; }

  void clear_sums() {
    memset(memory.D, 0, p.lanes_row * sizeof(T));
    for (int64_t n = m.begin(p.layout.units); n < m.end(p.layout.units); n++) {
      Unit unit = p.layout.unit(n);
      memset(memory.sums_of(unit), 0, unit.vectors * SUMMED * W * sizeof(T));
      memset(memory.weights_of(p, unit), 0, unit.vectors * W * memory.weight_rows(p) * sizeof(T));
    }
  }

  void clear_carried() {
    for (int64_t n = m.begin(p.layout.units); n < m.end(p.layout.units); n++) {
      Unit unit = p.layout.unit(n);
      memset(memory.carried_of(unit), 0, unit.vectors * CARRIED * W * sizeof(T));
    }
  }

  // A member's part of u and of dL/dy silu(z).
  void gather(const Tile<T>& tile) {
    p.gather(m, tile);
    for (int64_t step = p.begin_step(m, tile); step < p.end_step(m, tile); step++) {
      const int64_t from = p.position(tile.b, tile.first + tile.times[step]);
      memcpy(tile.u + step * tile.row, at<T>(p.a.u, from), p.D * sizeof(T));
      memset(tile.u + step * tile.row + p.D, 0, (tile.row - p.D) * sizeof(T));
      for (int64_t n = 0; n < p.layout.blocks; n++) {
        Block block = p.layout.block(n);
        Vec<T> g = load_channels(at<T>(grads.y, from), block);
        if (p.a.z) g *= silu(load_channels(at<T>(p.a.z, from), block));
        store(tile.g + step * p.lanes_row + n * W, g);
      }
    }
  }

  void run(const Tile<T>& tile, int64_t i) {
    const UnitaryScan& a = p.a;
    const TileGradients<T>& all = memory.gradients;
    const int64_t offset = i * p.tile_size, chunk = tile.first / a.chunk;
    const TileGradients<T> gradients = {all.x + offset, all.y ? all.y + offset : nullptr, all.dt ? all.dt + offset : nullptr};
    T* const u = memory.u + i * memory.u_size(p);
    memset(u, 0, memory.u_size(p) * sizeof(T));
    const int64_t first_lane = p.first_block(m) * W, own_lanes = (p.last_block(m) + 1) * W - first_lane;
    T* const to_clear[] = {gradients.x, gradients.y, gradients.dt};
    for (T* gradient : to_clear)
      for (int64_t step = 0; gradient && step < tile.steps; step++)
        memset(gradient + step * p.lanes_row + first_lane, 0, own_lanes * sizeof(T));

    alignas(64) T state[2 * 3 * W], final_state[2 * 2 * W];
    const bool ends = terminal && chunk == p.chunks - 1;
    for (int64_t n = m.begin(p.layout.units); n < m.end(p.layout.units); n++) {
      Unit unit = p.layout.unit(n);
      const T* saved = at<T>(a.chunk_states, (tile.b * p.chunks + chunk) * p.state_size() * 3);
      p.to_lanes(unit, saved, 3, state);
      if (ends) p.to_lanes(unit, at<T>(grads.final_state, tile.b * p.state_size() * 2), 2, final_state);
      auto kernel = unit.vectors == 2 ? (a.phase_dt ? backward_unit<T, 2, true> : backward_unit<T, 2, false>)
                                      : (a.phase_dt ? backward_unit<T, 1, true> : backward_unit<T, 1, false>);
      kernel(tile, unit.block, parameters.panel(unit), p.D, parameters.constant(unit.vector), state, memory.trace,
             ends ? final_state : nullptr, memory.carried_of(unit), memory.sums_of(unit), gradients);
      auto apply = unit.vectors == 2 ? add_projection_gradients<T, 2> : add_projection_gradients<T, 1>;
      apply(p, tile, memory.trace.d_theta, parameters.weights(unit), memory.weights_of(p, unit), u);
    }
  }

  // The gradients of the inputs at a member's part of a tile.
  void finish(const Tile<T>& tile, int64_t i) {
    const UnitaryScan& a = p.a;
    const int64_t offset = i * p.tile_size, begin = p.begin_step(m, tile), end = p.end_step(m, tile);
    const Tiles<T> x_of = tiles_of(OF_X, offset), y_of = tiles_of(OF_Y, offset), dt_of = tiles_of(OF_DT, offset);
    const Tiles<T> u_of = tiles_of(OF_U, i * memory.u_size(p));
    for (int64_t n = 0; n < p.layout.blocks; n++) {
      const Block block = p.layout.block(n);
      int first, last;
      p.owners(m, n, first, last);
      const Vec<T> skip = a.D ? load_channels(at<T>(a.D, 0), block) : Vec<T>{};
      Vec<T> sum_D = load(memory.D + n * W);
      for (int64_t step = begin; step < end; step++) {
        const int64_t from = p.position(tile.b, tile.first + tile.times[step]), lane = step * p.lanes_row + n * W;
        Vec<T> u = load_channels(at<T>(a.u, from), block);
        Vec<T> dt = load_channels(at<T>(a.dt, from), block);
        Vec<T> g = load(tile.g + lane), gate = sigmoid(u), activated = u * gate;
        Vec<T> dx = x_of.collect(first, last, lane, block);
        Vec<T> du = (dt * dx + skip * g) * (gate + activated * (1 - gate));
        du += u_of.sum(0, m.ranks - 1, step * p.padded + block.channel);
        store_channels(at<T>(grads.u, from), block, du);
        Vec<T> ddt = dx * activated;
        if (a.phase_dt) ddt += dt_of.collect(first, last, lane, block);
        store_channels(at<T>(grads.dt, from), block, ddt);
        if (a.z) {
          Vec<T> z = load_channels(at<T>(a.z, from), block), open = sigmoid(z);
          Vec<T> y = y_of.collect(first, last, lane, block) + skip * activated;
          Vec<T> dy = load_channels(at<T>(grads.y, from), block);
          store_channels(at<T>(grads.z, from), block, dy * y * (open + z * open * (1 - open)));
        }
        sum_D += g * activated;
      }
      store(memory.D + n * W, sum_D);
    }
    void* const per_step[] = {grads.u, grads.dt, grads.z};
    for (void* rows : per_step) p.zero_invalid(m, tile, static_cast<T*>(rows));
  }

  // dL/dh before the first step: m + conj(C) R, since the phase of the frame is 0 there.
  void write_initial(int64_t b) {
    alignas(64) T h[2 * 2 * W];
    for (int64_t n = m.begin(p.layout.units); n < m.end(p.layout.units); n++) {
      Unit unit = p.layout.unit(n);
      for (int v = 0; v < unit.vectors; v++) {
        const T *carried = memory.carried_of(unit) + v * CARRIED * W, *constant = parameters.constant(unit.vector + v);
        Vec<T> Rr = load(carried + R_RE * W), Ri = load(carried + R_IM * W);
        Vec<T> Cr = load(constant + C_RE * W), Ci = load(constant + C_IM * W);
        store(h + v * 2 * W, load(carried + M_RE * W) + Cr * Rr + Ci * Ri);
        store(h + (v * 2 + 1) * W, load(carried + M_IM * W) + Cr * Ri - Ci * Rr);
      }
      p.from_lanes(unit, at<T>(grads.initial_state, b * p.state_size() * 2), 2, h);
    }
  }

  // The gradients of a unit's parameters from its sums, [vector][Summed][lane], and weights, [p][vector][lane].
  void write_parameters(const Unit& unit, const T* sums, const T* weights) {
    Block block = p.layout.block(unit.block);
    for (int v = 0; v < unit.vectors; v++)
      for (int l = 0; l < W; l++) {
        int64_t row = p.layout.row(block, unit.vector + v, l);
        if (row < 0) continue;
        T* out = at<T>(grads.W, row * p.D);
        for (int64_t i = 0; i < p.D; i++) out[i] = weights[(i * unit.vectors + v) * W + l];
        const T* sum = sums + v * SUMMED * W + l;
        *at<T>(grads.bias, row) = sum[SUM_BIAS * W];
        for (int part = 0; part < 2; part++) {
          *at<T>(grads.B, 2 * row + part) = sum[(SUM_B_RE + part) * W];
          *at<T>(grads.C, 2 * row + part) = sum[(SUM_C_RE + part) * W];
        }
      }
  }

  void write_D() {
    const Tiles<T> sums = {pointers + OF_D * members, 0};
    for (int64_t n = 0; n < p.layout.blocks; n++)
      store_channels(at<T>(grads.D, 0), p.layout.block(n), sums.sum(0, members - 1, n * W));
  }
};

template <class T> static void add(T* to, const T* more, int64_t count) {
  for (int64_t i = 0; i < count; i += lanes<T>) store(to + i, load(to + i) + load(more + i));
}

template <class T> static bool any_nonzero(const T* x, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (x[i] != 0) return true;
  return false;
}

template <class T> static void backward(const UnitaryScanGradients& grads) {
  const UnitaryScan& a = grads.forward;
  const Problem<T> p(a);
  Parameters<T> parameters(p.layout, true);
  parallel_for(p.layout.units, a.threads, [&](int64_t n, int) { parameters.pack(a, p.layout.unit(n), true); });

  const bool terminal = any_nonzero(at<T>(grads.final_state, 0), a.batch * p.state_size() * 2);
  const Member team = plan(a.threads, a.batch, p.layout.units, p.state_size(), 4 * a.batch * a.length);
  const int64_t span = p.span(team);
  Arena<T> group_count, member_count;
  BackwardMemory<T>{p, span, terminal, group_count, member_count};
  Buffer<T> group_memory(team.groups * group_count.size), member_memory(team.groups * team.ranks * member_count.size);
  StepLists lists(team.groups * team.ranks, span, p.chunk);
  Buffer<T*> pointers(GATHERED * team.groups * team.ranks);

  run_team(team, [&](const Member& m, int index, int members) {
    Arena<T> group(group_memory.slice(m.group, group_count.size)), own(member_memory.slice(index, member_count.size));
    BackwardMemory<T> cut(p, span, terminal, group, own);
    Backward<T> work = {p, grads, parameters, terminal, m, cut, pointers.data(), members};
    BackwardMemory<T>& memory = work.memory;
    T* const shown[GATHERED] = {memory.gradients.x, memory.gradients.y, memory.gradients.dt, memory.u, memory.D};
    for (int i = 0; i < GATHERED; i++) pointers.data()[i * members + index] = shown[i];
    work.clear_sums();
    for (int64_t b = m.group; b < a.batch; b += m.groups) {
      work.clear_carried();
      for (int64_t end = p.chunks; end > 0; end -= span) {
        const int64_t count = end < span ? end : span;
        for (int64_t i = 0; i < count; i++) {
          p.list_steps(b, end - 1 - i, memory.tiles[i], lists.times_of(index, i), lists.resets_of(index, i));
          work.gather(memory.tiles[i]);
        }
        m.barrier();
        for (int64_t i = 0; i < count; i++) work.run(memory.tiles[i], i);
        m.barrier();
        for (int64_t i = 0; i < count; i++) work.finish(memory.tiles[i], i);
      }
      work.write_initial(b);
    }

    // Gradients of the parameters: over the groups, in their order.
    const Member all = {0, 1, index, members};
    all.barrier();
    for (int64_t n = all.begin(p.layout.units); n < all.end(p.layout.units); n++) {
      Unit unit = p.layout.unit(n);
      T *weights = nullptr, *sums = nullptr;
      for (int g = 0; g < m.groups; g++) {
        Arena<T> other(group_memory.slice(g, group_count.size)), none;
        BackwardMemory<T> of(p, span, terminal, other, none);
        if (g == 0) {
          weights = of.weights_of(p, unit);
          sums = of.sums_of(unit);
          continue;
        }
        add(weights, of.weights_of(p, unit), unit.vectors * lanes<T> * of.weight_rows(p));
        add(sums, of.sums_of(unit), unit.vectors * SUMMED * lanes<T>);
      }
      work.write_parameters(unit, sums, weights);
    }
    if (a.D && index == 0) work.write_D();
  });
}

void unitary_scan_forward(const UnitaryScan& a) { a.is_double ? forward<double>(a) : forward<float>(a); }
void unitary_scan_backward(const UnitaryScanGradients& a) { a.forward.is_double ? backward<double>(a) : backward<float>(a); }

}  // namespace longscan::LONGSCAN_ISA
