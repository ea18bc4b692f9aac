#include "tests/bench/op_bench.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/support/golden.h"

namespace recurve::bench::op_bench_test {

namespace fs = std::filesystem;
using testing::golden_dir;

std::vector<ModelOptions> models() {
  std::vector<ModelOptions> found;
  for (const auto& entry : fs::recursive_directory_iterator(golden_dir())) {
    if (entry.path().filename() != "model.safetensors") continue;
    found.push_back({.model = entry.path().parent_path().string()});
  }
  return found;
}

// The ops of these models.
std::set<std::string> measured_ops(const std::string& device,
                                   const std::vector<ModelOptions>& models) {
  std::set<std::string> measured;
  const auto inner = make_backend(device, 1);
  WatchedBackend backend(*inner);
  for (const ModelOptions& options : models) {
    SCOPED_TRACE(options.model);
    const auto model = options.load(backend);
    OpBench bench(*model, backend, 2, 70);  // more than a page
    for (const OpCalls& op : bench.ops()) {
      EXPECT_GT(op.bytes, 0) << op.op;
      EXPECT_GT(bench.median_seconds(op, 0), 0) << op.op;
      measured.insert(op.op);
    }
  }
  return measured;
}

// What is measured of the models together is every op of the table.
TEST(OpBench, MeasuresEveryOp) {
  std::set<std::string> wanted;
  Kernels::for_each_op([&](const char* name, auto) { wanted.insert(name); });
  std::set<std::string> measured = measured_ops("cpu", models());
  // What the CPU does not do.
  ModelOptions held{.model = (golden_dir() / "mamba2/hf").string()};
  held.written_every = 2;
  measured.merge(measured_ops("reference", {held}));
  EXPECT_EQ(measured, wanted);
}

TEST(OpBench, CountsTheBytesThatAnOpCannotDoWithout) {
  const LinearArgs linear{.rows = 3, .W = {DType::kBF16, 8, 64}};
  EXPECT_EQ(cost_of(linear).bytes, 8 * 64 * 2 + 3 * (64 + 8) * 4);
  MlstmArgs mlstm{};
  mlstm.seqs = {.num_seqs = 5, .rows = 5};
  mlstm.H = 2, mlstm.DK = 4, mlstm.DV = 8;
  const int read_and_written = 2 * 4 * 5 * 2 * (4 * 8 + 4 + 1),
            rows = 4 * 5 * 2 * (4 + 4 + 8 + 2 + 8);
  EXPECT_EQ(cost_of(mlstm).bytes, read_and_written + rows);
}

// The calls noted are those of the time watched, and can be made again.
TEST(WatchedBackend, NotesCalls) {
  const auto reference = make_backend("reference");
  WatchedBackend backend(*reference);
  const auto stream = backend.make_stream();
  const Buffer values = backend.allocate(4 * sizeof(float));
  auto* x = values.as<float>();
  x[0] = 1;
  const auto add = [&] { backend.kernels().add({.count = 4, .a = x, .b = x, .y = x}, *stream); };
  add();
  const std::vector<OpCall> calls = WatchedBackend::calls_of([&] {
    add();
    add();
  });
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].op, "add");
  EXPECT_EQ(calls[0].implementation, "reference");
  EXPECT_EQ(x[0], 8);
  calls[1].run(*stream);
  EXPECT_EQ(x[0], 16);
}

// Keys and values are read up to the last row of each sequence; slot 0 has none.
TEST(WatchedBackend, CountsTheKeysThatAttentionReads) {
  const auto reference = make_backend("reference");
  WatchedBackend backend(*reference);
  const auto stream = backend.make_stream();
  constexpr int kRows = 4, kHeads = 2, kChannels = 8, kPages = 4;
  constexpr int64_t kHalf = kPageTokens * kChannels * 2;
  const std::vector<int32_t> begin{0, 1, 3, 4}, slot{1, 2, 0}, position{99, 4, 5, 70};
  const std::vector<int32_t> table{0, 0, 1, 2, 3, 0};
  const Buffer pages = backend.allocate(kPages * 2 * kHalf);
  const std::vector<float> q(kRows * kHeads * kChannels);
  std::vector<float> o(q.size());
  const PagedData keys{.data = pages.data(),
                       .dtype = DType::kBF16,
                       .page_bytes = 2 * kHalf,
                       .table = table.data(),
                       .most = 2,
                       .pages = kPages};
  PagedData values = keys;
  values.data = pages.data() + kHalf;
  const PagedAttentionArgs args{.seqs = {3, kRows, 2, begin.data(), slot.data()},
                                .H = kHeads,
                                .HK = 1,
                                .D = kChannels,
                                .scale = 1,
                                .q_stride = kHeads * kChannels,
                                .q = q.data(),
                                .position = position.data(),
                                .keys = keys,
                                .values = values,
                                .o = o.data()};
  const auto calls =
      WatchedBackend::calls_of([&] { backend.kernels().paged_attention(args, *stream); });
  ASSERT_EQ(calls.size(), 1u);
  const int rows = 4 * kRows * 2 * kHeads * kChannels;
  EXPECT_EQ(calls[0].cost.bytes, rows + (100 + 6) * 2 * kChannels * 2);
}

}  // namespace recurve::bench::op_bench_test
