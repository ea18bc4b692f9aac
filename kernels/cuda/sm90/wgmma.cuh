#pragma once
#include <cstdint>

// Matrix products of a warpgroup, d = A B^T or, where `adds` is not 0, d += A B^T: A (64, 16) and B
// (columns, 16) bf16 in shared memory, d (64, columns) fp32 in registers. PTX ISA, wgmma.mma_async;
// the descriptor's fields are those of "matrix descriptor format".
namespace recurve::cuda::sm90 {

// Where an operand lies: rows of 64 bf16, in the swizzle of 128 bytes that the copy engine writes.
// It goes by the address, so the first row may be at any multiple of 128. A further 16 of K are 32
// bytes on.
__device__ inline uint64_t operand(uint32_t shared_address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kLeading = uint64_t{1} << 16;  // not used where rows are swizzled
  return kSwizzle128 | kEightRows | kLeading | ((shared_address & 0x3ffff) >> 4);
}

// The same for an operand that lies across: each row has what 64 rows of A or columns of B have at
// one place of K. A further 64 of these are `leading` bytes on, and a further 16 of K 2048 bytes.
__device__ inline uint64_t operand_across(uint32_t shared_address, int leading) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | static_cast<uint64_t>(leading >> 4) << 16 |
         ((shared_address & 0x3ffff) >> 4);
}

// Before the first product, and whenever registers of d were written by other instructions.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kLeft of the groups committed are still on their way.
template <int kLeft>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

// The first registers of d, as the instruction names them and as outputs of asm.
#define RECURVE_NAMES_4 "%0, %1, %2, %3"
#define RECURVE_OUTPUTS_4 RECURVE_OUT4(0)
#define RECURVE_OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RECURVE_NAMES_8 RECURVE_NAMES_4 ", %4, %5, %6, %7"
#define RECURVE_OUTPUTS_8 RECURVE_OUTPUTS_4, RECURVE_OUT4(4)
#define RECURVE_NAMES_16 RECURVE_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define RECURVE_OUTPUTS_16 RECURVE_OUTPUTS_8, RECURVE_OUT4(8), RECURVE_OUT4(12)
#define RECURVE_NAMES_32 \
  RECURVE_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define RECURVE_OUTPUTS_32 \
  RECURVE_OUTPUTS_16, RECURVE_OUT4(16), RECURVE_OUT4(20), RECURVE_OUT4(24), RECURVE_OUT4(28)
#define RECURVE_NAMES_40 RECURVE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define RECURVE_OUTPUTS_40 RECURVE_OUTPUTS_32, RECURVE_OUT4(32), RECURVE_OUT4(36)
#define RECURVE_NAMES_48 RECURVE_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define RECURVE_OUTPUTS_48 RECURVE_OUTPUTS_40, RECURVE_OUT4(40), RECURVE_OUT4(44)
#define RECURVE_NAMES_64 \
  RECURVE_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define RECURVE_OUTPUTS_64 \
  RECURVE_OUTPUTS_48, RECURVE_OUT4(48), RECURVE_OUT4(52), RECURVE_OUT4(56), RECURVE_OUT4(60)
#define RECURVE_NAMES_72 RECURVE_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define RECURVE_OUTPUTS_72 RECURVE_OUTPUTS_64, RECURVE_OUT4(64), RECURVE_OUT4(68)
#define RECURVE_NAMES_80 RECURVE_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define RECURVE_OUTPUTS_80 RECURVE_OUTPUTS_72, RECURVE_OUT4(72), RECURVE_OUT4(76)
#define RECURVE_NAMES_88 RECURVE_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define RECURVE_OUTPUTS_88 RECURVE_OUTPUTS_80, RECURVE_OUT4(80), RECURVE_OUT4(84)
#define RECURVE_NAMES_96 RECURVE_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define RECURVE_OUTPUTS_96 RECURVE_OUTPUTS_88, RECURVE_OUT4(88), RECURVE_OUT4(92)
#define RECURVE_NAMES_128                                                                        \
  RECURVE_NAMES_96                                                                               \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define RECURVE_OUTPUTS_128                                                                      \
  RECURVE_OUTPUTS_96, RECURVE_OUT4(96), RECURVE_OUT4(100), RECURVE_OUT4(104), RECURVE_OUT4(108), \
      RECURVE_OUT4(112), RECURVE_OUT4(116), RECURVE_OUT4(120), RECURVE_OUT4(124)
// columns = 2 registers; b_, adds_: the numbers of these operands, which follow those of d and a;
// across_a, across_b: whether the operand is one of operand_across().
#define RECURVE_MULTIPLY(name, columns, registers, b_, adds_, across_a, across_b)              \
  __device__ inline void name(float(&d)[registers], uint64_t a, uint64_t b, int adds) {        \
    asm volatile(                                                                              \
        "{\n"                                                                                  \
        ".reg .pred p;\n"                                                                      \
        "setp.ne.b32 p, %" #adds_                                                              \
        ", 0;\n"                                                                               \
        "wgmma.mma_async.sync.aligned.m64n" #columns                                           \
        "k16.f32.bf16.bf16 {" RECURVE_NAMES_##registers "}, %" #registers ", %" #b_            \
                                                        ", p, 1, 1, " #across_a ", " #across_b \
                                                        ";\n"                                  \
                                                        "}"                                    \
        : RECURVE_OUTPUTS_##registers                                                          \
        : "l"(a), "l"(b), "r"(adds));                                                          \
  }

