#include "kernels/cuda/sm80/channels/channel_scan.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/quick_gates.cuh"

// Errors of the gates against double, with the largest errors that PTX allows its instructions, and
// in brackets those of the reference's fp32 formulas. Ulp: units in the last place of the result.
//   a = exp(-s)       s < 0.5: 3 ulp (3); s < 4: 8 ulp (3); above, s + 4 ulp (3), at most 1e-8
//   sqrt(1 - a^2)     5 ulp (2)
//   GELU              z > -1: 7 ulp (4); z > -3: 18 ulp (18); below, at most 4e-9 (4e-9)
// quick_gates.cuh has those of sigmoid. If a is close to 1, 1 - a is not computed from it.
namespace recurve::cuda::sm80 {
namespace {

// exp(-s) for s >= 0, and 1 - exp(-s), which below a half is s p(s), where p fits to 2^-28 of it.
struct Decay {
  float kept, forgotten;

  __device__ explicit Decay(float s) {
    float p = -0.00112163508f;
    p = __fmaf_rn(p, s, 0.00818738748f);
    p = __fmaf_rn(p, s, -0.0416290905f);
    p = __fmaf_rn(p, s, 0.166662241f);
    p = __fmaf_rn(p, s, -0.499999808f);
    p = __fmul_rn(__fmaf_rn(p, s, 1.0f), s);
    const float power = power_of_2(__fmul_rn(s, -kLog2e));
    kept = s < 0.5f ? __fsub_rn(1.0f, p) : power;
    forgotten = s < 0.5f ? p : __fsub_rn(1.0f, power);
  }
};

__device__ float square_root(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// z / (1 + exp(-2 sqrt(2 / pi) (z + 0.044715 z^3))). The factors of the exponent include log2(e).
__device__ float quick_gelu_tanh(float z) {
  const float slope = __fmaf_rn(-0.10294324f, __fmul_rn(z, z), -2.3022082f);
  return __fmul_rn(z, reciprocal(1.0f + power_of_2(__fmul_rn(z, slope))));
}

struct RgLruScan : ChannelScan<4> {
  static constexpr bool kGated = true;
  using Weights = float;  // the channel's rate
  const float* rate;
  const int32_t* position;

  // Only the first row of a sequence can be the first of its session.
  __device__ bool fresh(int64_t row) const { return position[row] == 0; }
  __device__ Weights weights(int channel) const { return rate[channel]; }
  // in: u, i, r, branch. 1 - a^2 is (1 - a) (1 + a). The state before a first row is 0, so a is not
  // replaced there.
  __device__ static Coefficients of(const float (&in)[kInputs], Weights rate, bool first) {
    const float put = __fmul_rn(quick_sigmoid(in[1]), in[0]);
    const Decay decay(__fmul_rn(-rate, quick_sigmoid(in[2])));
    const float m = square_root(__fmul_rn(decay.forgotten, __fadd_rn(1.0f, decay.kept)));
    return {decay.kept, __fmul_rn(first ? 1.0f : m, put), quick_gelu_tanh(in[3])};
  }
};

}  // namespace

void run(const RgLruArgs& args, Stream& stream) {
  const RgLruScan scan{{.seqs = args.seqs,
                        .D = args.D,
                        .state = args.h,
                        .y = args.y,
                        .input = {args.u, args.i, args.r, args.branch},
                        .stride = {args.D, args.D, args.D, args.branch_stride}},
                       args.rate,
                       args.position};
  run_channel_scan(scan, "rg_lru", stream);
}

}  // namespace recurve::cuda::sm80
