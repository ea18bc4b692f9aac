#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/math.h"
#include "kernels/reference/open_state.h"
#include "kernels/reference/table.h"

namespace recurve::reference {
namespace {

// One head of one sequence: its inputs from some row on, and its state.
struct Head {
  int P;
  int N;
  int stride;  // of x, B, C
  int y_stride;
  float skip;
  const float* x;  // (rows, P)
  const float* B;  // (rows, N)
  const float* C;  // (rows, N)
  float* h;        // (P, N)
  float* y;        // (rows, P)
};

// What a row contributes in addition to x, B and C.
struct Step {
  float dt;
  float a;  // log of the decay, never positive
};

Head head_at(const SsdArgs& a, int head, int64_t row, float* h) {
  const int group = head / (a.H / a.G);
  return {.P = a.P,
          .N = a.N,
          .stride = a.xBC_stride,
          .y_stride = a.H * a.P,
          .skip = a.skip[head],
          .x = a.x + row * a.xBC_stride + head * a.P,
          .B = a.B + row * a.xBC_stride + group * a.N,
          .C = a.C + row * a.xBC_stride + group * a.N,
          .h = h,
          .y = a.y + (row * a.H + head) * a.P};
}

Step step_of(const SsdArgs& a, int head, int64_t row) {
  const float dt = softplus(a.dt[row * a.dt_stride + head] + a.dt_bias[head]);
  const float clamped = std::fmin(std::fmax(dt, a.dt_min), a.dt_max);
  // fmin and fmax would hide a NaN.
  const float kept = std::isnan(dt) ? dt : clamped;
  return {kept, kept * a.A[head]};
}

float dot(int size, const float* a, const float* b) {
  float sum = 0;
  for (int j = 0; j < size; ++j) sum += a[j] * b[j];
  return sum;
}

void step(const Head& s, Step t) {
  const float decay = std::exp(t.a);
  for (int p = 0; p < s.P; ++p) {
    float* h = s.h + int64_t{p} * s.N;
    float y = 0;
    for (int n = 0; n < s.N; ++n) {
      h[n] = decay * h[n] + t.dt * s.x[p] * s.B[n];
      y += s.C[n] * h[n];
    }
    s.y[p] = y + s.skip * s.x[p];
  }
}

// The rows that lie next to the state of a head.
struct RowsHeld {
  int64_t u_stride, B_stride;  // from a row to the next
  float* u;                    // (every - 1, P)
  float* B;                    // (every - 1, N)
  float* a;                    // (every - 1)
  bool first_of_group;         // the head that leaves B
};

RowsHeld rows_held(const SsdArgs& a, int head, int64_t slot) {
  const int64_t rows = a.held.every - 1;
  const int heads = a.H / a.G, group = head / heads;
  return {.u_stride = int64_t{a.H} * a.P,
          .B_stride = int64_t{a.G} * a.N,
          .u = a.held_u + slot * rows * a.H * a.P + int64_t{head} * a.P,
          .B = a.held_B + slot * rows * a.G * a.N + int64_t{group} * a.N,
          .a = a.held_a + (slot * a.H + head) * rows,
          .first_of_group = head % heads == 0};
}

// One of the rows that a state has not taken in.
struct Row {
  const float* u;  // (P)
  const float* B;  // (N)
  float S;         // S_tj, t being the last of them
};

// Of these rows, from their logarithms of decays; and what the base's decay is.
float sum_decays(std::vector<Row>& rows, const std::vector<float>& a) {
  float S = 0;
  for (size_t j = rows.size(); j-- > 0;) {
    rows[j].S = S;
    S += a[j];
  }
  return std::exp(S);
}

void write_base(const Head& s, float decay, const std::vector<Row>& rows) {
  for (int p = 0; p < s.P; ++p) {
    float* h = s.h + int64_t{p} * s.N;
    for (int n = 0; n < s.N; ++n) h[n] *= decay;
    for (const Row& row : rows) {
      const float u = std::exp(row.S) * row.u[p];
      for (int n = 0; n < s.N; ++n) h[n] += u * row.B[n];
    }
  }
}

std::vector<Row> first_rows(const RowsHeld& there, int count) {
  std::vector<Row> rows;
  for (int j = 0; j < count; ++j)
    rows.push_back({there.u + j * there.u_stride, there.B + j * there.B_stride, 0});
  return rows;
}

// Takes in `count` rows.
void take_in(const Head& s, const RowsHeld& there, int count) {
  std::vector<Row> rows = first_rows(there, count);
  const float decay = sum_decays(rows, {there.a, there.a + count});
  write_base(s, decay, rows);
}

// The step of a row with `count` rows next to the state.
void held_step(const Head& s, Step t, const RowsHeld& there, int count, int every) {
  std::vector<float> u(s.x, s.x + s.P), a(there.a, there.a + count);
  for (float& value : u) value *= t.dt;
  a.push_back(t.a);
  std::vector<Row> rows = first_rows(there, count);
  rows.push_back({u.data(), s.B, 0});
  const float decay = sum_decays(rows, a);
  for (int p = 0; p < s.P; ++p) s.y[p] = decay * dot(s.N, s.C, s.h + int64_t{p} * s.N);
  for (const Row& row : rows) {
    const float weight = dot(s.N, s.C, row.B) * std::exp(row.S);
    for (int p = 0; p < s.P; ++p) s.y[p] += weight * row.u[p];
  }
  for (int p = 0; p < s.P; ++p) s.y[p] += s.skip * s.x[p];
  if (count + 1 == every) return write_base(s, decay, rows);
  std::copy(u.begin(), u.end(), there.u + count * there.u_stride);
  if (there.first_of_group) std::copy(s.B, s.B + s.N, there.B + count * there.B_stride);
  there.a[count] = t.a;
}

// Output t of a chunk, from the state before the chunk and its rows up to t.
void chunk_output(const Head& s, int t, const std::vector<Step>& steps) {
  const float* C = s.C + int64_t{t} * s.stride;
  float* y = s.y + int64_t{t} * s.y_stride;
  std::fill(y, y + s.P, 0.0f);
  float S = 0;  // S_tj, from j = t backwards; in the end s_t
  for (int j = t; j >= 0; --j) {
    const float* x = s.x + int64_t{j} * s.stride;
    const float weight = dot(s.N, C, s.B + int64_t{j} * s.stride) * std::exp(S) * steps[j].dt;
    for (int p = 0; p < s.P; ++p) y[p] += weight * x[p];
    S += steps[j].a;
  }
  const float decay = std::exp(S);
  const float* x = s.x + int64_t{t} * s.stride;
  for (int p = 0; p < s.P; ++p) {
    y[p] += decay * dot(s.N, C, s.h + int64_t{p} * s.N) + s.skip * x[p];
  }
}

// The state after the rows of a chunk.
void chunk_state(const Head& s, const std::vector<Step>& steps) {
  float sum = 0;
  for (const Step& step : steps) sum += step.a;
  const float decay = std::exp(sum);
  for (int64_t j = 0; j < int64_t{s.P} * s.N; ++j) s.h[j] *= decay;
  float S = 0;  // S_Lj, from j = L backwards
  for (int j = static_cast<int>(steps.size()) - 1; j >= 0; --j) {
    const float* x = s.x + int64_t{j} * s.stride;
    const float* B = s.B + int64_t{j} * s.stride;
    const float weight = std::exp(S) * steps[j].dt;
    for (int p = 0; p < s.P; ++p) {
      for (int n = 0; n < s.N; ++n) s.h[int64_t{p} * s.N + n] += weight * x[p] * B[n];
    }
    S += steps[j].a;
  }
}

// Rows [row, end) of a head.
void gate(const SsdArgs& a, int head, int row, int end) {
  for (int64_t t = row; t < end; ++t) {
    const float* z = a.z + t * a.z_stride + head * a.P;
    float* y = a.y + (t * a.H + head) * a.P;
    for (int p = 0; p < a.P; ++p) y[p] *= silu(z[p]);
  }
}

// Row `row` of a head of a sequence and those of its chunk, L in all.
void run_chunk(const SsdArgs& args, int seq, int head, int row, int L, int held, float* copy) {
  const int64_t matrix = int64_t{args.P} * args.N, slot = args.seqs.slot[seq];
  OpenState h(args.h, (slot * args.H + head) * matrix, matrix, copy);
  const Head s = head_at(args, head, row, h.values());
  if (L == 1 && args.held.every > 1) {
    held_step(s, step_of(args, head, row), rows_held(args, head, slot), held, args.held.every);
  } else if (L == 1) {
    step(s, step_of(args, head, row));
  } else {
    if (held > 0) {
      take_in(s, rows_held(args, head, slot), held);
      h.end_chunk();
    }
    std::vector<Step> steps;
    for (int t = 0; t < L; ++t) steps.push_back(step_of(args, head, row + t));
    for (int t = 0; t < L; ++t) chunk_output(s, t, steps);
    chunk_state(s, steps);
  }
  h.end_chunk();
  if (args.z != nullptr) gate(args, head, row, row + L);
}

}  // namespace

void run(const SsdArgs& args, Stream&) {
  std::vector<float> copy(OpenState::copy_floats(args.h, int64_t{args.P} * args.N));
  for (int seq = 0; seq < args.seqs.num_seqs; ++seq) {
    const int begin = args.seqs.begin[seq], end = args.seqs.begin[seq + 1];
    int held = args.held.every > 1 ? args.held.before[seq] : 0;
    for (int row = begin; row < end;) {
      const int L = std::min(args.chunk, end - row);
      for (int head = 0; head < args.H; ++head)
        run_chunk(args, seq, head, row, L, held, copy.data());
      held = L == 1 ? (held + 1) % args.held.every : 0;
      row += L;
    }
  }
}

}  // namespace recurve::reference
