// Language models of recurrent cells, plain and in pre-norm blocks, written out in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/weights/json_file.h"
#include "tests/support/engine/tiny_model.h"

namespace recurve::testing::rnn_test {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int64_t kD = 12, kV = 31, kF = 20;

struct Case {
  std::string name;
  std::string cell;
  int64_t H, layers, E;
  bool pre_norm;
  json more;
};

int64_t gates_in(const std::string& cell) {
  return cell == "elman" ? 1 : cell == "lstm" || cell == "slstm" ? 4 : 3;
}

json config_of(const Case& c) {
  json config = {{"model_type", "rnn"},  {"cell", c.cell},   {"num_hidden_layers", c.layers},
                 {"hidden_size", kD},    {"num_heads", c.H}, {"vocab_size", kV},
                 {"embedding_size", c.E}};
  if (c.pre_norm) {
    config.update({{"block", "pre_norm"}, {"intermediate_size", kF}, {"norm_eps", 1e-3}});
  }
  config.update(c.more);
  return config;
}

void fill(TinyCheckpoint& checkpoint, const Case& c) {
  const json& config = checkpoint.config();
  const int64_t G = gates_in(c.cell);
  checkpoint.add("embeddings.weight", {kV, c.E}, 1);
  for (int64_t l = 0; l < c.layers; ++l) {
    const std::string p = "layers." + std::to_string(l) + ".";
    checkpoint.matrix(p + "weight_ih", G * kD, l == 0 ? c.E : kD);
    checkpoint.matrix(p + "weight_hh", G * kD, kD / c.H);
    if (config.value("use_bias", true)) {
      checkpoint.add(p + "bias_ih", {G * kD}, 1).add(p + "bias_hh", {G * kD}, 1);
    }
    if (!c.pre_norm) continue;
    for (const char* norm : {"norm", "ffn_norm"}) {
      checkpoint.norm(p + norm + ".weight", kD);
      if (config.value("norm_bias", false)) checkpoint.add(p + norm + ".bias", {kD}, 0.5);
    }
    checkpoint.matrix(p + "ffn.gate_proj.weight", kF, kD);
    checkpoint.matrix(p + "ffn.up_proj.weight", kF, kD);
    checkpoint.matrix(p + "ffn.down_proj.weight", kD, kF);
  }
  if (c.pre_norm) {
    checkpoint.norm("norm.weight", kD);
    if (config.value("norm_bias", false)) checkpoint.add("norm.bias", {kD}, 0.5);
  }
  if (!config.value("tie_word_embeddings", false)) checkpoint.matrix("lm_head.weight", kV, kD);
  if (config.value("head_bias", false)) checkpoint.add("lm_head.bias", {kV}, 1);
}

class Oracle {
 public:
  Oracle(const TinyCheckpoint& checkpoint, const Case& which) : c_(checkpoint), case_(which) {
    for (auto* states : {&h_, &cell_, &n_, &m_}) states->resize(which.layers, Doubles(kD));
  }

  Doubles operator()(int32_t token) {
    Doubles x = row_of(c_["embeddings.weight"], token, case_.E);
    for (int l = 0; l < case_.layers; ++l) {
      const std::string p = "layers." + std::to_string(l) + ".";
      if (!case_.pre_norm) {
        x = advance(l, p, x);
        continue;
      }
      x = plus(x, advance(l, p, normed(x, p + "norm.")));
      x = plus(x, swiglu_ffn(c_[p + "ffn.gate_proj.weight"], c_[p + "ffn.up_proj.weight"],
                             c_[p + "ffn.down_proj.weight"], normed(x, p + "ffn_norm.")));
    }
    if (case_.pre_norm) x = normed(x, "norm.");
    const bool tied = c_.config().value("tie_word_embeddings", false);
    const Doubles logits = times(c_[tied ? "embeddings.weight" : "lm_head.weight"], x);
    return c_.config().value("head_bias", false) ? plus(logits, c_["lm_head.bias"]) : logits;
  }

 private:
  Doubles normed(const Doubles& x, const std::string& name) const {
    const Doubles& w = c_[name + "weight"];
    if (c_.config().value("norm", "layer_norm") == "rms_norm") return rms_normed(x, w, 1e-3);
    double mean = 0, variance = 0;
    for (const double value : x) mean += value / kD;
    for (const double value : x) variance += (value - mean) * (value - mean) / kD;
    Doubles y(x);
    for (size_t d = 0; d < y.size(); ++d) y[d] = (x[d] - mean) / std::sqrt(variance + 1e-3) * w[d];
    return c_.config().value("norm_bias", false) ? plus(y, c_[name + "bias"]) : y;
  }

  // The two sums of every gate, (gates, D): of the input and of the state.
  Doubles from_input(const std::string& p, const Doubles& x) const {
    const Doubles y = times(c_[p + "weight_ih"], x);
    return c_.config().value("use_bias", true) ? plus(y, c_[p + "bias_ih"]) : y;
  }
  Doubles from_state(const std::string& p, const Doubles& h) const {
    const Doubles& W = c_[p + "weight_hh"];
    const int64_t DH = kD / case_.H;
    Doubles y(W.size() / DH);
    for (size_t row = 0; row < y.size(); ++row) {
      const size_t head = row % kD / DH;
      for (int64_t k = 0; k < DH; ++k) y[row] += W[row * DH + k] * h[head * DH + k];
    }
    return c_.config().value("use_bias", true) ? plus(y, c_[p + "bias_hh"]) : y;
  }

