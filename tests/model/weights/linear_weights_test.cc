#include "model/weights/linear_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <random>

#include "model/layers/host_matrix.h"
#include "model/weights/convert.h"
#include "tests/support/kernels/packed.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::linear_weights_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::normal_floats;
using testing::Packed;

// Memory of a device that copies only when it is waited for: the host side of an upload must stay
// as it is until then. Counts what is allocated.
class LateBackend : public Backend {
 public:
  struct LateStream : Stream {
    struct Job {
      void* to;
      const void* from;
      size_t bytes;
    };
    void wait() override {
      for (const Job& job : jobs) std::memcpy(job.to, job.from, job.bytes);
      jobs.clear();
    }
    std::vector<Job> jobs;
  };

  struct LateEvent : Event {
    void record(Stream& at) override { stream = &at; }
    void wait() override {
      if (stream != nullptr) stream->wait();
    }
    Stream* stream = nullptr;
  };

  explicit LateBackend(bool takes_transposed = false)
      : Backend("late", kernels_with(takes_transposed)) {}  // in every format
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<LateStream>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<LateEvent>(); }
  void upload(void* device, const void* host, size_t bytes, Stream& stream) override {
    static_cast<LateStream&>(stream).jobs.push_back({device, host, bytes});
  }
  void download(void* host, const void* device, size_t bytes, Stream&) override {
    std::memcpy(host, device, bytes);
  }
  void copy(void* to, const void* from, size_t bytes, Stream&) override {
    std::memcpy(to, from, bytes);
  }
  void zero(void* device, size_t bytes, Stream&) override { std::memset(device, 0, bytes); }

  static Kernels kernels_with(bool takes_transposed) {
    Kernels kernels;
    for (const WeightFormat* format : kWeightFormats) {
      if (takes_transposed) kernels.linear.transposed.insert(format);
      if (takes_transposed && format->packed()) kernels.linear.put({.format = format});
    }
    return kernels;
  }

  size_t allocated = 0;

 protected:
  std::byte* take_memory(size_t bytes) override {
    allocated += bytes;
    auto* memory = static_cast<std::byte*>(operator new(bytes, std::align_val_t(64)));
    std::memset(memory, 0, bytes);
    return memory;
  }
  void give_memory(std::byte* data, size_t) override {
    operator delete(data, std::align_val_t(64));
  }
};

class LinearWeightsTest : public ::testing::Test {
 protected:
  LinearWeightsTest() { write_file(dir_ / "config.json", "{}"); }
  Checkpoint open(const SafetensorsWriter& writer) {
    writer.write(dir_ / "model.safetensors");
    return Checkpoint::open(dir_.path());
  }
  std::vector<float> values(const Matrix& matrix) {
    std::vector<float> out;
    for (int64_t i = 0; i < matrix.N * matrix.K; ++i) {
      out.push_back(matrix.dtype == DType::kF32
                        ? static_cast<const float*>(matrix.data)[i]
                        : bf16_to_f32(static_cast<const uint16_t*>(matrix.data)[i]));
    }
    return out;
  }

  const TempDir dir_;
  LateBackend backend_;
};

// The order in the file is not the order asked for, and the types differ.
TEST_F(LinearWeightsTest, FusesByNameInTheOrderAsked) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Checkpoint checkpoint = open(SafetensorsWriter()
                                     .add_bf16("k", {1, 2}, {0x4040, 0x4080})  // 3 4
                                     .add_f32("i.bias", {1}, {0.1f})
                                     .add_f16("i", {1, 2}, {0x4500, 0x4600})  // 5 6
                                     .add_f32("q", {2, 2}, {1, 2, -1, -2}));
    const LinearWeights w = LinearWeights::load(backend_, checkpoint,
                                                {{"q", 2}, {"k", 1}, {"i", 1, "i.bias"}}, 2, dtype);
    EXPECT_THAT(values(w.matrix()), ::testing::Each(0)) << "before finish()";
    uint64_t last = 0, total = 0;
    checkpoint.finish([&](uint64_t done, uint64_t of) {
      EXPECT_GE(done, last);
      last = done;
      total = of;
    });
    EXPECT_EQ(last, total);
    EXPECT_EQ(total, 4u + 4u + 4u + 16u);
    EXPECT_EQ(w.matrix().N, 4);
    EXPECT_EQ(w.matrix().K, 2);
    EXPECT_EQ(w.matrix().dtype, dtype);
    EXPECT_THAT(values(w.matrix()), ElementsAre(1, 2, -1, -2, 3, 4, 5, 6));
    EXPECT_THAT(std::vector<float>(w.bias(), w.bias() + 4), ElementsAre(0, 0, 0, 0.1f));
    EXPECT_EQ(w.bytes(), 8 * size_of(dtype) + 16);
  }
}

