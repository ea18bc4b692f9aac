// GLA, simple GLA, RetNet, linear attention and HGRN2 as flash-linear-attention's layers write
// them, in double and one token at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/weights/json_file.h"
#include "tests/support/engine/tiny_model.h"

namespace recurve::testing::gla_test {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int64_t kD = 24, kH = 2, kV = 29, kF = 40, kLayers = 3;

json config_of(const std::string& type, const json& more) {
  json config = {{"model_type", type},          {"hidden_size", kD}, {"num_hidden_layers", kLayers},
                 {"intermediate_size", kF},     {"vocab_size", kV},  {"norm_eps", 1e-3},
                 {"tie_word_embeddings", false}};
  if (type != "hgrn2") config["num_heads"] = kH;
  config.update(more);
  return config;
}

// What the layers are, from the words of the config as a reader of fla's code would take them.
struct Shape {
  std::string_view type;
  int64_t qk, v;  // all heads
  int64_t H;
  bool gate, conv, old_mlp, floor;
  int64_t DK() const { return qk / H; }
  int64_t DV() const { return v / H; }
};

void add_layer(TinyCheckpoint& checkpoint, const Shape& s, const std::string& p) {
  const std::string a = p + "attn.";
  const bool hgrn2 = s.type == "hgrn2";
  const char* names[] = {"q", hgrn2 ? "f" : "k", hgrn2 ? "i" : "v"};
  const int64_t sizes[] = {s.qk, s.qk, s.v};
  checkpoint.norm(p + "attn_norm.weight", kD).norm(p + "mlp_norm.weight", kD);
  for (int i = 0; i < 3; ++i) {
    checkpoint.matrix(a + names[i] + "_proj.weight", sizes[i], kD);
    if (s.conv) checkpoint.add(a + names[i] + "_conv1d.weight", {sizes[i], 1, 4}, 0.6);
  }
  if (s.gate) checkpoint.matrix(a + "g_proj.weight", s.v, kD);
  if (s.type == "gla") {
    checkpoint.matrix(a + "gk_proj.0.weight", 5, kD);
    checkpoint.matrix(a + "gk_proj.1.weight", s.qk, 5).add(a + "gk_proj.1.bias", {s.qk}, 2);
  }
  if (s.type == "simple_gla") {
    checkpoint.matrix(a + "gk_proj.weight", s.H, kD).add(a + "gk_proj.bias", {s.H}, 2);
  }
  checkpoint.norm(a + (s.gate                    ? "g_norm_swish_gate.weight"
                       : s.type == "linear_attn" ? "norm.weight"
                                                 : "g_norm.weight"),
                  hgrn2 ? s.v : s.DV());
  checkpoint.matrix(a + "o_proj.weight", kD, s.v);
  checkpoint.matrix(p + "mlp.gate_proj.weight", s.old_mlp ? 2 * kF : kF, kD);
  if (!s.old_mlp) checkpoint.matrix(p + "mlp.up_proj.weight", kF, kD);
  checkpoint.matrix(p + "mlp.down_proj.weight", kD, kF);
}

class Oracle {
 public:
  Oracle(const TinyCheckpoint& checkpoint, const Shape& shape) : c_(checkpoint), s_(shape) {
    state_.resize(kLayers, Doubles(static_cast<size_t>(s_.H * s_.DK() * s_.DV())));
    keys_.resize(kLayers, Doubles(static_cast<size_t>(s_.qk)));
    past_.resize(kLayers, std::vector<std::vector<Doubles>>(3));
  }

