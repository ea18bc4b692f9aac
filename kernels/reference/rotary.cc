#include <cmath>

#include "kernels/reference/table.h"

namespace recurve::reference {

void run(const PositionsArgs& args, Stream&) {
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    int32_t& count = args.count[args.seqs.slot[seq]];
    for (int row = args.seqs.begin[seq]; row < args.seqs.begin[seq + 1]; ++row) {
      args.position[row] = count++;
    }
  }
}

void run(const RotaryArgs& args, Stream&) {
  const int half = args.D / 2, head_stride = args.head_stride > 0 ? args.head_stride : args.D;
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int j = 0; j < half; ++j) {
      const double angle = static_cast<double>(args.position[r]) * args.frequency[j];
      const float c = static_cast<float>(std::cos(angle));
      const float s = static_cast<float>(std::sin(angle));
      for (int head = 0; head < args.H; ++head) {
        float& a = args.x[r * args.stride + int64_t{head} * head_stride + j];
        float& b = args.x[r * args.stride + int64_t{head} * head_stride + half + j];
        const float old = a;
        a = old * c - b * s;
        b = old * s + b * c;
      }
    }
  }
}

}  // namespace recurve::reference
