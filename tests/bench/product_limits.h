#pragma once
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>

#include "tests/bench/core_threads.h"

namespace recurve::bench {

// GFLOP/s at which so many threads together multiply and add what is in registers already, with the
// widest instructions of each type (fp32: AVX-512 or AVX2; bf16: AMX or AVX-512; int8: AVX-512):
// what no product of matrices can exceed. The registers hold arbitrary values: of zeros, AMX
// multiplies a quarter more. 0: this machine has none of that type.
struct ProductLimits {
  double f32 = 0, bf16 = 0, int8 = 0;
  // fp32 as the sum of three in bf16, with weights in bf16, on AMX.
  double split_f32 = 0;
};

#if defined(__x86_64__)
// Two tiles of bf16 of either sign, from 1/128 to 1.
struct alignas(64) TwoTiles {
  static constexpr int64_t kRowBytes = 64;
  TwoTiles() {
    uint32_t random = 1;
    for (uint16_t& value : values) {
      random = random * 1'664'525 + 1'013'904'223;
      value = static_cast<uint16_t>(0x3c00 + (random >> 16 & 0x3ff) % 0x380 + (random >> 31 << 15));
    }
  }
  uint16_t values[2 * 16 * kRowBytes / 2];
};

// Twelve independent sums, so that none waits for itself.
#define RECURVE_TWELVE(op, v)                                                                 \
  op " %%" v "14, %%" v "15, %%" v "0\n" op " %%" v "14, %%" v "15, %%" v "1\n" op " %%" v    \
     "14, %%" v "15, %%" v "2\n" op " %%" v "14, %%" v "15, %%" v "3\n" op " %%" v "14, %%" v \
     "15, %%" v "4\n" op " %%" v "14, %%" v "15, %%" v "5\n" op " %%" v "14, %%" v "15, %%" v \
     "6\n" op " %%" v "14, %%" v "15, %%" v "7\n" op " %%" v "14, %%" v "15, %%" v "8\n" op   \
     " %%" v "14, %%" v "15, %%" v "9\n" op " %%" v "14, %%" v "15, %%" v "10\n" op " %%" v   \
     "14, %%" v "15, %%" v "11\n"
#define RECURVE_PRODUCT_LOOP(name, isa, op, v)                                                     \
  [[gnu::target(isa)]] inline void name(int64_t times) {                                           \
    const TwoTiles tiles;                                                                          \
    asm volatile(                                                                                \
        "vmovups (%1), %%" v "14\n"                                                             \
        "vmovups 1024(%1), %%" v "15\n"                                                         \
        "1:\n" RECURVE_TWELVE(op, v) "dec %0\n"                                                \
        "jnz 1b\n"                                                                              \
        : "+r"(times)                                                                            \
        : "r"(tiles.values)                                                                      \
        : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",  \
          "xmm10", "xmm11", "xmm14", "xmm15"); \
  }
RECURVE_PRODUCT_LOOP(multiply_f32_avx2, "avx2,fma", "vfmadd231ps", "ymm")
RECURVE_PRODUCT_LOOP(multiply_f32, "avx512f,avx512dq", "vfmadd231ps", "zmm")
RECURVE_PRODUCT_LOOP(multiply_bf16, "avx512f,avx512dq", "vdpbf16ps", "zmm")
RECURVE_PRODUCT_LOOP(multiply_int8, "avx512f,avx512dq", "vpdpbusd", "zmm")
#undef RECURVE_PRODUCT_LOOP

// Twelve products of tiles of 16 x 32 and 32 x 16 values, into six tiles of sums.
inline void multiply_amx(int64_t times) {
  struct alignas(64) {
    uint8_t palette = 1, reserved[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  const TwoTiles tiles;
  asm volatile(
      "ldtilecfg %1\n"
      "tileloadd (%2,%3,1), %%tmm6\n"
      "tileloadd 1024(%2,%3,1), %%tmm7\n"
      "1:\n"
      ".rept 2\n"
      "tdpbf16ps %%tmm7, %%tmm6, %%tmm0\n tdpbf16ps %%tmm7, %%tmm6, %%tmm1\n"
      "tdpbf16ps %%tmm7, %%tmm6, %%tmm2\n tdpbf16ps %%tmm7, %%tmm6, %%tmm3\n"
      "tdpbf16ps %%tmm7, %%tmm6, %%tmm4\n tdpbf16ps %%tmm7, %%tmm6, %%tmm5\n"
      ".endr\n"
      "dec %0\n"
      "jnz 1b\n"
      "tilerelease\n"
      : "+r"(times)
      : "m"(config), "r"(tiles.values), "r"(TwoTiles::kRowBytes)
      : "cc", "memory");
}

// Whether the processor has the instructions and the system lets this process use them.
inline bool may_multiply_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d >> 22 & 5) != 5) return false;
  return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}
#undef RECURVE_TWELVE

// GFLOP/s of the loop, of `products` an instruction: the best of five times of some milliseconds.
inline double product_rate(void (*loop)(int64_t), double products, int wanted_threads,
                           int64_t times = 1'000'000) {
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    size_t threads = 0;
    const double seconds = seconds_on_cores(wanted_threads, [&](size_t thread, size_t count) {
      if (thread == 0) threads = count;
      loop(times);
    });
    const double all = 2 * products * 12 * static_cast<double>(times * int64_t(threads));
    best = std::max(best, all / seconds / 1e9);
  }
  return best;
}

inline ProductLimits product_limits(int wanted_threads) {
  ProductLimits limits;
  if (!__builtin_cpu_supports("avx512dq")) {
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      limits.f32 = product_rate(multiply_f32_avx2, 8, wanted_threads);
    }
    return limits;
  }
  limits.f32 = product_rate(multiply_f32, 16, wanted_threads);
  if (__builtin_cpu_supports("avx512bf16")) {
    limits.bf16 = product_rate(multiply_bf16, 32, wanted_threads);
  }
  if (may_multiply_amx()) {
    const double amx = product_rate(multiply_amx, 16 * 16 * 32, wanted_threads, 50'000);
    limits.bf16 = std::max(limits.bf16, amx);
    limits.split_f32 = amx / 3;
  }
  if (__builtin_cpu_supports("avx512vnni"))
    limits.int8 = product_rate(multiply_int8, 64, wanted_threads);
  return limits;
}
#else
inline ProductLimits product_limits(int) { return {}; }
#endif

}  // namespace recurve::bench