  Doubles operator()(int32_t token) {
    Doubles x = row_of(c_["model.embeddings.weight"], token, kD);
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::string p = "model.layers." + std::to_string(layer) + ".";
      x = plus(x, attention(layer, p + "attn.", rms_normed(x, c_[p + "attn_norm.weight"], 1e-3)));
      const Doubles y = rms_normed(x, c_[p + "mlp_norm.weight"], 1e-3);
      Doubles gate = c_[p + "mlp.gate_proj.weight"], up;
      if (s_.old_mlp) {
        up.assign(gate.begin() + kF * kD, gate.end());
        gate.resize(kF * kD);
      } else {
        up = c_[p + "mlp.up_proj.weight"];
      }
      x = plus(x, swiglu_ffn(gate, up, c_[p + "mlp.down_proj.weight"], y));
    }
    ++position_;
    return times(c_["lm_head.weight"], rms_normed(x, c_["model.norm.weight"], 1e-3));
  }

 private:
  Doubles projected(int layer, int which, const std::string& a, const char* name,
                    const Doubles& y) {
    Doubles now = times(c_[a + name + "_proj.weight"], y);
    if (!s_.conv) return now;
    std::vector<Doubles>& past = past_[layer][which];
    past.push_back(now);
    const Doubles& w = c_[a + std::string(name) + "_conv1d.weight"];
    for (size_t d = 0; d < now.size(); ++d) {
      double sum = 0;
      for (size_t back = 0; back < 4 && back < past.size(); ++back) {
        sum += w[d * 4 + 3 - back] * past[past.size() - 1 - back][d];
      }
      now[d] = s_.type == "hgrn2" ? sum : silu(sum);
    }
    return now;
  }

  Doubles attention(int layer, const std::string& a, const Doubles& y) {
    const bool hgrn2 = s_.type == "hgrn2";
    Doubles q = projected(layer, 0, a, "q", y);
    Doubles k = projected(layer, 1, a, hgrn2 ? "f" : "k", y);
    const Doubles v = projected(layer, 2, a, hgrn2 ? "i" : "v", y);
    Doubles decay(q.size(), 1.0);
    if (hgrn2) {
      for (size_t i = 0; i < q.size(); ++i) {
        const double bound = lower_bound(layer, i);
        decay[i] = bound + (1 - bound) * logistic(k[i]);
        k[i] = 1 - decay[i];
        q[i] = silu(q[i]);
      }
    } else if (s_.type == "gla") {
      const Doubles low = times(c_[a + "gk_proj.0.weight"], y);
      const Doubles raw = plus(times(c_[a + "gk_proj.1.weight"], low), c_[a + "gk_proj.1.bias"]);
      for (size_t i = 0; i < q.size(); ++i) {
        const double g = log_logistic(raw[i]) / 16;
        decay[i] = std::exp(s_.floor ? std::max(g, -0.5) : g);
      }
    } else if (s_.type == "simple_gla") {
      const Doubles raw = plus(times(c_[a + "gk_proj.weight"], y), c_[a + "gk_proj.bias"]);
      for (size_t i = 0; i < q.size(); ++i) {
        decay[i] = std::exp(log_logistic(raw[i / s_.DK()]) / 4);
      }
    } else if (s_.type == "retnet") {
      for (size_t i = 0; i < q.size(); ++i) {
        decay[i] = 1 - std::pow(2.0, -5 - static_cast<double>(i / s_.DK()));
      }
      turn(q);
      turn(k);
    } else {
      const std::string map = c_.config()["feature_map"];
      for (Doubles* x : {&q, &k}) {
        for (double& value : *x) {
          if (map == "elu") value = value > 0 ? value + 1 : std::exp(value);
          if (map == "relu") value = std::max(value, 0.0);
        }
      }
    }
    return output(a, y, recur(layer, q, k, v, decay));
  }

  // Pairs of channels j and j + DK / 2 turn by position / 10000^(2 j / DK).
  void turn(Doubles& x) const {
    const int64_t DK = s_.DK(), half = DK / 2;
    for (int64_t head = 0; head < s_.H; ++head) {
      for (int64_t j = 0; j < half; ++j) {
        const double angle =
            position_ / std::pow(10000.0, 2.0 * static_cast<double>(j) / static_cast<double>(DK));
        double& a = x[head * DK + j];
        double& b = x[head * DK + half + j];
        const double real = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = real;
      }
    }
  }