TEST_F(LinearWeightsTest, RoundsNothingWhereTheTypeIsExact) {
  constexpr float kThird = 1.0f / 3;  // bf16 rounds it
  Checkpoint checkpoint = open(SafetensorsWriter()
                                   .add_f32("wide", {1, 2}, {kThird, 1})
                                   .add_bf16("narrow", {1, 2}, {0x4040, 0x4080})
                                   .add_f16("half", {1, 2}, {0x3c01, 0x4600}));
  const auto load = [&](const char* name, const OtherType& type) {
    return LinearWeights::load(backend_, checkpoint, {{name, 1}}, 2, type);
  };
  const OtherType exact(DType::kBF16, true);
  const LinearWeights wide = load("wide", exact), narrow = load("narrow", exact),
                      half = load("half", exact), rounded = load("wide", DType::kBF16);
  checkpoint.finish();
  EXPECT_THAT(values(wide.matrix()), ElementsAre(kThird, 1));
  EXPECT_EQ(narrow.matrix().dtype, DType::kBF16);
  EXPECT_THAT(values(narrow.matrix()), ElementsAre(3, 4));
  EXPECT_THAT(values(half.matrix()), ElementsAre(1 + 0x1p-10f, 6));
  EXPECT_EQ(rounded.matrix().dtype, DType::kBF16);
  EXPECT_THAT(values(HostMatrix(backend_, {kThird, 1}, 2, exact).matrix()), ElementsAre(kThird, 1));
  EXPECT_EQ(HostMatrix(backend_, {3, 4}, 2, exact).matrix().dtype, DType::kBF16);
}

TEST_F(LinearWeightsTest, CopiesMatricesOfManyStages) {
  const int64_t rows = 700, K = 10007;  // 7 million elements, not a multiple of anything
  std::vector<float> a(static_cast<size_t>(rows * K)), b(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i);
    b[i] = -static_cast<float>(i);
  }
  Checkpoint checkpoint =
      open(SafetensorsWriter().add_f32("a", {rows, K}, a).add_f32("b", {rows, K}, b));
  const LinearWeights w =
      LinearWeights::load(backend_, checkpoint, {{"b", rows}, {"a", rows}}, K, DType::kF32);
  const LinearWeights half =
      LinearWeights::load(backend_, checkpoint, {{"a", rows}}, K, DType::kBF16);
  checkpoint.finish();
  const auto* data = static_cast<const float*>(w.matrix().data);
  EXPECT_TRUE(std::equal(b.begin(), b.end(), data));
  EXPECT_TRUE(std::equal(a.begin(), a.end(), data + rows * K));
  const auto* bits = static_cast<const uint16_t*>(half.matrix().data);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(bits[i], f32_to_bf16(a[i])) << i;
}