RECURVE_MULTIPLY(multiply, 8, 4, 5, 6, 0, 0)
RECURVE_MULTIPLY(multiply, 16, 8, 9, 10, 0, 0)
RECURVE_MULTIPLY(multiply, 32, 16, 17, 18, 0, 0)
RECURVE_MULTIPLY(multiply, 64, 32, 33, 34, 0, 0)
RECURVE_MULTIPLY(multiply, 80, 40, 41, 42, 0, 0)
RECURVE_MULTIPLY(multiply, 96, 48, 49, 50, 0, 0)
RECURVE_MULTIPLY(multiply, 128, 64, 65, 66, 0, 0)
RECURVE_MULTIPLY(multiply, 144, 72, 73, 74, 0, 0)
RECURVE_MULTIPLY(multiply, 160, 80, 81, 82, 0, 0)
RECURVE_MULTIPLY(multiply, 176, 88, 89, 90, 0, 0)
RECURVE_MULTIPLY(multiply, 192, 96, 97, 98, 0, 0)
RECURVE_MULTIPLY(multiply, 256, 128, 129, 130, 0, 0)

RECURVE_MULTIPLY(multiply_across, 64, 32, 33, 34, 1, 1)
RECURVE_MULTIPLY(multiply_across, 128, 64, 65, 66, 1, 1)
RECURVE_MULTIPLY(multiply_by_across, 64, 32, 33, 34, 0, 1)

// The same with A in registers, as in an m16n8k16 product of each warp's 16 rows (sm80/tile.cuh).
// The registers may not change while the product is on its way. a1 to a4: the numbers of A's.
#define RECURVE_MULTIPLY_HELD(name, columns, registers, a1, a2, a3, a4, b_, adds_, across)         \
  __device__ inline void name(float(&d)[registers], const uint32_t(&a)[4], uint64_t b, int adds) { \
    asm volatile(                                                                                  \
        "{\n"                                                                                      \
        ".reg .pred p;\n"                                                                          \
        "setp.ne.b32 p, %" #adds_                                                                  \
        ", 0;\n"                                                                                   \
        "wgmma.mma_async.sync.aligned.m64n" #columns                                               \
        "k16.f32.bf16.bf16 {" RECURVE_NAMES_##registers "}, {%" #a1 ", %" #a2 ", %" #a3 ", %" #a4  \
                                                        "}, %" #b_ ", p, 1, 1, " #across           \
                                                        ";\n"                                      \
                                                        "}"                                        \
        : RECURVE_OUTPUTS_##registers                                                              \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                          \
  }

RECURVE_MULTIPLY_HELD(multiply, 64, 32, 32, 33, 34, 35, 36, 37, 1)
RECURVE_MULTIPLY_HELD(multiply, 128, 64, 64, 65, 66, 67, 68, 69, 1)
RECURVE_MULTIPLY_HELD(multiply, 256, 128, 128, 129, 130, 131, 132, 133, 1)

RECURVE_MULTIPLY_HELD(multiply_held, 8, 4, 4, 5, 6, 7, 8, 9, 0)
RECURVE_MULTIPLY_HELD(multiply_held, 16, 8, 8, 9, 10, 11, 12, 13, 0)
RECURVE_MULTIPLY_HELD(multiply_held, 32, 16, 16, 17, 18, 19, 20, 21, 0)
RECURVE_MULTIPLY_HELD(multiply_held, 64, 32, 32, 33, 34, 35, 36, 37, 0)
RECURVE_MULTIPLY_HELD(multiply_held, 128, 64, 64, 65, 66, 67, 68, 69, 0)
RECURVE_MULTIPLY_HELD(multiply_held, 256, 128, 128, 129, 130, 131, 132, 133, 0)

#undef RECURVE_MULTIPLY_HELD
#undef RECURVE_MULTIPLY
#undef RECURVE_OUT4
#undef RECURVE_NAMES_4
#undef RECURVE_OUTPUTS_4
#undef RECURVE_NAMES_8
#undef RECURVE_OUTPUTS_8
#undef RECURVE_NAMES_16
#undef RECURVE_OUTPUTS_16
#undef RECURVE_NAMES_32
#undef RECURVE_OUTPUTS_32
#undef RECURVE_NAMES_40
#undef RECURVE_OUTPUTS_40
#undef RECURVE_NAMES_48
#undef RECURVE_OUTPUTS_48
#undef RECURVE_NAMES_64
#undef RECURVE_OUTPUTS_64
#undef RECURVE_NAMES_72
#undef RECURVE_OUTPUTS_72
#undef RECURVE_NAMES_80
#undef RECURVE_OUTPUTS_80
#undef RECURVE_NAMES_88
#undef RECURVE_OUTPUTS_88
#undef RECURVE_NAMES_96
#undef RECURVE_OUTPUTS_96
#undef RECURVE_NAMES_128
#undef RECURVE_OUTPUTS_128

}  // namespace recurve::cuda::sm90