  Doubles recur(int layer, const Doubles& q, const Doubles& k, const Doubles& v,
                const Doubles& decay) {
    const size_t DK = s_.DK(), DV = s_.DV();
    const bool normalised = c_.config().value("norm_feature_map", false);
    Doubles o(v.size());
    for (size_t head = 0; head < static_cast<size_t>(s_.H); ++head) {
      double normaliser = 1e-10;
      for (size_t a = head * DK; a < (head + 1) * DK; ++a) {
        const double scaled = q[a] / std::sqrt(static_cast<double>(DK));
        keys_[layer][a] += k[a];
        normaliser += scaled * keys_[layer][a];
        for (size_t d = 0; d < DV; ++d) {
          double& S = state_[layer][a * DV + d];
          S = decay[a] * S + k[a] * v[head * DV + d];
          o[head * DV + d] += scaled * S;
        }
      }
      for (size_t d = 0; d < DV && normalised; ++d) o[head * DV + d] /= normaliser;
    }
    return o;
  }

  Doubles output(const std::string& a, const Doubles& y, Doubles o) {
    if (s_.type == "hgrn2") {
      o = rms_normed(o, c_[a + "g_norm.weight"], 1e-5);
    } else {
      const Doubles& w = c_[a + (s_.gate                    ? "g_norm_swish_gate.weight"
                                 : s_.type == "linear_attn" ? "norm.weight"
                                                            : "g_norm.weight")];
      for (int64_t head = 0; head < s_.H; ++head) {
        const Doubles normed = rms_normed(row_of(o, head, s_.DV()), w, 1e-3);
        std::copy(normed.begin(), normed.end(), o.begin() + head * s_.DV());
      }
      if (s_.gate) {
        const Doubles gate = times(c_[a + "g_proj.weight"], y);
        for (size_t i = 0; i < o.size(); ++i) o[i] *= silu(gate[i]);
      }
    }
    return times(c_[a + "o_proj.weight"], o);
  }

  double lower_bound(int layer, size_t channel) const {
    if (!c_.config().value("use_lower_bound", true)) return 0;
    const Doubles& logits = c_["model.lower_bounds"];
    double total = 0, sum = 0;
    for (int l = 0; l < kLayers; ++l) total += std::exp(logits[l * kD + channel]);
    for (int l = 0; l <= layer; ++l) sum += std::exp(logits[l * kD + channel]) / total;
    return sum - std::exp(logits[channel]) / total;
  }

  const TinyCheckpoint& c_;
  const Shape s_;
  std::vector<Doubles> state_, keys_;                    // of each layer
  std::vector<std::vector<std::vector<Doubles>>> past_;  // of each layer and projection
  double position_ = 0;
};

struct Case {
  std::string_view name;
  Shape shape;
  json config;
};

// (type, key and value widths, heads, output gate, convolution, old layout, gate floor)
const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"gla", {"gla", 12, 24, 2, true, false, false, false}, {{"gate_low_rank_dim", 5}}},
      {"gla_all_keys",
       {"gla", 24, 36, 2, false, true, true, true},
       {{"gate_low_rank_dim", 5},
        {"expand_k", 1.0},
        {"expand_v", 1.5},
        {"use_output_gate", false},
        {"use_short_conv", true},
        {"gate_logit_normalizer", 16},
        {"clamp_min", -0.5}}},
      {"simple_gla",
       {"simple_gla", 24, 24, 2, true, true, false, false},
       {{"gate_logit_normalizer", 4}}},
      {"retnet", {"retnet", 24, 48, 2, true, false, false, false}, json::object()},
      {"linear_attention",
       {"linear_attn", 24, 24, 2, false, false, false, false},
       {{"feature_map", "identity"}}},
      {"linear_attention_normalised",
       {"linear_attn", 24, 24, 2, false, false, false, false},
       {{"feature_map", "elu"}, {"norm_feature_map", true}}},
      {"hgrn2", {"hgrn2", 24, 24, 3, false, false, false, false}, {{"expand_ratio", 8}}},
      {"hgrn2_unbounded",
       {"hgrn2", 24, 24, 3, false, true, false, false},
       {{"num_heads", 3},
        {"use_lower_bound", false},
        {"use_short_conv", true},
        {"expand_ratio", nullptr}}},
  };
  return kCases;
}

