// longscan.ops._native: the compiled CPU kernels. Which instruction set runs, and safety after fork.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "bindings.h"
#include "dispatch.h"

namespace longscan {

static bool process_forked = false;
bool forked() { return process_forked; }

static const char* const ISA_NAMES[] = {"baseline", "avx2", "avx512"};

static Isa best_isa() {
#if defined(LONGSCAN_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::baseline;
}

static Isa choose_isa() {
  Isa best = best_isa();
  const char* wanted = std::getenv("LONGSCAN_CPU_ISA");
  if (!wanted || !*wanted) return best;
  for (int i = 0; i < 3; i++) {
    if (std::strcmp(wanted, ISA_NAMES[i]) != 0) continue;
    if (i > int(best)) throw std::runtime_error(std::string("LONGSCAN_CPU_ISA: this processor or build has no ") + wanted);
    return Isa(i);
  }
  throw std::runtime_error(std::string("LONGSCAN_CPU_ISA: got '") + wanted + "', expected baseline, avx2 or avx512");
}

// Requests huge pages for a new array: page faults for each small page would take longer than the arithmetic that fills them.
static void prefer_huge_pages(Pointer address, int64_t bytes) {
#if defined(__linux__)
  constexpr Pointer HUGE = Pointer{1} << 21;
  const Pointer begin = (address + HUGE - 1) / HUGE * HUGE, end = (address + Pointer(bytes)) / HUGE * HUGE;
  if (end > begin) madvise(out(begin), end - begin, MADV_HUGEPAGE);  // a hint; results do not depend on it
#else
  (void)address, (void)bytes;
#endif
}

static Isa chosen = Isa::baseline;
Isa isa() { return chosen; }

}  // namespace longscan

NB_MODULE(_native, module) {
  using namespace longscan;
  module.doc() = "Compiled CPU kernels of longscan.";
  chosen = choose_isa();
#if !defined(_WIN32)
  pthread_atfork(nullptr, nullptr, [] { process_forked = true; });
#endif
  module.def("isa", [] { return std::string(ISA_NAMES[int(isa())]); }, "The instruction set in use.");
  module.def("prefer_huge_pages", &prefer_huge_pages, "address"_a, "bytes"_a, "Advise the system to back an array by huge pages.");
#if defined(LONGSCAN_OPENMP)
  module.attr("openmp") = true;
#else
  module.attr("openmp") = false;
#endif
  bind_dplr_spectrum(module);
  bind_mamba_step(module);
  bind_linear_scan(module);
  bind_selective_scan(module);
  bind_short_conv(module);
  bind_unitary_scan(module);
}
