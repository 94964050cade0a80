// Groups of threads that each compute rows of a batch and share the work within a row, and the scratch memory that they divide.
#pragma once

#include "parallel.h"
#include "simd.h"

namespace longscan::LONGSCAN_ISA {

INLINE int64_t round_up(int64_t x, int64_t multiple) { return ceil_div(x, multiple) * multiple; }

// With n groups, a group computes every n-th batch row, and its members share the units of a row.
struct Member {
  int group, groups, rank, ranks;

  int64_t begin(int64_t items) const { return items * rank / ranks; }
  int64_t end(int64_t items) const { return items * (rank + 1) / ranks; }
  void barrier() const {
#if defined(_OPENMP)
    if (ranks > 1) {
#pragma omp barrier
    }
#endif
  }
};

// As many groups as leave no thread idle for more than a tenth of the time, unless the buffers of all groups (`group_size` numbers
// each) would exceed `limit`; a group has at most `units` members.
INLINE Member plan(int threads, int64_t batch, int64_t units, int64_t group_size, int64_t limit) {
  int total = workers(INT64_MAX, threads), groups = 1;
  for (int n = 2; n <= total; n++) {
    // Every thread must reach the same barriers, so groups of several members need equal numbers of rows.
    bool even = batch % n == 0, nearly = n == total && 10 * batch >= 9 * n * ceil_div(batch, n);
    if (batch > 0 && total % n == 0 && (even || nearly) && n * group_size <= limit) groups = n;
  }
  int ranks = total / groups;
  return {0, groups, 0, ranks < units ? ranks : int(units > 0 ? units : 1)};
}

// Calls body(member, index, members) on every thread of the team, or on one thread if OpenMP provides fewer than planned.
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

// Allocates arrays from one block of scratch memory; empty ones are null. Without a block it only adds up the sizes.
template <class T> class Arena {
 public:
  explicit Arena(T* memory = nullptr) : memory_(memory) {}
  T* allocate(int64_t count) {
    T* piece = memory_ && count > 0 ? memory_ + size : nullptr;
    size += round_up(count, 64 / sizeof(T));
    return piece;
  }
  int64_t size = 0;

 private:
  T* memory_;
};

}  // namespace longscan::LONGSCAN_ISA
