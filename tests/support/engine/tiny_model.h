#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/engine/model_runner.h"
#include "tests/support/kernels/normal_floats.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing {

using Doubles = std::vector<double>;

// A checkpoint of random weights, made by a test that knows what a family should compute with them.
class TinyCheckpoint {
 public:
  explicit TinyCheckpoint(nlohmann::json config) : config_(std::move(config)), random_(7) {}

  // A tensor of normal values.
  TinyCheckpoint& add(const std::string& name, const std::vector<int64_t>& shape, double deviation,
                      double mean = 0) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    const std::vector<float> values =
        normal_floats(random_, static_cast<size_t>(count), static_cast<float>(deviation),
                      static_cast<float>(mean));
    writer_.add_f32(name, shape, values);
    tensors_[name] = Doubles(values.begin(), values.end());
    return *this;
  }
  // A matrix of outputs by inputs that keeps the size of what goes through it.
  TinyCheckpoint& matrix(const std::string& name, int64_t N, int64_t K) {
    return add(name, {N, K}, 1 / std::sqrt(static_cast<double>(K)));
  }
  TinyCheckpoint& norm(const std::string& name, int64_t size) { return add(name, {size}, 0.2, 1); }

  const Doubles& operator[](const std::string& name) const { return tensors_.at(name); }
  const nlohmann::json& config() const { return config_; }

  // The directory, written now.
  std::string write() {
    write_file(directory_ / "config.json", config_.dump());
    writer_.write(directory_ / "model.safetensors");
    return directory_.path().string();
  }

 private:
  nlohmann::json config_;
  std::mt19937_64 random_;
  SafetensorsWriter writer_;
  std::map<std::string, Doubles> tensors_;
  TempDir directory_;
};

// ---- what the oracles are made of, in double, a row at a time

inline double logistic(double x) { return 1 / (1 + std::exp(-x)); }
inline double silu(double x) { return x * logistic(x); }
inline double log_logistic(double x) { return -std::log1p(std::exp(-x)); }

// W x, W (N, K) with K the size of x.
inline Doubles times(const Doubles& W, const Doubles& x) {
  Doubles y(W.size() / x.size());
  for (size_t n = 0; n < y.size(); ++n) {
    for (size_t k = 0; k < x.size(); ++k) y[n] += W[n * x.size() + k] * x[k];
  }
  return y;
}
inline Doubles plus(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}
inline Doubles row_of(const Doubles& E, int64_t row, int64_t width) {
  return {E.begin() + row * width, E.begin() + (row + 1) * width};
}
inline Doubles rms_normed(const Doubles& x, const Doubles& w, double eps) {
  double squares = 0;
  for (const double value : x) squares += value * value / static_cast<double>(x.size());
  Doubles y = x;
  for (size_t i = 0; i < y.size(); ++i) y[i] *= w[i] / std::sqrt(squares + eps);
  return y;
}
// Wdown( silu(Wgate x) * (Wup x) ).
inline Doubles swiglu_ffn(const Doubles& gate, const Doubles& up, const Doubles& down,
                          const Doubles& x) {
  Doubles hidden = times(gate, x);
  const Doubles other = times(up, x);
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = silu(hidden[i]) * other[i];
  return times(down, hidden);
}

// Whether the model gives the logits of the oracle, `next(token)`, which is asked for one token
// after the other: in steps of one row, in chunks, and all at once.
template <typename MakeOracle>
void expect_logits(TinyCheckpoint& checkpoint, int64_t vocab, const MakeOracle& make_oracle) {
  constexpr double kTolerance = 2e-5;  // of the largest logit, fp32 against fp64
  constexpr int kTokens = 75;
  std::mt19937_64 random(11);
  std::vector<int32_t> tokens;
  Doubles wanted;
  auto oracle = make_oracle();
  for (int t = 0; t < kTokens; ++t) {
    tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
    const Doubles logits = oracle(tokens.back());
    wanted.insert(wanted.end(), logits.begin(), logits.end());
  }
  double largest = 0;
  for (const double logit : wanted) largest = std::max(largest, std::fabs(logit));
  const ModelCase model_case{checkpoint.write(), DType::kF32};
  for (const auto& [chunk, part] : {std::pair{1, 1}, {16, 32}, {64, 75}}) {
    ModelRunner runner(model_case, "reference", chunk);
    const StateSlot slot = *runner.pool().acquire();
    std::vector<float> found;
    for (int at = 0; at < kTokens; at += part) {
      const std::vector<float> logits = runner.forward(
          {{&slot, {tokens.begin() + at, tokens.begin() + std::min(at + part, kTokens)}}});
      found.insert(found.end(), logits.begin(), logits.end());
    }
    ASSERT_EQ(found.size(), wanted.size());
    double difference = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(std::isfinite(found[i])) << i;
      difference = std::max(difference, std::fabs(found[i] - wanted[i]));
    }
    EXPECT_LE(difference, kTolerance * largest) << "chunk " << chunk << ", parts of " << part;
  }
}

}  // namespace recurve::testing