TinyCheckpoint& fill(TinyCheckpoint& checkpoint, const Shape& shape) {
  checkpoint.add("model.embeddings.weight", {kV, kD}, 1).matrix("lm_head.weight", kV, kD);
  checkpoint.norm("model.norm.weight", kD);
  for (int layer = 0; layer < kLayers; ++layer) {
    add_layer(checkpoint, shape, "model.layers." + std::to_string(layer) + ".");
  }
  if (shape.type == "hgrn2" && checkpoint.config().value("use_lower_bound", true)) {
    checkpoint.add("model.lower_bounds", {kLayers, kD}, 1);
  }
  return checkpoint;
}

class GlaFamily : public ::testing::TestWithParam<Case> {};

TEST_P(GlaFamily, IsTheLayersOfItsSource) {
  const Case& test = GetParam();
  TinyCheckpoint checkpoint(config_of(std::string(test.shape.type), test.config));
  fill(checkpoint, test.shape);
  expect_logits(checkpoint, kV, [&] { return Oracle(checkpoint, test.shape); });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GlaFamily, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- configs

std::unique_ptr<const Model> load(const json& config) {
  static const std::unique_ptr<Backend> backend = make_backend("reference");
  Checkpoint checkpoint = Checkpoint::random(config, 1, "d/config.json");
  return load_model(checkpoint, *backend, {});
}

std::string error_for(const std::string& type, const json& more) {
  return error_of([&] { load(config_of(type, more)); });
}

// fla's GatedMLP takes 4 where the config says null, RetNet's class 2 where it says nothing.
TEST(GlaConfig, AFeedForwardRatioOfNullIsTheLayersDefault) {
  const auto description = [](const json& more) {
    json config = config_of("retnet", {{"hidden_size", 256}});
    for (const auto& [key, value] : more.items()) config[key] = value;
    config.erase("intermediate_size");
    return load(config)->info().description;
  };
  EXPECT_THAT(description(json::object()), HasSubstr("feed-forward 512"));
  EXPECT_THAT(description({{"hidden_ratio", nullptr}}), HasSubstr("feed-forward 768"));
}

struct PublicConfig {
  const char* file;
  int64_t D;
  bool tied;
  int64_t parameters, state_bytes;  // as published, and of S in fp32
};

class PublicGlaConfig : public ::testing::TestWithParam<PublicConfig> {};

// One layer and few tokens of it, and the rest by multiplication.
TEST_P(PublicGlaConfig, HasThePublishedSize) {
  constexpr int64_t kLayersOfAll = 24, kVocabOfAll = 32000, kVocab = 16;
  const PublicConfig& p = GetParam();
  json config = read_json_file(std::string(RECURVE_SOURCE_DIR) + "/tests/configs/" + p.file, 1e6);
  ASSERT_EQ(config["num_hidden_layers"], kLayersOfAll);
  ASSERT_EQ(config["vocab_size"], kVocabOfAll);
  config["num_hidden_layers"] = 1;
  config["vocab_size"] = kVocab;
  const std::unique_ptr<const Model> model = load(config);
  const int64_t heads = p.tied ? 1 : 2;
  const int64_t layer = model->info().parameters - heads * kVocab * p.D - p.D;
  EXPECT_EQ(layer * kLayersOfAll + heads * kVocabOfAll * p.D + p.D, p.parameters);
  const StateArray S = model->state_layout().arrays.at(0);
  EXPECT_EQ(static_cast<int64_t>(S.bytes()) * kLayersOfAll, p.state_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Models, PublicGlaConfig,
    ::testing::Values(PublicConfig{"gla-1.3b.json", 2048, false, 1365514240, 50331648},
                      PublicConfig{"gla-340m.json", 1024, true, 341707776, 12582912},
                      PublicConfig{"retnet-1.3b.json", 2048, false, 1351727104, 100663296},
                      PublicConfig{"hgrn2-1.3b.json", 2048, false, 1364396032, 25165824}),
    [](const auto& info) {
      std::string name = info.param.file;
      std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
      return name;
    });

TEST(GlaConfig, RefusesWhatWouldChangeTheMaths) {
  static const json kRefused = {{"attn", {{"layers", {1}}}},
                                {"hidden_act", "gelu"},
                                {"elementwise_affine", false},
                                {"gate_fn", "sigmoid"},
                                {"some_new_key", 1}};
  for (const char* type : {"gla", "simple_gla", "retnet", "hgrn2"}) {
    EXPECT_EQ(error_for(type, {{"expand_ratio", type == std::string("hgrn2") ? json(8) : json()}}),
              "");
    for (const auto& [key, value] : kRefused.items()) {
      json more = {{key, value}};
      if (type == std::string("hgrn2")) more["expand_ratio"] = 8;
      EXPECT_THAT(error_for(type, more), HasSubstr(key)) << type;
    }
  }
  EXPECT_EQ(error_for("gla", {{"num_kv_heads", 1}}), "");
  EXPECT_THAT(error_for("gla", {{"num_heads", 4}, {"num_kv_heads", 3}}),
              HasSubstr("num_kv_heads: wanted a divisor of num_heads 4, found 3"));
  EXPECT_THAT(error_for("gla", {{"use_gv", true}}), HasSubstr("use_gv"));
  EXPECT_THAT(error_for("gla", {{"num_heads", 5}}), HasSubstr("num_heads"));
  EXPECT_THAT(error_for("gla", {{"feature_map", "gelu"}}), HasSubstr("feature_map"));
  EXPECT_THAT(error_for("retnet", {{"num_heads", 8}}), HasSubstr("even number of channels"));
  EXPECT_EQ(error_for("linear_attn", json::object()), "");
  EXPECT_THAT(error_for("linear_attn", {{"feature_map", "taylor"}}),
              HasSubstr("feature_map: wanted identity or relu or elu or dpfp or t2r or hedgehog or "
                        "elementwise_product, found \"taylor\""));
  EXPECT_THAT(error_for("linear_attn", {{"norm_q", 1}}), HasSubstr("norm_q: wanted true or false"));
  EXPECT_THAT(error_for("gla", {{"attnres_block_size", 2}}), HasSubstr("attnres_block_size"));
  EXPECT_THAT(error_for("hgrn2", {{"expand_ratio", 7}}), HasSubstr("expand_ratio"));
  // fla's default of expand_ratio, 128, is no divisor of this width, whatever num_heads says.
  EXPECT_THAT(error_for("hgrn2", {{"num_heads", 3}}), HasSubstr("found 128"));
  EXPECT_EQ(error_for("hgrn2", {{"num_heads", 3}, {"expand_ratio", nullptr}}), "");
  EXPECT_EQ(error_for("gla", {{"gate_logit_normalizer", 16}}), "");
  EXPECT_THAT(error_for("gla", {{"gate_logit_normalizer", 8}}),
              HasSubstr("gate_logit_normalizer: wanted 16"));
  EXPECT_EQ(error_for("simple_gla", {{"gate_logit_normalizer", 8}}), "");
}

// fla's models do not pass these keys to their layers.
TEST(GlaConfig, IgnoresWhatFlaIgnores) {
  for (const char* type : {"retnet", "linear_attn"}) {
    EXPECT_EQ(error_for(type, {{"use_short_conv", true}, {"conv_size", 4}, {"conv_bias", true}}),
              "")
        << type;
  }
  for (const char* norm : {"identity", "rmsnorm", "layernorm"}) {
    EXPECT_EQ(error_for("linear_attn", {{"output_norm", norm}, {"do_feature_map_norm", true}}), "");
  }
}

}  // namespace recurve::testing::gla_test
