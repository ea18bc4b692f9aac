// Initial states: those that BlinkDL's package computes with, and files that are refused.
#include "server/startup/initial_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "server/session/state_transfer.h"
#include "tests/support/engine/model_runner.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::initial_states_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kTolerance = 2e-5;  // fp32 against fp64, as for all golden checkpoints
const ModelCase kModel{"rwkv7/one_head", DType::kF32};

std::filesystem::path tuned_dir() { return golden_dir() / "rwkv7_tuned"; }

StateHeader identity_of(const StateLayout& layout) {
  return {.model = "m", .weights = "f32", .chunk = 64, .layout = layout, .vocab = 97};
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class TunedStateOn : public ::testing::TestWithParam<std::string> {};

TEST_P(TunedStateOn, GivesWhatTheRwkvPackageGives) {
  if (const std::string why = why_unusable(kModel, GetParam()); !why.empty()) GTEST_SKIP() << why;
  ModelRunner runner(kModel, GetParam());
  const std::string path = tuned_dir() / "initial_state.safetensors";
  const auto states =
      load_initial_states({{.name = "tuned", .path = path}}, identity_of(runner.pool().layout()));
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0]->id.name, "tuned");
  EXPECT_EQ(states[0]->position, 1);
  EXPECT_EQ(states[0]->bytes, static_cast<int64_t>(runner.pool().layout().bytes()));
  const StateSlot slot = *runner.pool().acquire_unset();
  runner.pool().load(snapshot_of(*states[0]).image, slot);
  runner.pool().wait_until_ready(slot);
  const Golden golden(tuned_dir() / "golden.safetensors");
  const std::vector<float> got = runner.forward({{&slot, golden.ids("tokens")}}),
                           want = golden.floats("logits");
  ASSERT_EQ(got.size(), want.size());
  double largest = 0, difference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << i;
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    difference = std::max(difference, std::abs(static_cast<double>(got[i]) - want[i]));
  }
  EXPECT_LE(difference, kTolerance * largest);
}

INSTANTIATE_TEST_SUITE_P(Devices, TunedStateOn, ::testing::ValuesIn(all_devices()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, ':', '_');
                           return name;
                         });

// A layout of two layers with a matrix and a vector.
StateLayout small_layout() {
  StateLayout layout;
  for (int layer = 0; layer < 2; ++layer) {
    layout.arrays.push_back({.name = "S", .layer = layer, .shape = {2, 3}});
    layout.arrays.push_back({.name = "shift", .layer = layer, .shape = {4}});
  }
  return layout;
}

std::string refusal_of(const std::filesystem::path& path, const StateLayout& layout) {
  const std::vector<NamedPath> files = {{.name = "x", .path = path}};
  try {
    plan_initial_states(files, layout, 97);
    load_initial_states(files, identity_of(layout));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(InitialStates, WhatAFileLacksIsZero) {
  const TempDir dir;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  SafetensorsWriter().add_f32("layers.1.S", {2, 3}, values).write(dir / "x");
  const auto states =
      load_initial_states({{.name = "x", .path = dir / "x"}}, identity_of(small_layout()));
  std::vector<float> all(20);
  const StatePiece& piece = snapshot_of(*states[0]).image->front();
  ASSERT_EQ(piece.bytes, all.size() * sizeof(float));
  std::memcpy(all.data(), piece.data.get(), piece.bytes);
  std::vector<float> want(20);
  std::ranges::copy(values, want.begin() + 10);
  EXPECT_EQ(all, want);
}

TEST(InitialStates, OthersAreRefusedByName) {
  const TempDir dir;
  const std::filesystem::path x = dir / "x";
  EXPECT_THAT(refusal_of(x, small_layout()), HasSubstr("--initial-state x="));
  SafetensorsWriter().add_f32("layers.0.S", {3, 2}, std::vector<float>(6)).write(x);
  EXPECT_THAT(refusal_of(x, small_layout()),
              AllOf(HasSubstr("layers.0.S has the shape [3, 2]"), HasSubstr("[2, 3]")));
  SafetensorsWriter().add_f32("layers.2.S", {2, 3}, std::vector<float>(6)).write(x);
  EXPECT_THAT(refusal_of(x, small_layout()), HasSubstr("layers.2.S is no array of this model"));
  SafetensorsWriter().add_f32("layers.0.S", {2, 3}, {1, 2, NAN, 4, 5, 6}).write(x);
  EXPECT_THAT(refusal_of(x, small_layout()), HasSubstr("finite"));
  SafetensorsWriter().add_f32("layers.0.S", {100, 300}, std::vector<float>(30'000)).write(x);
  EXPECT_THAT(refusal_of(x, small_layout()), HasSubstr("at most"));
  std::ofstream(x, std::ios::binary) << "no state at all";
  EXPECT_THAT(refusal_of(x, small_layout()), HasSubstr("--initial-state x="));
  StateLayout counted = small_layout();
  counted.arrays.push_back(
      {.name = "position", .dtype = DType::kI32, .shape = {1}, .values = StateValues::kPosition});
  SafetensorsWriter().add_f32("layers.0.S", {2, 3}, std::vector<float>(6)).write(x);
  EXPECT_THAT(refusal_of(x, counted), HasSubstr("give an exported session"));
}

// An exported session whose model, position or bytes are other ones.
TEST(InitialStates, ExportedOnesAreCheckedBeforeMemoryIsTaken) {
  const TempDir dir;
  const std::filesystem::path x = dir / "x";
  const auto write = [&](StateHeader header, size_t cut = 0) {
    const NewImage made = make_image(header.layout, 5);
    for (const auto& room : made.rooms) std::ranges::fill(room, std::byte{0});
    const auto source = source_of(std::move(header), made.image);
    std::string bytes(source->bytes(), '\0');
    source->read(0, bytes);
    bytes.resize(bytes.size() - cut);
    std::ofstream(x, std::ios::binary) << bytes;
  };
  StateHeader header = identity_of(small_layout());
  header.position = 5;
  write(header);
  EXPECT_EQ(refusal_of(x, small_layout()), "");
  EXPECT_EQ(load_initial_states({{.name = "x", .path = x}}, identity_of(small_layout()))
                .front()
                ->position,
            5);
  write(header, 1);
  EXPECT_THAT(refusal_of(x, small_layout()), HasSubstr("--initial-state x="));
  StateHeader other = header;
  other.model = "another";
  write(other);
  EXPECT_THAT(refusal_of(x, small_layout()), HasSubstr("model"));
  other = header;
  other.layout.arrays[0].shape = {2, 4};
  write(other);
  EXPECT_NE(refusal_of(x, small_layout()), "");
  write(header);
  std::string bytes = bytes_of(x);
  bytes[bytes.size() - 3] ^= 1;
  std::ofstream(x, std::ios::binary) << bytes;
  EXPECT_THAT(refusal_of(x, small_layout()), HasSubstr("checksum"));
}

}  // namespace recurve::testing::initial_states_test