// Parts become columns of one matrix, in pieces of rows; what is not meant for zeros does not.
TEST_F(LinearWeightsTest, TransposesWhatSparseInputIsMultipliedWithWhereThatIsTaken) {
  const int64_t K = 10007, N = 3 + 900;  // 9 million elements, not a multiple of anything
  std::vector<float> a(static_cast<size_t>(3 * K)), b(static_cast<size_t>(900 * K));
  for (size_t i = 0; i < a.size(); ++i) a[i] = -static_cast<float>(i);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i);
  Checkpoint checkpoint =
      open(SafetensorsWriter().add_f32("a", {3, K}, a).add_f32("b", {900, K}, b));
  LateBackend backend(true);
  const auto load = [&](Backend& with, DType type, bool sparse_input) {
    const WeightChoice choice = WeightFormats(type).linear;
    return LinearWeights::load(with, checkpoint, {{"a", 3}, {"b", 900}}, K,
                               sparse_input ? choice.with_sparse_input() : choice);
  };
  const LinearWeights f32 = load(backend, DType::kF32, true);
  const LinearWeights bf16 = load(backend, DType::kBF16, true);
  const LinearWeights rows = load(backend, DType::kBF16, false);
  const LinearWeights not_taken = load(backend_, DType::kBF16, true);
  checkpoint.finish();
  EXPECT_TRUE(f32.matrix().transposed && bf16.matrix().transposed);
  EXPECT_FALSE(rows.matrix().transposed || not_taken.matrix().transposed);
  EXPECT_EQ(f32.bytes(), static_cast<size_t>(N * K) * sizeof(float));
  const std::vector<float> by_row = values(rows.matrix());
  EXPECT_EQ(values(not_taken.matrix()), by_row);
  const std::vector<float> by_column = values(f32.matrix()), rounded = values(bf16.matrix());
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t k = 0; k < K; ++k) {
      const float value = n < 3 ? a[n * K + k] : b[(n - 3) * K + k];
      ASSERT_EQ(by_column[k * N + n], value) << n << ", " << k;
      ASSERT_EQ(rounded[k * N + n], by_row[n * K + k]) << n << ", " << k;
    }
  }
}

// From a file that is packed, whose bits stay, and from one that is not. Parts that do not fill the
// outputs of a byte stay rows.
TEST_F(LinearWeightsTest, TransposesPackedMatrices) {
  const int64_t N = 32 + 96, K = 100'000;  // pieces of 64 rows
  for (const WeightFormat* format : {&kInt8Weights, &kInt4Weights}) {
    std::mt19937_64 random(1);
    const Packed packed(*format, normal_floats(random, static_cast<size_t>(N * K)), N, K);
    const auto part = [&](const std::vector<std::byte>& all, int64_t first, int64_t rows) {
      const size_t row = all.size() / static_cast<size_t>(N);
      return std::string(reinterpret_cast<const char*>(all.data()) + first * row, rows * row);
    };
    SafetensorsWriter writer;
    const std::string name(format->name);
    const auto add = [&](const std::string& tensor, int64_t first, int64_t rows) {
      writer.add(tensor + "." + name, "U8", {rows, format->row_bytes(K)},
                 part(packed.data, first, rows));
      writer.add(tensor + "." + name + ".scales", "U8", {rows, format->row_scales(K)},
                 part(packed.scales, first, rows));
    };
    add("a", 0, 32);
    add("b", 32, 96);
    add("few", 0, 33);
    writer.add_f32("wide", {N, K}, packed.unpacked);
    Checkpoint checkpoint = open(writer);
    LateBackend backend(true);
    const WeightChoice choice = WeightFormats(*format, false).linear.with_sparse_input();
    const auto load = [&](const std::vector<LinearWeights::Part>& parts) {
      return LinearWeights::load(backend, checkpoint, parts, K, choice);
    };
    const LinearWeights whole = load({{"a", 32}, {"b", 96}}), few = load({{"few", 33}});
    const LinearWeights from_f32 = load({{"wide", N}});
    checkpoint.finish();
    EXPECT_TRUE(whole.matrix().transposed && from_f32.matrix().transposed);
    EXPECT_EQ(few.matrix().transposed, format->outputs_together == 1);

    Packed columns = packed;
    const auto is_transposed = [&](const LinearWeights& w, const Packed& rows) {
      format->transpose(rows.data.data(), rows.scales.data(), N, K, columns.data.data(),
                        columns.scales.data());
      return std::memcmp(w.matrix().data, columns.data.data(), columns.data.size()) == 0 &&
             std::memcmp(w.matrix().scales, columns.scales.data(), columns.scales.size()) == 0;
    };
    EXPECT_TRUE(is_transposed(whole, packed));
    EXPECT_TRUE(is_transposed(from_f32, Packed(*format, packed.unpacked, N, K)));
  }
}

