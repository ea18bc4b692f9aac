// Recurrences whose state is a matrix, over long prompts, against their step form in double: heads
// of unequal sizes, lengths that fill no chunk, extreme gates, chunks that are forgotten whole.
// An implementation may be off by 1.5 times what rounding to bf16 costs the step form itself, of
// what it reads and of what it gives.
#include <gtest/gtest.h>

#include "kernels/bf16.h"
#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/matrix_ops.h"

namespace recurve::testing::long_recurrence_test {

using Floats = std::vector<float>;

// The step form's outputs of the first head at some of its columns, which follow from the same
// columns of values.
struct StepForm {
  int keys, values;
  std::vector<double> q, state, normaliser;  // (keys), (keys, columns), (keys)

  static constexpr int kColumns = 5;
  int column(int i) const { return i * (values - 1) / (kColumns - 1); }

  StepForm(int DK, int DV)
      : keys(DK),
        values(DV),
        q(static_cast<size_t>(DK)),
        state(static_cast<size_t>(DK * kColumns)),
        normaliser(static_cast<size_t>(DK)) {}

  // decay(a) of a key's state, then weight k v is added.
  template <typename Decay>
  void step(const float* k, const float* v, double weight, Decay decay) {
    for (int a = 0; a < keys; ++a) {
      const double F = decay(a), I = weight * k[a];
      for (int i = 0; i < kColumns; ++i) {
        double& S = state[static_cast<size_t>(a * kColumns + i)];
        S = F * S + I * v[column(i)];
      }
      normaliser[static_cast<size_t>(a)] = F * normaliser[static_cast<size_t>(a)] + I;
    }
  }
  double of_normaliser(const float* by) const {
    double sum = 0;
    for (int a = 0; a < keys; ++a) sum += by[a] * normaliser[static_cast<size_t>(a)];
    return sum;
  }
  double of_state(const float* by, int i) const {
    double sum = 0;
    for (int a = 0; a < keys; ++a) sum += by[a] * state[static_cast<size_t>(a * kColumns + i)];
    return sum;
  }
};

// Of a prompt that starts from nothing: (L, kColumns).
std::vector<double> in_steps(const MlstmConfig& c, const Floats& rows) {
  StepForm form(c.DK, c.DV);
  std::vector<double> outputs;
  double m = 0;
  const auto gate = [&](double x) {
    return c.gate_soft_cap > 0 ? c.gate_soft_cap * std::tanh(x / c.gate_soft_cap) : x;
  };
  for (auto row = rows.begin(); row != rows.end(); row += c.width()) {
    const double i = gate(row[c.i(0)]), f = gate(row[c.f(0)]);
    const double lf = f > 0 ? -std::log1p(std::exp(-f)) : f - std::log1p(std::exp(f));
    const double next = std::max(lf + m, i), F = std::exp(lf + m - next);
    form.step(&row[c.k(0, 0)], &row[c.v(0, 0)], std::exp(i - next), [&](int) { return F; });
    m = next;
    const double scale = 1 / std::sqrt(static_cast<double>(c.DK));
    const double N = std::fabs(scale * form.of_normaliser(&row[c.q(0, 0)]));
    for (int d = 0; d < StepForm::kColumns; ++d) {
      outputs.push_back(scale * form.of_state(&row[c.q(0, 0)], d) /
                        (std::max(N, std::exp(-m)) + c.eps));
    }
  }
  return outputs;
}
std::vector<double> in_steps(const GlaConfig& c, const Floats& rows) {
  StepForm form(c.DK, c.DV);
  std::vector<double> outputs;
  for (auto row = rows.begin(); row != rows.end(); row += c.width()) {
    const auto decay = [&](int a) {
      if (c.decay == GlaDecay::kNone) return 1.0;
      return std::exp(static_cast<double>(row[c.g(c.decay == GlaDecay::kChannel ? a : 0)]));
    };
    const double weight = c.input_gate ? std::exp(static_cast<double>(row[c.i(0)])) : 1;
    form.step(&row[c.k(0, 0)], &row[c.v(0, 0)], weight, decay);
    for (int d = 0; d < StepForm::kColumns; ++d) {
      outputs.push_back(c.scale * form.of_state(&row[c.q(0, 0)], d));
    }
  }
  return outputs;
}

struct LongPrompt {
  int DK, DV, chunk;
  int L = 4097;
  float gates = 3;         // how far they spread
  bool forgotten = false;  // a chunk in the middle, and all before it
};

std::string describe(const LongPrompt& p) {
  return "DK " + std::to_string(p.DK) + " DV " + std::to_string(p.DV) + " chunk " +
         std::to_string(p.chunk) + " L " + std::to_string(p.L) + " gates " +
         std::to_string(p.gates) + (p.forgotten ? ", forgotten" : "");
}

class LongRecurrenceTest : public DeviceTest {
 protected:
  // rounded: how many columns of a row an implementation may round to bf16.
  template <typename Config>
  void expect_near_steps(const Config& c, const RecurrenceOp& op, const LongPrompt& p, int rounded,
                         int forgets) {
    KernelDevice device = make_device();
    std::mt19937_64 random(21);
    Floats rows = op.inputs(p.L, random);
    for (int t = p.chunk; p.forgotten && t < 2 * p.chunk; ++t) {
      rows[static_cast<size_t>(t) * c.width() + forgets] = -300;
    }
    Floats in_bf16 = rows;
    for (size_t at = 0; at < rows.size(); ++at) {
      if (static_cast<int>(at % c.width()) >= rounded) continue;
      in_bf16[at] = bf16_to_f32(f32_to_bf16(rows[at]));
    }
    const std::vector<double> wanted = in_steps(c, rows), in_bf16_steps = in_steps(c, in_bf16);
    const RecurrenceResult found =
        run_alone(device, op, rows, Floats(static_cast<size_t>(op.state_size())));
    const StepForm form(c.DK, c.DV);
    double size = 0, off = 0, rounding = 0;
    for (size_t at = 0; at < wanted.size(); ++at) {
      const size_t row = at / StepForm::kColumns;
      const int column = form.column(static_cast<int>(at % StepForm::kColumns));
      const double y = found.y[row * static_cast<size_t>(op.out) + static_cast<size_t>(column)];
      const double kept = bf16_to_f32(f32_to_bf16(static_cast<float>(in_bf16_steps[at])));
      size += wanted[at] * wanted[at];
      off += (y - wanted[at]) * (y - wanted[at]);
      rounding += (kept - wanted[at]) * (kept - wanted[at]);
    }
    const double error = std::sqrt(off / size), allowed = std::sqrt(rounding / size);
    EXPECT_LE(error, 1.5 * allowed) << op.name << ": " << describe(p);
    RecordProperty(op.name + ": " + describe(p), std::to_string(error / allowed));
  }
};

// The sizes of heads, few of which fill tiles.
const LongPrompt kSizes[] = {{16, 512, 64, 1025}, {512, 16, 64, 1025},  {48, 80, 32, 1025},
                             {64, 128, 64},       {128, 256, 64, 1025}, {256, 128, 128, 1025}};

TEST_P(LongRecurrenceTest, MlstmIsItsStepsInDouble) {
  std::vector<LongPrompt> prompts(std::begin(kSizes), std::end(kSizes));
  for (LongPrompt p : {LongPrompt{64, 128, 64, 4097, 30},
                       {128, 64, 128, 4097, 30, true},
                       {48, 80, 32, 1023, 30, true},
                       {64, 64, 64, 1023, 3, true}}) {
    prompts.push_back(p);
  }
  if (GetParam().device.starts_with("cuda")) prompts.push_back({128, 256, 64, 65536});
  for (const LongPrompt& p : prompts) {
    MlstmConfig c{2, p.DK, p.DV, p.chunk};  // so that rows begin where tiles take them
    c.aligned = true;
    c.i_deviation = c.f_deviation = p.gates;
    c.gate_soft_cap = p.gates > 15 ? 0 : 15.0f;
    expect_near_steps(c, mlstm_op(c), p, c.i(0), c.f(0));
  }
}

TEST_P(LongRecurrenceTest, DecayFamilyIsItsStepsInDouble) {
  std::mt19937_64 random(22);
  for (const GlaDecay decay : {GlaDecay::kToken, GlaDecay::kChannel}) {
    std::vector<LongPrompt> prompts(std::begin(kSizes), std::end(kSizes));
    prompts.push_back({64, 128, 64, 4097, 30});
    prompts.push_back({128, 64, 128, 1023, 3, decay == GlaDecay::kToken});
    const int heads = decay == GlaDecay::kToken ? 2 : 4;  // fewer for the same reason
    if (GetParam().device.starts_with("cuda")) prompts.push_back({64, 64, 64, 65536});
    for (const LongPrompt& p : prompts) {
      GlaConfig c{heads, p.DK, p.DV, p.chunk, decay, true};
      c.aligned = true;
      c.g_mean = p.gates > 15 ? -1.0f : -0.1f;
      c.g_deviation = p.gates > 15 ? 30 : 0.1f;
      c.scale = 1 / std::sqrt(static_cast<float>(p.DK));
      expect_near_steps(c, gla_op(c, random), p, c.g(0), c.g(0));
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LongRecurrenceTest);
#if RECURVE_CPU
INSTANTIATE_TEST_SUITE_P(Cpu, LongRecurrenceTest,
                         ::testing::Values(DeviceUnderTest{"cpu", 2, 0, "cpu2"}), name_of_device);
#endif
RECURVE_ON_CUDA(LongRecurrenceTest);

}  // namespace recurve::testing::long_recurrence_test
