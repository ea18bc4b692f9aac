#include "model/weights/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "kernels/host.h"
#include "kernels/weight_format.h"
#include "model/weights/safetensors.h"

namespace recurve {
namespace {

constexpr int64_t kPieceElements = 8 << 20;     // between releases of the source: 16 or 32 MiB
constexpr int64_t kThreadElements = 512 << 10;  // worth a thread
constexpr int64_t kThreadPacked = 64 << 10;     // worth one where values are packed too

template <typename T>
T load(const std::byte* from) {  // of any alignment
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// What the elements of a tensor are read with: index -> float.
struct ReadF32 {
  const std::byte* data;
  float operator()(int64_t i) const { return load<float>(data + 4 * i); }
};
struct ReadF16 {
  const std::byte* data;
  float operator()(int64_t i) const { return f16_to_f32(load<uint16_t>(data + 2 * i)); }
};
struct ReadBF16 {
  const std::byte* data;
  float operator()(int64_t i) const { return bf16_to_f32(load<uint16_t>(data + 2 * i)); }
};

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Approximately normal: the sum of four uniform 16-bit numbers, moved and scaled.
struct Generate {
  GeneratedValues values;
  float operator()(int64_t i) const {
    constexpr float kMean = 2 * 65535.0f;
    constexpr float kStddev = 37837.23f;  // sqrt(4 * (65536^2 - 1) / 12)
    const uint64_t r = mix(values.seed + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15);
    const auto sum =
        static_cast<int32_t>((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48));
    return values.mean + values.stddev * ((static_cast<float>(sum) - kMean) / kStddev);
  }
};

template <typename Read>
void write_as(const Read& read, int64_t begin, int64_t end, DType to, std::byte* out) {
  if (to == DType::kF32) {
    for (int64_t i = begin; i < end; ++i) {
      const float value = read(i);
      std::memcpy(out + 4 * (i - begin), &value, 4);
    }
  } else {
    for (int64_t i = begin; i < end; ++i) {
      const uint16_t value = f32_to_bf16(read(i));
      std::memcpy(out + 2 * (i - begin), &value, 2);
    }
  }
}

// False if the file cannot be read.
bool convert_on_this_thread(const TensorView& view, int64_t begin, int64_t end, DType to,
                            std::byte* out) {
  const auto size = static_cast<int64_t>(size_of(view.type));
  if (view.generated) {
    write_as(Generate{*view.generated}, begin, end, to, out);
  } else if (keeps_bytes(view.type, to)) {  // also keeps every NaN as it is
    return view.file->mapping().read(view.data + size * begin,
                                     static_cast<size_t>(size * (end - begin)), out);
  } else if (view.type == StoredType::kF32) {
    write_as(ReadF32{view.data}, begin, end, to, out);
  } else if (view.type == StoredType::kF16) {
    write_as(ReadF16{view.data}, begin, end, to, out);
  } else {
    write_as(ReadBF16{view.data}, begin, end, to, out);
  }
  return true;
}

// Calls share(from, to) for shares of [begin, end), where `worth` items are worth a thread. False
// if one of them was.
template <typename Share>
bool on_threads(int64_t begin, int64_t end, int64_t worth, const Share& share) {
  static const int64_t cores = std::min(host_threads(), 16);
  const int64_t threads = std::min(cores, (end - begin + worth - 1) / worth);
  const int64_t size = (end - begin + threads - 1) / std::max<int64_t>(threads, 1);
  std::atomic<bool> ok = true;
  {
    std::vector<std::jthread> others;
    for (int64_t from = begin + size; from < end; from += size) {
      others.emplace_back([=, &share, &ok] {
        if (!share(from, std::min(from + size, end))) ok = false;
      });
    }
    if (!share(begin, std::min(begin + size, end))) ok = false;
  }
  return ok;
}

bool convert_on_threads(const TensorView& view, int64_t begin, int64_t end, DType to,
                        std::byte* out) {
  return on_threads(begin, end, kThreadElements, [&](int64_t from, int64_t until) {
    return convert_on_this_thread(view, from, until, to,
                                  out + (from - begin) * static_cast<int64_t>(size_of(to)));
  });
}

bool read_bytes(const TensorView& view, int64_t begin, int64_t bytes, std::byte* out) {
  return view.file->mapping().read(view.data + begin, static_cast<size_t>(bytes), out);
}

// Reads rows of a stored matrix in fp32, one after the other.
class RowReader {
 public:
  explicit RowReader(const StoredMatrix& matrix)
      : matrix_(matrix), row_(static_cast<size_t>(matrix.K)) {
    if (matrix.format == nullptr) return;
    data_.resize(static_cast<size_t>(matrix.format->row_bytes(matrix.K)));
    scales_.resize(static_cast<size_t>(matrix.format->row_scales(matrix.K)));
  }

  // (K), until the next call; null if the file cannot be read.
  const float* read(int64_t row) {
    const int64_t K = matrix_.K;
    if (matrix_.format == nullptr) {
      auto* out = reinterpret_cast<std::byte*>(row_.data());
      const bool ok =
          convert_on_this_thread(matrix_.values, row * K, (row + 1) * K, DType::kF32, out);
      return ok ? row_.data() : nullptr;
    }
    const auto data = static_cast<int64_t>(data_.size());
    const auto scales = static_cast<int64_t>(scales_.size());
    if (!read_bytes(matrix_.values, row * data, data, data_.data()) ||
        !read_bytes(matrix_.scales, row * scales, scales, scales_.data())) {
      return nullptr;
    }
    matrix_.format->unpack(data_.data(), scales_.data(), K, row_.data());
    return row_.data();
  }

 private:
  const StoredMatrix& matrix_;
  std::vector<float> row_;
  std::vector<std::byte> data_, scales_;
};

void release(const TensorView& view, int64_t begin, int64_t end) {
  if (view.file == nullptr || !view.present()) return;
  const size_t size = size_of(view.type);
  view.file->mapping().release(view.data + static_cast<size_t>(begin) * size,
                               static_cast<size_t>(end - begin) * size);
}

[[noreturn]] void cannot_read(const TensorView& view) {
  view.file->mapping().check_still_whole();
  throw std::runtime_error(
      fmt::format("{}: tensor {}: the file could not be read", view.path(), in_quotes(view.name)));
}

}  // namespace

bool keeps_bytes(StoredType from, DType to) {
  return (from == StoredType::kF32 && to == DType::kF32) ||
         (from == StoredType::kBF16 && to == DType::kBF16);
}

float f16_to_f32(uint16_t bits) {
  constexpr uint32_t kRebias = (127 - 15) << 23;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits & 0x7c00;
  const uint32_t mantissa = bits & 0x03ff;
  uint32_t magnitude = (static_cast<uint32_t>(bits & 0x7fff) << 13) + kRebias;
  if (exponent == 0x7c00) magnitude += kRebias;  // infinity and NaN: the largest exponent again
  if (exponent == 0) {                           // zero and subnormals: a multiple of 2^-24
    magnitude = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | magnitude);
}

void convert_elements(const TensorView& view, int64_t begin, int64_t end, DType to,
                      std::byte* out) {
  CHECK(view.present() && is_weight_type(view.type));
  CHECK(to == DType::kF32 || to == DType::kBF16);
  CHECK(0 <= begin && begin <= end && end <= view.count());
  for (int64_t at = begin; at < end; at += kPieceElements) {
    const int64_t stop = std::min(at + kPieceElements, end);
    if (view.file != nullptr) view.file->mapping().check_still_whole();
    std::byte* piece = out + (at - begin) * static_cast<int64_t>(size_of(to));
    if (!convert_on_threads(view, at, stop, to, piece)) cannot_read(view);
    release(view, at, stop);
  }
}

void copy_stored(const TensorView& view, int64_t begin, int64_t end, std::byte* out) {
  CHECK(view.file != nullptr && 0 <= begin && begin <= end && end <= view.count());
  view.file->mapping().check_still_whole();
  const auto size = static_cast<int64_t>(size_of(view.type));
  if (!read_bytes(view, begin * size, (end - begin) * size, out)) cannot_read(view);
  release(view, begin, end);
}

void convert_matrix(const StoredMatrix& matrix, int64_t begin, int64_t end, const WeightFormat& to,
                    std::byte* data, std::byte* scales) {
  const TensorView& values = matrix.values;
  CHECK(values.present() && 0 <= begin && begin <= end && end <= values.rows());
  const auto elements_of_row = [](const TensorView& view) {
    return view.rows() == 0 || !view.present() ? 0 : view.count() / view.rows();
  };
  if (matrix.format == &to) {  // packed again it would not be quite the same
    const auto copy = [&](const TensorView& view, std::byte* out) {
      const int64_t row = elements_of_row(view);
      if (row > 0) copy_stored(view, begin * row, end * row, out);
    };
    copy(values, data);
    return copy(matrix.scales, scales);
  }
  if (values.file != nullptr) values.file->mapping().check_still_whole();
  const int64_t K = matrix.K;
  const bool ok = on_threads(begin, end, kThreadPacked / std::max<int64_t>(K, 1) + 1,
                             [&](int64_t from, int64_t until) {
                               RowReader reader(matrix);
                               for (int64_t row = from; row < until; ++row) {
                                 const float* source = reader.read(row);
                                 if (source == nullptr) return false;
                                 to.pack(source, K, data + (row - begin) * to.row_bytes(K),
                                         scales + (row - begin) * to.row_scales(K));
                               }
                               return true;
                             });
  if (!ok) cannot_read(values);
  for (const TensorView* view : {&values, &matrix.scales}) {
    const int64_t row = elements_of_row(*view);
    release(*view, begin * row, end * row);
  }
}

void convert(const TensorView& view, DType to, std::byte* out) {
  convert_elements(view, 0, view.count(), to, out);
}

bool same_values(const TensorView& one, const TensorView& other) {
  if (one.type != other.type || one.shape != other.shape) return false;
  const auto piece = static_cast<size_t>(std::min(one.count(), kPieceElements));
  std::vector<uint32_t> a(piece), b(piece);  // the bits of fp32 values
  for (int64_t at = 0; at < one.count(); at += kPieceElements) {
    const int64_t end = std::min(at + kPieceElements, one.count());
    convert_elements(one, at, end, DType::kF32, reinterpret_cast<std::byte*>(a.data()));
    convert_elements(other, at, end, DType::kF32, reinterpret_cast<std::byte*>(b.data()));
    if (!std::equal(a.begin(), a.begin() + (end - at), b.begin())) return false;
  }
  return true;
}

std::vector<float> host_values(const TensorView& view) {
  if (!view.present()) return {};
  std::vector<float> values(static_cast<size_t>(view.count()));
  convert(view, DType::kF32, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

}  // namespace recurve