TEST_F(LinearWeightsTest, AllocatesNothingOnceSomethingDoesNotFit) {
  Checkpoint checkpoint = open(SafetensorsWriter().add_f32("a", {1, 2}, {1, 2}));
  const LinearWeights huge = LinearWeights::load(backend_, checkpoint, {{"a", int64_t{1} << 40}},
                                                 int64_t{1} << 20, DType::kF32);
  const LinearWeights fits = LinearWeights::load(backend_, checkpoint, {{"a", 1}}, 2, DType::kF32);
  const VectorWeights gone = VectorWeights::load(backend_, checkpoint, "v", {{3}});
  EXPECT_EQ(backend_.allocated, 0u);
  EXPECT_EQ(huge.matrix().data, nullptr);
  EXPECT_EQ(huge.bias(), nullptr);
  EXPECT_THAT(error_of([&] { checkpoint.finish(); }),
              ::testing::AllOf(HasSubstr("wanted F32, F16 or BF16 [1099511627776, 1048576], found "
                                         "F32 [1, 2]"),
                               HasSubstr("tensor \"v\"")));
}

TEST_F(LinearWeightsTest, LoadsVectorsAsFp32) {
  Checkpoint checkpoint = open(SafetensorsWriter().add_bf16("v", {2, 2}, {0x3f80, 0, 0xbf80, 0}));
  const VectorWeights v = VectorWeights::load(backend_, checkpoint, "v", {{4}, {2, 2}});
  const VectorWeights own = VectorWeights::from(backend_, {1, 2, 3});
  checkpoint.finish();
  EXPECT_THAT(std::vector<float>(v.data(), v.data() + v.size()), ElementsAre(1, 0, -1, 0));
  EXPECT_THAT(std::vector<float>(own.data(), own.data() + own.size()), ElementsAre(1, 2, 3));
}

TEST_F(LinearWeightsTest, LoadsRandomWeights) {
  Checkpoint checkpoint = Checkpoint::random(nlohmann::json::object(), 3);
  const LinearWeights w = LinearWeights::load(backend_, checkpoint,
                                              {{"a", 30, "a.bias"}, {"b", 20}}, 400, DType::kBF16);
  checkpoint.finish();
  double squares = 0;
  for (const float v : values(w.matrix())) squares += static_cast<double>(v) * v;
  EXPECT_NEAR(squares / 50, 1, 0.05);  // so a unit input gives outputs of about 1
}

// Weights that are used in place. The file has "w", 4 x 64 in int4, and "b", 2 x 32 in bf16.
class MappedWeightsTest : public LinearWeightsTest {
 protected:
  // first: bytes of a tensor in front of the others.
  Checkpoint open_mapped(size_t first = 64) {
    std::string data(size_t{4} * 32, '\0'), scales(size_t{4} * 4, '\x3f');
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(7 * i);
    Checkpoint checkpoint =
        open(SafetensorsWriter()
                 .align(64)
                 .add("first", "U8", {static_cast<int64_t>(first)}, std::string(first, '\0'))
                 .add("w.int4", "U8", {4, 32}, data)
                 .add("w.int4.scales", "BF16", {4, 1, 2}, scales)
                 .add("second", "U8", {48}, std::string(48, '\0'))
                 .add_bf16("b", {2, 32}, std::vector<uint16_t>(64, 0x3f80)));
    checkpoint.map_weights();
    checkpoint.allow_extra({"first", "second", "b"});
    return checkpoint;
  }
  static LinearWeights load_w(Backend& backend, Checkpoint& checkpoint,
                              const WeightFormats& formats = WeightFormats::named("auto")) {
    return LinearWeights::load(backend, checkpoint, {{"w", 4}}, 64, formats.linear);
  }

  const std::unique_ptr<Backend> host_ = make_backend("reference");
};