  Doubles advance(int layer, const std::string& p, const Doubles& x) {
    const Doubles u = from_input(p, x), s = from_state(p, h_[layer]);
    for (size_t d = 0; d < kD; ++d) {
      const auto gate = [&](int j) { return u[j * kD + d] + s[j * kD + d]; };
      double& h = h_[layer][d];
      double& c = cell_[layer][d];
      if (case_.cell == "elman") h = std::tanh(gate(0));
      if (case_.cell == "lstm") {
        c = logistic(gate(1)) * c + logistic(gate(0)) * std::tanh(gate(2));
        h = logistic(gate(3)) * std::tanh(c);
      }
      if (case_.cell == "gru" || case_.cell == "flash_gru") {
        const double own = s[2 * kD + d];
        const double n = std::tanh(
            u[2 * kD + d] + logistic(gate(0)) * (case_.cell == "gru" ? own : std::tanh(own)));
        h = (1 - logistic(gate(1))) * n + logistic(gate(1)) * h;
      }
      if (case_.cell == "slstm") {
        double &n = n_[layer][d], &m = m_[layer][d];
        const double faded = log_logistic(gate(1)) + m;
        const double top = n == 0 ? gate(0) : std::max(gate(0), faded);
        const double F = n == 0 ? 0 : std::exp(faded - top), I = std::exp(gate(0) - top);
        c = F * c + I * std::tanh(gate(2));
        n = std::max(F * n + I, c_.config().value("slstm_n_min", 0.0));
        m = top;
        h = logistic(gate(3)) * c / n;
      }
    }
    return h_[layer];
  }

  const TinyCheckpoint& c_;
  const Case& case_;
  std::vector<Doubles> h_, cell_, n_, m_;  // of each layer, (D)
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"elman", "elman", 1, 2, kD, false, json::object()},
      {"lstm", "lstm", 1, 2, 7, false, {{"head_bias", true}}},
      {"lstm_heads", "lstm", 3, 1, kD, false, {{"use_bias", false}}},
      {"lstm_tied", "lstm", 1, 1, kD, false, {{"tie_word_embeddings", true}, {"head_bias", true}}},
      {"gru", "gru", 1, 3, kD, false, json::object()},
      {"flash_gru", "flash_gru", 2, 2, kD, false, json::object()},
      {"slstm", "slstm", 4, 2, kD, false, json::object()},
      {"lstm_pre_norm", "lstm", 2, 3, kD, true, json::object()},
      {"gru_pre_norm", "gru", 1, 2, kD, true, {{"norm", "rms_norm"}}},
      {"elman_pre_norm", "elman", 3, 2, kD, true, {{"norm_bias", true}, {"use_bias", false}}},
      {"slstm_pre_norm", "slstm", 2, 2, kD, true, {{"slstm_n_min", 1}}},
  };
  return kCases;
}

class RnnFamily : public ::testing::TestWithParam<Case> {};

TEST_P(RnnFamily, IsTheEquations) {
  TinyCheckpoint checkpoint(config_of(GetParam()));
  fill(checkpoint, GetParam());
  expect_logits(checkpoint, kV, [&] { return Oracle(checkpoint, GetParam()); });
}

INSTANTIATE_TEST_SUITE_P(Cells, RnnFamily, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

std::string error_for(const json& more) {
  static const std::unique_ptr<Backend> backend = make_backend("reference");
  json config = config_of({"", "lstm", 1, 1, kD, true, json::object()});
  config.update(more);
  return error_of([&] {
    Checkpoint checkpoint = Checkpoint::random(config, 1, "d/config.json");
    load_model(checkpoint, *backend, {});
  });
}

// The language models of the FlashRNN paper's table 1: one layer of them, and the rest by
// multiplication.
TEST(RnnConfig, PapersModelsHaveThePublishedSize) {
  static const std::unique_ptr<Backend> backend = make_backend("reference");
  for (const auto& [file, millions] :
       {std::pair{"flashrnn-slstm-164m.json", 164}, {"flashrnn-lstm-190m.json", 190}}) {
    json config = read_json_file(std::string(RECURVE_SOURCE_DIR) + "/tests/configs/" + file, 1e6);
    const int64_t layers = config["num_hidden_layers"], D = config["hidden_size"];
    const int64_t outside = 2 * config["vocab_size"].get<int64_t>() * D + D;
    config.update({{"num_hidden_layers", 1}, {"vocab_size", 16}});
    Checkpoint checkpoint = Checkpoint::random(config, 1, "d/config.json");
    const auto model = load_model(checkpoint, *backend, {});
    const int64_t layer = model->info().parameters - 2 * 16 * D - D;
    EXPECT_EQ((layer * layers + outside) / 1000000, millions) << file;
  }
}

TEST(RnnConfig, RefusesWhatWouldChangeTheMaths) {
  EXPECT_EQ(error_for(json::object()), "");
  EXPECT_THAT(error_for({{"cell", "mgu"}}), HasSubstr("cell: wanted elman or lstm"));
  EXPECT_THAT(error_for({{"cell", nullptr}}), HasSubstr("cell: wanted elman or lstm"));
  EXPECT_THAT(error_for({{"num_heads", 5}}), HasSubstr("num_heads: wanted a divisor"));
  EXPECT_THAT(error_for({{"embedding_size", 6}}), HasSubstr("embedding_size"));
  EXPECT_THAT(error_for({{"bidirectional", true}}), HasSubstr("bidirectional"));
  EXPECT_THAT(error_for({{"norm", "rms_norm"}, {"norm_bias", true}}), HasSubstr("norm_bias"));
  EXPECT_THAT(error_for({{"block", "plain"}, {"intermediate_size", 4}}),
              HasSubstr("intermediate_size"));
}

}  // namespace recurve::testing::rnn_test
