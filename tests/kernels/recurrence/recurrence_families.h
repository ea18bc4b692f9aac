#pragma once
// The recurrences in the sizes they are tested with.
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/kernels/kept_draws.h"
#include "tests/support/kernels/delta_ops.h"
#include "tests/support/kernels/griffin_ops.h"
#include "tests/support/kernels/matrix_ops.h"
#include "tests/support/kernels/rnn_op.h"
#include "tests/support/kernels/rwkv_ops.h"
#include "tests/support/kernels/ssm_ops.h"

namespace recurve::testing::recurrence_test {

// An op in the sizes it is tested with: some that fill vectors, some that leave rests, small ones,
// and the extremes of its gates.
struct Family {
  std::string name;
  Ops (*ops)(std::mt19937_64&);
  Ops (*large)(std::mt19937_64&);            // worth splitting; sizes of public models
  Ops (*with_chunk)(int, std::mt19937_64&);  // the same op with this chunk; null: no chunks
  bool holds_rows = false;                   // which the CPU does not
};

inline Ops conv_ops(std::mt19937_64& random) {
  Ops ops;
  for (const ConvSize& c : {ConvSize{1, 2},
                            {40, 4},
                            {37, 4},
                            {19, 3, false},
                            {8, 2, true, false},
                            {9, 60},
                            {40, 4, true, true, true},
                            {36, 4, false, false, true}}) {
    ops.push_back(conv_op(c, random));
  }
  return ops;
}

// Large steps put in large values.
inline RecurrenceOp with_unit(RecurrenceOp op, float unit) {
  op.tolerance.absolute *= std::max(1.0f, unit);
  return op;
}

inline constexpr float kTimeSteps[] = {-100, -20, 20, 100};

inline Ops scan_ops(std::mt19937_64& random) {
  Ops ops;
  for (const ScanSize& c : {ScanSize{1, 1},
                            {7, 16, 8},
                            {40, 16, 16},
                            {5, 3, 8, true, -2, 2, 20, DType::kBF16},
                            {4, 33, 8, false, -2, 2, 3, DType::kF32, 1e-3f},
                            {9, 16, 8, true, -2, 2, 16, DType::kBF16, 1e-3f},
                            {64, 16, 8, true, -2, 2, 32, DType::kBF16, 0, true},
                            {128, 16, 8, true, -2, 2, 160, DType::kBF16, 1e-6f, true},
                            {64, 4, 8, false, -2, 2, 64, DType::kBF16, 0, true},
                            {192, 16, 1, false, -2, 2, 96, DType::kBF16, 0, true},
                            {256, 16, 20, true, -2, 2, 64, DType::kBF16, 1e-3f, true},
                            // As wide as makes a GPU take a lone prompt otherwise than several.
                            {5120, 16, 16, true, -2, 2, 32, DType::kBF16, 0, true}}) {
    ops.push_back(scan_op(c, random));
  }
  for (const float dt : kTimeSteps) {
    ops.push_back(with_unit(scan_op({20, 16, 8, true, dt, 1}, random), dt));
    ops.push_back(
        with_unit(scan_op({64, 16, 8, true, dt, 1, 32, DType::kBF16, 0, true}, random), dt));
  }
  ops.push_back(scan_op({70, 5, 8, true, -2, 2, 7, DType::kBF16}, random));  // of an odd rank
  return ops;
}

inline Ops ssd_ops(std::mt19937_64& random) {
  constexpr float kNoLimit = std::numeric_limits<float>::infinity();
  Ops ops;
  for (const SsdSize& c : {SsdSize{1, 1, 1},
                           {4, 8, 16, 1, 8},
                           {6, 5, 33, 3, 16},
                           {2, 16, 32, 2, 64},
                           {2, 70, 128, 1, 16},
                           {1, 3, 260, 1, 16},
                           {3, 7, 3, 1, 1},
                           {4, 4, 8, 2, 8, 0.1f, 0.3f},
                           {2, 5, 16, 1, 16, 0, kNoLimit, -2, 2, true},
                           {3, 16, 128, 1, 16, 0, kNoLimit, -2, 2, true, true},
                           {4, 64, 64, 2, 64, 0, kNoLimit, -2, 2, true, true},
                           {2, 64, 128, 1, 128, 0, kNoLimit, -2, 2, false, true}}) {
    ops.push_back(ssd_op(c, random));
  }
  for (const float dt : kTimeSteps) {
    ops.push_back(with_unit(ssd_op({2, 16, 16, 1, 16, 0, kNoLimit, dt, 1}, random), dt));
  }
  return ops;
}

inline SsdSize written_once_in(int every, SsdSize size) {
  size.every = every;
  return size;
}
inline Ops held_ssd_ops(std::mt19937_64& random) {
  constexpr float kNoLimit = std::numeric_limits<float>::infinity();
  return {
      ssd_op(written_once_in(2, {1, 1, 1}), random),
      ssd_op(written_once_in(3, {6, 5, 33, 3, 16}), random),
      ssd_op(written_once_in(8, {2, 70, 128, 1, 16}), random),
      ssd_op(written_once_in(5, {1, 3, 260, 1, 16}), random),
      ssd_op(written_once_in(4, {3, 7, 3, 1, 1}), random),
      ssd_op(written_once_in(8, {2, 5, 16, 1, 1, 0, kNoLimit, -2, 2, true}), random),
      ssd_op(written_once_in(8, {3, 16, 128, 1, 16, 0, kNoLimit, -2, 2, true, true}), random),
      ssd_op(written_once_in(7, {4, 64, 64, 2, 64, 0, kNoLimit, -2, 2, true, true}), random),
      ssd_op(written_once_in(8, {2, 64, 128, 1, 1, 0, kNoLimit, -2, 2, true, true}), random),
      ssd_op(written_once_in(8, {6, 64, 128, 3, 128, 0, kNoLimit, -2, 2, false, true}), random)};
}

inline Ops linear_recurrence_ops(std::mt19937_64&) {
  return {linear_recurrence_op({1}), linear_recurrence_op({37, 8}), linear_recurrence_op({64, 16})};
}

inline Ops mlstm_ops(std::mt19937_64&) {
  Ops ops;
  for (const auto& [H, DK, DV] :
       {std::tuple{1, 1, 1}, {3, 5, 7}, {2, 8, 24}, {2, 16, 32}, {4, 33, 70}, {1, 32, 150}}) {
    for (const int chunk : {1, 4, 16, 64}) ops.push_back(mlstm_op({H, DK, DV, chunk}));
  }
  for (const float i : {-60.0f, 60.0f}) {  // saturated gates
    for (const float f : {-60.0f, 60.0f}) {
      ops.push_back(mlstm_op({2, 16, 16, 16, 15, 1e-6f, i, 3, f, 2}));
    }
  }
  for (const int chunk : {1, 4, 16}) {
    ops.push_back(mlstm_op({3, 33, 70, chunk, 15, 1e-6f, 0, 3, 3, 2, true}));
  }
  // Matrices that divide evenly between blocks.
  ops.push_back(mlstm_op({2, 64, 512, 16, 15, 1e-6f, 0, 3, 3, 2, true}));
  ops.push_back(mlstm_op({1, 128, 256, 1}));
  // Tiles: of each number of keys, and two to a chunk.
  for (const auto& [DK, DV, chunk] :
       {std::tuple{32, 64, 64}, {64, 128, 64}, {128, 64, 128}, {256, 64, 64}}) {
    ops.push_back(mlstm_op({2, DK, DV, chunk, 15, 1e-6f, 0, 3, 3, 2, false, true}));
  }
  for (const float i : {-30.0f, 30.0f}) {
    ops.push_back(mlstm_op({2, 64, 64, 64, 0, 1e-6f, i, 3, -i, 2, true, true}));
  }
  ops.push_back(mlstm_op({2, 256, 192, 16, 15, 1e-6f, 0, 3, 3, 2, true}));
  return ops;
}

// (H, DK, DV, chunk, decay, input gate, normaliser, mean and deviation of the log decay, scale,
// eps, bounded). The sizes are set below.
inline const GlaConfig kGlaKinds[] = {
    {2, 0, 0, 0, GlaDecay::kChannel, false, false, -0.1f, 0.1f},
    {2, 0, 0, 0, GlaDecay::kChannel, true, true, -0.1f, 0.1f},
    // exp(-sum) overflows within two rows of a chunk.
    {2, 0, 0, 0, GlaDecay::kChannel, false, false, -60, 30},
    {2, 0, 0, 0, GlaDecay::kChannel, false, false, 0, 60},
    {2, 0, 0, 0, GlaDecay::kToken, false, false, -0.1f, 0.1f},
    {2, 0, 0, 0, GlaDecay::kToken, true, false, -0.3f, 0.3f},
    {2, 0, 0, 0, GlaDecay::kToken, false, true, -60, 30},
    {2, 0, 0, 0, GlaDecay::kToken, true, true, -0.3f, 0.3f, 1, 1e-2f, true},
    {3, 0, 0, 0, GlaDecay::kHead, false, false, -0.03f, 0.02f},
    {3, 0, 0, 0, GlaDecay::kHead, true, true, -0.03f, 0.02f},
    {2, 0, 0, 0, GlaDecay::kNone, false, false},
    {2, 0, 0, 0, GlaDecay::kNone, false, true},
};

inline Ops gla_ops(std::mt19937_64& random) {
  Ops ops;
  for (const auto& [DK, DV, chunk] :
       {std::tuple{1, 1, 1}, {5, 7, 4}, {8, 12, 8}, {16, 32, 16}, {16, 70, 1}, {33, 70, 64}}) {
    for (GlaConfig c : kGlaKinds) {
      c.DK = DK;
      c.DV = DV;
      c.chunk = chunk;
      ops.push_back(gla_op(c, random));
    }
  }
  for (GlaConfig c : kGlaKinds) {  // tiles
    c.H = 2;
    c.DK = c.DV = c.chunk = 64;
    c.aligned = true;
    ops.push_back(gla_op(c, random));
  }
  // Tiles of more keys, two to a chunk, and of some columns of a head.
  for (const auto& [DK, DV, chunk] :
       {std::tuple{128, 64, 128}, {128, 192, 64}, {64, 128, 64}, {256, 64, 64}}) {
    for (const GlaDecay decay : {GlaDecay::kToken, GlaDecay::kChannel}) {
      GlaConfig c = {2, DK, DV, chunk, decay, true, false, -0.3f, 0.3f};
      c.aligned = true;
      ops.push_back(gla_op(c, random));
    }
  }
  return ops;
}

inline constexpr RnnCell kCells[] = {RnnCell::kElman, RnnCell::kLstm, RnnCell::kGru,
                                     RnnCell::kFlashGru, RnnCell::kSlstm};

inline Ops rnn_ops(std::mt19937_64& random) {
  Ops ops;
  for (const RnnCell cell : kCells) {
    for (const auto& [H, DH] : {std::pair{1, 1}, {1, 16}, {3, 5}, {4, 33}, {2, 70}}) {
      ops.push_back(rnn_op({cell, H, DH}, random));
    }
    ops.push_back(rnn_op({cell, 2, 8, false}, random));
    ops.push_back(rnn_op({cell, 2, 24, true, 0, DType::kBF16}, random));
    ops.push_back(rnn_op({cell, 2, 72, true, 0, DType::kBF16}, random));
  }
  ops.push_back(rnn_op({RnnCell::kSlstm, 3, 5, true, 1}, random));
  return ops;
}

inline Ops token_shift_ops(std::mt19937_64& random) {
  return {token_shift_op(1, random), token_shift_op(37, random), token_shift_op(64, random)};
}

inline Ops rwkv7_ops(std::mt19937_64&) {
  Ops ops;
  for (const auto& [N, chunk] :
       {std::pair{1, 1}, {5, 4}, {8, 8}, {16, 16}, {33, 64}, {64, 16}, {64, 64}}) {
    for (const Rwkv7Rows rows : {Rwkv7Rows::kUsual, Rwkv7Rows::kParallelKeys,
                                 Rwkv7Rows::kAtTheBound, Rwkv7Rows::kSlow, Rwkv7Rows::kZeroKeys}) {
      ops.push_back(rwkv7_op({2, N, chunk, rows, chunk == 64}));
    }
  }
  return ops;
}

inline Ops delta_ops(std::mt19937_64&) {
  Ops ops;
  for (const DeltaDecay decay : {DeltaDecay::kNone, DeltaDecay::kToken, DeltaDecay::kChannel}) {
    for (const auto& [HK, each, DK, DV, chunk] :
         {std::tuple{1, 1, 1, 1, 1}, {2, 2, 5, 7, 4}, {2, 1, 16, 33, 16}, {1, 1, 64, 70, 64}}) {
      ops.push_back(delta_rule_op({HK, each, DK, DV, chunk, decay}));
    }
    for (const DeltaRows rows : {DeltaRows::kParallelKeys, DeltaRows::kTwice, DeltaRows::kForgetful,
                                 DeltaRows::kSlow, DeltaRows::kZeroKeys, DeltaRows::kBetaZero}) {
      ops.push_back(delta_rule_op({2, 1, 8, 12, 8, decay, rows}));
    }
  }
  // What fills tiles, with more value heads to a key head than have room at once.
  for (const DeltaConfig& c : {DeltaConfig{2, 3, 64, 64, 64},
                               {4, 1, 128, 64, 64, DeltaDecay::kNone},
                               {1, 4, 256, 64, 64}}) {
    ops.push_back(delta_rule_op({c.HK, c.heads_each, c.DK, c.DV, c.chunk, c.decay, c.rows, true}));
  }
  return ops;
}

inline Ops rg_lru_ops(std::mt19937_64& random) {
  return {rg_lru_op(1, random), rg_lru_op(37, random), rg_lru_op(64, random)};
}

inline Ops ring_attention_ops(std::mt19937_64&) {
  Ops ops;
  for (const RingSize& size :
       {RingSize{1, 1, 1, 1}, {3, 1, 5, 4}, {4, 2, 8, 16}, {2, 2, 33, 21}, {2, 1, 16, 200}}) {
    ops.push_back(ring_attention_op(size));
  }
  return ops;
}

inline Ops large_gla_ops(std::mt19937_64& random) {
  Ops ops;
  for (const auto& [H, DK, DV] :
       {std::tuple{1, 64, 330}, {5, 64, 330}, {2, 128, 128}, {1, 256, 512}, {2, 530, 33}}) {
    const float scale = 1 / std::sqrt(static_cast<float>(DK));
    for (GlaConfig c : {GlaConfig{H, DK, DV, 32}, {H, DK, DV, 32, GlaDecay::kToken, true, true}}) {
      c.scale = scale;
      ops.push_back(gla_op(c, random));
    }
  }
  return ops;
}

inline Ops large_rnn_ops(std::mt19937_64& random) {
  Ops ops;
  for (const RnnCell cell : kCells) {
    ops.push_back(rnn_op({cell, 1, 132}, random));
    ops.push_back(rnn_op({cell, 5, 70, true, 0, DType::kBF16}, random));
    ops.push_back(rnn_op({cell, 3, 64, true, 0, DType::kBF16}, random));
    ops.push_back(rnn_op({cell, 1, 200, true, 0, DType::kBF16}, random));
  }
  // So many heads that a GPU's blocks have several groups of sequences in turn.
  ops.push_back(rnn_op({RnnCell::kSlstm, 64, 16, true, 0, DType::kBF16}, random));
  ops.push_back(rnn_op({RnnCell::kLstm, 1, 520}, random));
  ops.push_back(rnn_op({RnnCell::kLstm, 1, 520, true, 0, DType::kBF16}, random));
  ops.push_back(rnn_op({RnnCell::kElman, 1, 1032, true, 0, DType::kBF16}, random));
  ops.push_back(rnn_op({RnnCell::kLstm, 1, 768, true, 0, DType::kBF16}, random));
  return ops;
}

inline const std::vector<Family>& families() {
  using Random = std::mt19937_64;
  static const std::vector<Family> kFamilies = {
      {"conv", conv_ops,
       [](Random& r) {
         return Ops{conv_op({1030, 4}, r), conv_op({1028, 4, true, true, true}, r)};
       },
       nullptr},
      {"scan", scan_ops,
       [](Random& r) {
         return Ops{scan_op({500, 16, 32}, r), scan_op({37, 7, 64}, r),
                    scan_op({1024, 16, 64, true, -2, 2, 160, DType::kBF16, 0, true}, r)};
       },
       [](int chunk, Random& r) {
         return Ops{scan_op({40, 16, chunk}, r),
                    scan_op({64, 16, chunk, true, -2, 2, 32, DType::kBF16, 0, true}, r),
                    scan_op({128, 16, chunk, true, -2, 2, 160, DType::kBF16, 1e-3f, true}, r)};
       }},
      {"ssd", ssd_ops,
       [](Random& r) {
         return Ops{ssd_op({5, 40, 64, 1, 32}, r), ssd_op({1, 150, 64, 1, 32}, r),
                    ssd_op({2, 64, 128, 1, 64}, r),
                    ssd_op({2, 64, 128, 1, 64, 0, 1, -2, 2, true, true}, r)};
       },
       [](int chunk, Random& r) { return Ops{ssd_op({2, 16, 40, 1, chunk}, r)}; }},
      {"held_ssd", held_ssd_ops,
       [](Random& r) {
         return Ops{ssd_op(written_once_in(8, {5, 40, 64, 1, 32}), r),
                    ssd_op(written_once_in(8, {2, 64, 128, 1, 64, 0, 1, -2, 2, true, true}), r)};
       },
       [](int chunk, Random& r) {
         return Ops{ssd_op(written_once_in(4, {2, 16, 40, 1, chunk}), r),
                    ssd_op(written_once_in(8, {2, 16, 128, 1, chunk, 0, 1, -2, 2, true, true}), r)};
       },
       true},
      {"linear_recurrence", linear_recurrence_ops,
       [](Random&) { return Ops{linear_recurrence_op({3000, 32})}; }, nullptr},
      // With one head also by columns.
      {"mlstm", mlstm_ops,
       [](Random&) {
         return Ops{mlstm_op({1, 64, 330, 32}),
                    mlstm_op({2, 64, 330, 32}),
                    mlstm_op({5, 64, 330, 32}),
                    mlstm_op({2, 256, 512, 64}),
                    mlstm_op({5, 64, 512, 64, 15, 1e-6f, 0, 3, 3, 2, true}),
                    mlstm_op({2, 256, 512, 64, 15, 1e-6f, 0, 3, 3, 2, true})};
       },
       [](int chunk, Random&) { return Ops{mlstm_op({2, 16, 40, chunk})}; }},
      {"gla", gla_ops, large_gla_ops,
       [](int chunk, Random& r) {
         return Ops{gla_op({2, 16, 40, chunk}, r),
                    gla_op({2, 16, 40, chunk, GlaDecay::kToken, true, true}, r)};
       }},
      {"token_shift", token_shift_ops,
       [](Random& r) { return Ops{token_shift_op(3000, r), token_shift_op(1023, r)}; }, nullptr},
      {"rwkv7", rwkv7_ops,
       [](Random&) {
         return Ops{rwkv7_op({12, 64, 64, Rwkv7Rows::kUsual, true}), rwkv7_op({3, 70, 16})};
       },
       [](int chunk, Random&) {
         return Ops{rwkv7_op({2, 16, chunk}), rwkv7_op({1, 64, chunk, Rwkv7Rows::kUsual, true})};
       }},
      {"delta_rule", delta_ops,
       [](Random&) {
         return Ops{
             delta_rule_op({2, 2, 64, 130, 32}),
             delta_rule_op({1, 1, 128, 256, 64, DeltaDecay::kChannel}),
             delta_rule_op({3, 1, 40, 100, 16, DeltaDecay::kNone}),
             delta_rule_op({1, 2, 256, 96, 32, DeltaDecay::kToken, DeltaRows::kUsual, true}),
             delta_rule_op({2, 1, 64, 128, 64, DeltaDecay::kChannel, DeltaRows::kUsual, true}),
             delta_rule_op({1, 1, 128, 64, 8, DeltaDecay::kNone, DeltaRows::kUsual, true}),
             delta_rule_op({1, 2, 64, 128, 64, DeltaDecay::kToken, DeltaRows::kUsual, true}),
             delta_rule_op({2, 2, 128, 64, 128, DeltaDecay::kToken, DeltaRows::kUsual, true})};
       },
       [](int chunk, Random&) {
         return Ops{
             delta_rule_op({2, 1, 16, 40, chunk}),
             delta_rule_op({1, 2, 16, 70, chunk, DeltaDecay::kChannel}),
             delta_rule_op({1, 1, 128, 36, chunk, DeltaDecay::kToken, DeltaRows::kUsual, true})};
       }},
      {"rg_lru", rg_lru_ops, [](Random& r) { return Ops{rg_lru_op(2560, r), rg_lru_op(1023, r)}; },
       nullptr},
      {"ring_attention", ring_attention_ops,
       [](Random&) {
         return Ops{ring_attention_op({10, 1, 64, 32}), ring_attention_op({4, 2, 70, 9}),
                    ring_attention_op({12, 1, 256, 300, true}),
                    ring_attention_op({2, 2, 264, 130, true})};
       },
       nullptr},
      // With one head by channels, time step by time step.
      {"rnn", rnn_ops, large_rnn_ops, nullptr},
  };
  return kFamilies;
}

}  // namespace recurve::testing::recurrence_test
