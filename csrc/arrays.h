// Helpers for plain arrays: addresses that may be null, flags of steps, sums of partial results.
#pragma once

#include "parallel.h"

namespace longscan::LONGSCAN_ISA {

// Flags of a step in `flags`: the step is skipped; the state restarts from zero before the step.
constexpr uint8_t INVALID = 1, RESET = 2;

// Element `index` of an array of T; null stays null.
template <class T> inline const T* at(const void* p, int64_t index) { return p ? static_cast<const T*>(p) + index : nullptr; }
template <class T> inline T* at(void* p, int64_t index) { return p ? static_cast<T*>(p) + index : nullptr; }

// to[i] = sum over `parts` arrays of `size`, in order; nothing where `to` is null.
template <class T> void add_up(T* to, const T* from, int64_t parts, int64_t size, int threads) {
  constexpr int64_t PIECE = 4096;
  parallel_for(to ? ceil_div(size, PIECE) : 0, threads, [&](int64_t piece, int) {
    const int64_t end = (piece + 1) * PIECE < size ? (piece + 1) * PIECE : size;
    for (int64_t i = piece * PIECE; i < end; i++) {
      T total = 0;
      for (int64_t part = 0; part < parts; part++) total += from[part * size + i];
      to[i] = total;
    }
  });
}

}  // namespace longscan::LONGSCAN_ISA
