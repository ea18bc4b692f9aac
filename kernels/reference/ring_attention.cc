#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// A sequence: where keys and values of a place in the session are.
struct Session {
  const RingAttentionArgs& args;
  int begin, end;  // rows
  int64_t slot;

  int64_t start() const { return args.position[begin]; }
  int64_t width() const { return int64_t{args.HK} * args.D; }
  float* place(float* ring, int64_t x) const {
    return ring + (slot * args.W + x % args.W) * width();
  }
  const float* at(const float* rows, int stride, float* ring, int64_t x) const {
    return x < start() ? place(ring, x) : rows + (begin + x - start()) * stride;
  }
  const float* key(int64_t x) const { return at(args.k, args.k_stride, args.ring_k, x); }
  const float* value(int64_t x) const { return at(args.v, args.v_stride, args.ring_v, x); }
};

void attend(const Session& s, int64_t row, int head) {
  const RingAttentionArgs& a = s.args;
  const int64_t last = a.position[row], first = std::max<int64_t>(0, last - a.W + 1);
  const int64_t shared = int64_t{head / (a.H / a.HK)} * a.D;
  const float* q = a.q + row * a.q_stride + int64_t{head} * a.D;
  float* o = a.o + (row * a.H + head) * a.D;
  std::vector<float> scores;
  for (int64_t x = first; x <= last; ++x) {
    float product = 0;
    for (int d = 0; d < a.D; ++d) product += q[d] * s.key(x)[shared + d];
    scores.push_back(a.scale * product);
  }
  float largest = scores[0], sum = 0;
  for (const float score : scores) largest = score > largest ? score : largest;
  std::fill_n(o, a.D, 0.0f);
  for (int64_t x = first; x <= last; ++x) {
    const float weight = std::exp(scores[static_cast<size_t>(x - first)] - largest);
    sum += weight;
    for (int d = 0; d < a.D; ++d) o[d] += weight * s.value(x)[shared + d];
  }
  for (int d = 0; d < a.D; ++d) o[d] /= sum;
}

}  // namespace

void run(const RingAttentionArgs& args, Stream&) {
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    const Session s{args, args.seqs.begin[seq], args.seqs.begin[seq + 1], args.seqs.slot[seq]};
    for (int64_t row = s.begin; row < s.end; ++row) {
      for (int head = 0; head < args.H; ++head) attend(s, row, head);
    }
    for (int64_t row = std::max<int64_t>(s.begin, int64_t{s.end} - args.W); row < s.end; ++row) {
      const int64_t x = args.position[row];
      std::copy_n(args.k + row * args.k_stride, s.width(), s.place(args.ring_k, x));
      std::copy_n(args.v + row * args.v_stride, s.width(), s.place(args.ring_v, x));
    }
  }
}

}  // namespace recurve::reference
