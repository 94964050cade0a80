// A register block of a matrix product, the building block of the small GEMMs inside scans with a projection.
#pragma once

#include "simd.h"

namespace longscan::LONGSCAN_ISA {

// Rows of a block. With two vectors to a row the sums fill half of the 32 vector registers of AVX-512 and NEON, or of the 16 of
// AVX2 and SSE: enough independent sums to hide the latency of the multiply-add, with few loads for each.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int GEMM_ROWS = 8;
#else
constexpr int GEMM_ROWS = 4;
#endif

// c[m][v] += sum_q a[m * ROW + q * step] b[q * ldb + v * lanes], q from 0 to count - 1 in this order.
template <class T, int V, int ROW>
INLINE void multiply_add(Vec<T> (&c)[GEMM_ROWS][V], const T* a, int64_t step, const T* b, int64_t ldb, int64_t count) {
  for (int64_t q = 0; q < count; q++, a += step, b += ldb) {
    Vec<T> right[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) right[v] = load(b + v * lanes<T>);
#pragma GCC unroll 8
    for (int m = 0; m < GEMM_ROWS; m++) {
      Vec<T> left = broadcast<T>(a[m * ROW]);
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) c[m][v] = left * right[v] + c[m][v];
    }
  }
}

// The same on a block of c in memory, rows `ldc` apart.
template <class T, int V, int ROW>
INLINE void multiply_add(T* c, int64_t ldc, const T* a, int64_t step, const T* b, int64_t ldb, int64_t count) {
  Vec<T> block[GEMM_ROWS][V];
#pragma GCC unroll 8
  for (int m = 0; m < GEMM_ROWS; m++) {
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) block[m][v] = load(c + m * ldc + v * lanes<T>);
  }
  multiply_add<T, V, ROW>(block, a, step, b, ldb, count);
#pragma GCC unroll 8
  for (int m = 0; m < GEMM_ROWS; m++) {
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) store(c + m * ldc + v * lanes<T>, block[m][v]);
  }
}

}  // namespace longscan::LONGSCAN_ISA