TEST_F(MappedWeightsTest, AreTheBytesOfTheFileAndOutliveTheCheckpoint) {
  std::optional<Checkpoint> checkpoint = open_mapped();
  const std::byte* const there = checkpoint->find("w.int4")->data;
  const LinearWeights w = load_w(*host_, *checkpoint);
  const LinearWeights b = LinearWeights::load(*host_, *checkpoint, {{"b", 2}}, 32, DType::kBF16);
  uint64_t read = 0;
  checkpoint->finish([&](uint64_t done, uint64_t) { read = done; });
  EXPECT_EQ(w.matrix().data, there);
  EXPECT_EQ(host_->allocated(), 0u);
  EXPECT_EQ(checkpoint->mapped_bytes(), 4 * 32 + 16 + 128u);
  EXPECT_EQ(read, checkpoint->mapped_bytes());
  EXPECT_EQ(w.bytes() + b.bytes(), checkpoint->mapped_bytes());
  EXPECT_EQ(checkpoint->weight_formats(), "int4");
  const std::string fingerprint = checkpoint->fingerprint();
  checkpoint.reset();
  EXPECT_THAT(values(b.matrix()), ::testing::Each(1));

  Checkpoint other = open_mapped(8);  // where nothing is in place
  const LinearWeights copied = load_w(*host_, other);
  const LinearWeights of_b = LinearWeights::load(*host_, other, {{"b", 2}}, 32, DType::kBF16);
  other.finish();
  EXPECT_EQ(other.mapped_bytes(), 0u);
  EXPECT_EQ(other.fingerprint(), fingerprint);
}

TEST_F(MappedWeightsTest, AreCopiedToDevicesAndWhereTheFileHasOtherRows) {
  const auto mapped_bytes = [&](const auto& load) {
    Checkpoint checkpoint = open_mapped();
    load(checkpoint);
    return checkpoint.mapped_bytes();
  };
  EXPECT_GT(mapped_bytes([&](Checkpoint& c) { load_w(*host_, c); }), 0u);
  EXPECT_EQ(mapped_bytes([&](Checkpoint& c) { load_w(*host_, c, WeightFormats::named("f32")); }),
            0u);
  for (Backend* backend : {static_cast<Backend*>(&backend_), host_.get()}) {
    const size_t found = mapped_bytes(
        [&](Checkpoint& c) { LinearWeights::load(*backend, c, {{"b", 2}}, 32, DType::kBF16); });
    EXPECT_EQ(found, backend == host_.get() ? 128u : 0u);
  }
  EXPECT_EQ(mapped_bytes([&](Checkpoint& c) {
              LinearWeights::Part transposed("b", 2);
              transposed.order = {{1, 1}, {0, 1}};
              LinearWeights::load(*host_, c, {transposed}, 32, DType::kBF16);
            }),
            0u);
}

TEST_F(MappedWeightsTest, KnowTheirFileByAnAddress) {
  std::optional<Checkpoint> checkpoint = open_mapped();
  const std::byte* const there = checkpoint->find("b")->data;
  EXPECT_STREQ(MappedFile::path_at(there), (dir_ / "model.safetensors").c_str());
  EXPECT_EQ(MappedFile::path_at(this), nullptr);
  checkpoint.reset();
  EXPECT_EQ(MappedFile::path_at(there), nullptr);
}

size_t resident_file_pages_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0, resident = 0, shared = 0;
  statm >> total >> resident >> shared;
  return shared * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// The weights must not be resident twice, as mapped file and as copy.
TEST_F(LinearWeightsTest, LetsGoOfTheFileBehindTheCopies) {
  const int64_t rows = 6, K = 4 << 20;  // 96 MiB in 6 tensors' worth of rows
  Checkpoint checkpoint =
      open(SafetensorsWriter().add("a", "F32", {rows, K}, std::string(rows * K * 4, '\1')));
  const LinearWeights w = LinearWeights::load(backend_, checkpoint, {{"a", rows}}, K, DType::kBF16);
  const size_t before = resident_file_pages_bytes();
  size_t most = before;
  checkpoint.finish(
      [&](uint64_t, uint64_t) { most = std::max(most, resident_file_pages_bytes()); });
  EXPECT_LT(most - before, 24u << 20);
}

}  // namespace recurve::linear_weights_test
