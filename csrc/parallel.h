// Threads and scratch memory for the kernels. Only kernel files include it (simd.h explains the namespace of the instruction set).
#pragma once

#include <cstdint>
#include <new>
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace longscan {
// True in a process that was forked from one with this module loaded. OpenMP's threads do not exist after a fork, and starting a
// team would wait for them for ever, so such a process runs on one thread.
bool forked();
}  // namespace longscan

namespace longscan::LONGSCAN_ISA {

// Subnormal numbers are flushed to zero during the lifetime of this object: decaying states pass through them, and on some
// processors an operation on a subnormal number takes a hundred times as long as on a normal one.
class FlushDenormals {
 public:
#if defined(__SSE2__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ | (uint64_t{1} << 24)));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

// Scratch memory aligned to a cache line, uninitialised. Throws std::bad_alloc, so it must not be created in a parallel region.
template <class T> class Buffer {
 public:
  explicit Buffer(int64_t count) {
    const size_t bytes = size_t(count > 0 ? count : 1) * sizeof(T);
    data_ = static_cast<T*>(::operator new(bytes, ALIGNMENT));
  }
  ~Buffer() { ::operator delete(data_, ALIGNMENT); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() { return data_; }
  T* slice(int64_t index, int64_t size) { return data_ + index * size; }

 private:
  static constexpr std::align_val_t ALIGNMENT{64};
  T* data_;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The number of threads of a loop over `items`. Scratch memory of a thread has an index in [0, workers).
inline int workers([[maybe_unused]] int64_t items, [[maybe_unused]] int threads) {
#if defined(_OPENMP)
  if (forked() || threads < 1) return 1;
  return int(items < threads ? (items > 1 ? items : 1) : threads);
#else
  return 1;
#endif
}

// Bodies are called out of line, from one place: if they were inlined into the serial and the parallel path separately, the
// compiler might fuse different multiplications and additions in the two, and results would depend on the number of threads.
template <class Body> [[gnu::noinline]] void call(const Body& body, int64_t item, int worker) { body(item, worker); }

// Calls body(item, worker) for every item. Items are assigned dynamically, so sums over items must be stored for each item, not
// for each worker: otherwise the bits of results would differ from run to run.
template <class Body> void parallel_for(int64_t items, int threads, const Body& body) {
  const int team = workers(items, threads);
  if (team <= 1) {
    FlushDenormals flush;
    for (int64_t item = 0; item < items; item++) call(body, item, 0);
    return;
  }
#if defined(_OPENMP)
#pragma omp parallel num_threads(team)
  {
    FlushDenormals flush;
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < items; item++) call(body, item, omp_get_thread_num());
  }
#endif
}

// One worker of a team that runs a kernel of several dependent stages.
struct Worker {
  int index, team;
  // Waits until every worker of the team has reached this point.
  void barrier() const {
#if defined(_OPENMP)
    if (team > 1) {
#pragma omp barrier
    }
#endif
  }
};

template <class Body> [[gnu::noinline]] void call(const Body& body, Worker worker) { body(worker); }

// Calls body(worker) on every worker of one team.
template <class Body> void parallel_stages([[maybe_unused]] int threads, const Body& body) {
#if defined(_OPENMP)
  if (workers(threads, threads) > 1) {
#pragma omp parallel num_threads(threads)
    {
      FlushDenormals flush;
      call(body, Worker{omp_get_thread_num(), omp_get_num_threads()});
    }
    return;
  }
#endif
  FlushDenormals flush;
  call(body, Worker{0, 1});
}

}  // namespace longscan::LONGSCAN_ISA
