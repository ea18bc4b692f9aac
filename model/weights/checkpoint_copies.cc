// The copies of Checkpoint::finish(): from the files, through a few buffers on the host, to memory
// of a backend.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <span>

#include "kernels/backend.h"
#include "model/weights/checkpoint.h"
#include "model/weights/convert.h"

namespace recurve {
namespace {

constexpr int64_t kStageElements = 8 << 20;                     // 16 or 32 MiB a buffer
static_assert(2 * kStageElements % TensorHashes::kBlock == 0);  // buffers are whole blocks
constexpr size_t kWorthAThread = 1 << 20;                       // bytes to hash
constexpr size_t kMeasuredCopy = 4 << 20;                       // bytes of a copy worth measuring

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Those of elements [begin, end) among the tensor's.
std::span<Hash128> blocks_of(std::span<Hash128> all, const TensorView& view, int64_t begin,
                             int64_t end) {
  if (all.empty()) return {};
  const size_t size = size_of(view.type), block = TensorHashes::kBlock;
  const size_t first = static_cast<size_t>(begin) * size / block;
  return all.subspan(first, (static_cast<size_t>(end) * size + block - 1) / block - first);
}

// Hashes the elements [begin, end), which begin and end with blocks or with the tensor. Nothing if
// there are no blocks.
void hash_stored(const TensorView& view, int64_t begin, int64_t end, std::span<Hash128> blocks) {
  if (blocks.empty()) return;
  const size_t size = size_of(view.type), first = static_cast<size_t>(begin) * size;
  const std::span bytes(view.data + first, static_cast<size_t>(end - begin) * size);
  view.file->mapping().check_still_whole();
  hash_blocks(bytes, blocks);
  view.file->mapping().release(bytes.data(), bytes.size());
}

// The whole of a tensor, in pieces. report: called with the bytes of each piece.
template <typename Report>
void hash_whole(const TensorView& view, TensorHashes& hashes, const Report& report) {
  if (view.file == nullptr) return;
  const std::span<Hash128> blocks = hashes.add(view);
  for (int64_t begin = 0; begin < view.count(); begin += kStageElements) {
    const int64_t end = std::min(begin + kStageElements, view.count());
    hash_stored(view, begin, end, blocks_of(blocks, view, begin, end));
    report(static_cast<uint64_t>(end - begin) * size_of(view.type));
  }
}
void hash_whole(const TensorView& view, TensorHashes& hashes) {
  hash_whole(view, hashes, [](uint64_t) {});
}

// A tensor that is used in place.
template <typename Report>
void hash_mapped(const TensorView& view, TensorHashes& hashes, Checkpoint::Times& times,
                 const Report& report) {
  const Clock::time_point began = Clock::now();
  hash_whole(view, hashes, report);
  view.file->mapping().expect_reuse(view.data, view.bytes);
  times.reading += seconds_since(began);
  times.bytes += view.bytes;
}

// Bytes of an element that is copied as `to`, or as it is stored.
size_t element_bytes(const TensorView& from, DType to) {
  return to == DType::kPacked ? size_of(from.type) : size_of(to);
}

// Rows of a matrix that are packed at once.
int64_t rows_of_piece(const StoredMatrix& matrix, const WeightFormat& to) {
  const int64_t rows = kStageElements / std::max<int64_t>(matrix.K, 1);
  return std::max<int64_t>(rows / to.outputs_together, 1) * to.outputs_together;
}

// While one buffer is filled, the others are on their way to the device.
class Stage {
 public:
  // buffer_bytes: of the largest piece.
  Stage(Backend& backend, size_t buffer_bytes)
      : backend_(&backend),
        stream_(backend.make_stream()),
        buffers_{StagingBuffer(backend, buffer_bytes), StagingBuffer(backend, buffer_bytes),
                 StagingBuffer(backend, buffer_bytes)} {}
  ~Stage() {
    try {
      stream_->wait();  // the device may still be reading the buffers
    } catch (...) {     // only reached while another error is on its way
    }
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  Backend* backend() const { return backend_; }
  void wait() {
    stream_->wait();
    for (StagingBuffer& buffer : buffers_) buffer.wait();
  }

  // A tensor, element by element. device: (from.count()) of `to`. report: called with the bytes
  // that were read of each piece.
  template <typename Report>
  void send_tensor(const TensorView& from, DType to, std::byte* device, std::span<Hash128> blocks,
                   Checkpoint::Times& times, const Report& report) {
    const int64_t count = from.count();
    for (int64_t begin = 0; begin < count; begin += kStageElements) {
      const int64_t end = std::min(begin + kStageElements, count);
      send(from, begin, end, to, device + static_cast<size_t>(begin) * element_bytes(from, to),
           blocks_of(blocks, from, begin, end), times);
      report(static_cast<uint64_t>(end - begin) * size_of(from.type));
    }
  }

  // A matrix, row by row.
  template <typename Report>
  void send_matrix(const StoredMatrix& from, const WeightFormat& to, std::byte* data,
                   std::byte* scales, Checkpoint::Times& times, const Report& report) {
    for_pieces(from, to, report, [&](int64_t begin, int64_t end) {
      send_rows(from, begin, end, to, data + begin * to.row_bytes(from.K),
                scales + begin * to.row_scales(from.K), times);
    });
  }

  // The same to the outputs from `first` on of a transposed matrix with so many.
  template <typename Report>
  void transpose_matrix(const StoredMatrix& from, const WeightFormat& to, std::byte* data,
                        std::byte* scales, int64_t first, int64_t outputs, Checkpoint::Times& times,
                        const Report& report) {
    for_pieces(from, to, report, [&](int64_t begin, int64_t end) {
      transpose_rows(from, begin, end, to, data + to.column_bytes(first + begin),
                     scales + (first + begin) * to.group_scale, outputs, times);
    });
  }

 private:
  // send(begin, end) of a matrix's rows.
  template <typename Report, typename Send>
  static void for_pieces(const StoredMatrix& from, const WeightFormat& to, const Report& report,
                         const Send& send) {
    const int64_t rows = from.values.rows(), step = rows_of_piece(from, to);
    const auto row = from.values.bytes / static_cast<uint64_t>(std::max<int64_t>(rows, 1));
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t end = std::min(begin + step, rows);
      send(begin, end);
      report(static_cast<uint64_t>(end - begin) * row);
    }
  }

  // Elements [begin, end) of the tensor, at most kStageElements. device: where they go. blocks:
  // where the hashes of what is stored there go, complete after wait(); or empty.
  void send(const TensorView& from, int64_t begin, int64_t end, DType to, std::byte* device,
            std::span<Hash128> blocks, Checkpoint::Times& times) {
    StagingBuffer& buffer = next_buffer();
    const size_t bytes = static_cast<size_t>(end - begin) * element_bytes(from, to);
    const bool as_stored = to == DType::kPacked || keeps_bytes(from.type, to);
    if (!as_stored) hash_stored(from, begin, end, blocks);
    const Clock::time_point began = Clock::now();
    if (to == DType::kPacked) {
      copy_stored(from, begin, end, buffer.memory.get());
    } else {
      convert_elements(from, begin, end, to, buffer.memory.get());
    }
    times.reading += seconds_since(began);
    times.bytes += bytes;
    if (as_stored) buffer.hash(bytes, blocks);
    if (times.copying_rate == 0 && bytes >= kMeasuredCopy) {
      times.copying_rate = measured_copy(device, buffer.memory.get(), bytes);
    } else {
      backend_->upload(device, buffer.memory.get(), bytes, *stream_);
    }
    buffer.uploaded->record(*stream_);
  }

  // Rows [begin, end) of a matrix in a format. data, scales: where they go.
  void send_rows(const StoredMatrix& from, int64_t begin, int64_t end, const WeightFormat& to,
                 std::byte* data, std::byte* scales, Checkpoint::Times& times) {
    StagingBuffer& buffer = next_buffer();
    const auto rows = static_cast<size_t>(end - begin);
    const size_t data_bytes = rows * static_cast<size_t>(to.row_bytes(from.K));
    const size_t scale_bytes = rows * static_cast<size_t>(to.row_scales(from.K));
    const Clock::time_point began = Clock::now();
    std::byte* const packed_scales = buffer.memory.get() + data_bytes;
    convert_matrix(from, begin, end, to, buffer.memory.get(), packed_scales);
    times.reading += seconds_since(began);
    times.bytes += data_bytes + scale_bytes;
    backend_->upload(data, buffer.memory.get(), data_bytes, *stream_);
    if (scale_bytes > 0) backend_->upload(scales, packed_scales, scale_bytes, *stream_);
    buffer.uploaded->record(*stream_);
  }

  // Rows [begin, end) of a matrix to a part of each column and of each group's scales. data,
  // scales: where the first ones go, of a matrix with so many outputs.
  void transpose_rows(const StoredMatrix& from, int64_t begin, int64_t end, const WeightFormat& to,
                      std::byte* data, std::byte* scales, int64_t outputs,
                      Checkpoint::Times& times) {
    StagingBuffer &read = next_buffer(), &transposed = next_buffer();
    const Clock::time_point began = Clock::now();
    const int64_t rows = end - begin, groups = to.groups(from.K);
    const int64_t data_bytes = rows * to.row_bytes(from.K);
    std::byte* const read_scales = read.memory.get() + data_bytes;
    std::byte* const transposed_scales = transposed.memory.get() + data_bytes;
    convert_matrix(from, begin, end, to, read.memory.get(), read_scales);
    to.transpose(read.memory.get(), read_scales, rows, from.K, transposed.memory.get(),
                 transposed_scales);
    times.reading += seconds_since(began);
    times.bytes += static_cast<size_t>(data_bytes + rows * to.row_scales(from.K));
    const auto send_parts = [&](std::byte* device, int64_t step, const std::byte* host,
                                int64_t bytes, int64_t parts) {
      for (int64_t i = 0; i < parts && bytes > 0; ++i, device += step, host += bytes) {
        backend_->upload(device, host, static_cast<size_t>(bytes), *stream_);
      }
    };
    send_parts(data, to.column_bytes(outputs), transposed.memory.get(), to.column_bytes(rows),
               groups * to.group);
    send_parts(scales, outputs * to.group_scale, transposed_scales, rows * to.group_scale, groups);
    transposed.uploaded->record(*stream_);
  }

  struct StagingBuffer {
    StagingBuffer(Backend& backend, size_t bytes)
        : memory(backend.allocate_host(bytes)), uploaded(backend.make_event()) {}
    // Waits until the memory may be written again.
    void wait() {
      uploaded->wait();
      if (hashed.valid()) hashed.get();
    }
    // Hashes what is in the memory, concurrently with the copies.
    void hash(size_t bytes, std::span<Hash128> blocks) {
      const std::span content(memory.get(), bytes);
      if (blocks.empty()) return;
      if (bytes < kWorthAThread) return hash_blocks(content, blocks);
      hashed = std::async(std::launch::async, [=] { hash_blocks(content, blocks); });
    }

    HostMemory memory;
    std::unique_ptr<Event> uploaded;  // reached when what was in the memory is on the device
    std::future<void> hashed;         // of what is in the memory; before that goes
  };

  // The one that was filled first, once it may be written again.
  StagingBuffer& next_buffer() {
    StagingBuffer& buffer = buffers_[turn_];
    turn_ = (turn_ + 1) % buffers_.size();
    buffer.wait();
    return buffer;
  }

  // Bytes a second, with nothing else running.
  double measured_copy(std::byte* device, const std::byte* host, size_t bytes) {
    stream_->wait();
    const Clock::time_point began = Clock::now();
    backend_->upload(device, host, bytes, *stream_);
    stream_->wait();
    return static_cast<double>(bytes) / seconds_since(began);
  }

  Backend* backend_;
  std::unique_ptr<Stream> stream_;
  std::array<StagingBuffer, 3> buffers_;
  size_t turn_ = 0;
};

}  // namespace

void Checkpoint::take_fingerprint() {
  for (auto& [name, tensor] : tensors_) {  // those that loaders computed with, and did not copy
    if (tensor.used) hash_whole(tensor.view, hashes_);
  }
  std::vector<std::string> texts = hashes_.lines();
  if (random_) texts.push_back(fmt::format("random weights of seed {}", seed_));
  texts.push_back(config_.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  fingerprint_ = fingerprint_of(texts);
}

void Checkpoint::finish(const Progress& progress) {
  check_all_used();
  if (copying_) {
    make_copies(progress);
    take_fingerprint();
  }
  copies_.clear();
}

// Bytes of the buffer that the largest piece of a copy takes.
size_t Checkpoint::Copy::piece_bytes() const {
  if (backend == nullptr) return 0;
  if (format == nullptr) {
    return static_cast<size_t>(std::min(from.count(), kStageElements)) * element_bytes(from, to);
  }
  const int64_t rows = std::min(rows_of_piece(matrix, *format), from.rows());
  return static_cast<size_t>(rows * (format->row_bytes(matrix.K) + format->row_scales(matrix.K)));
}

void Checkpoint::make_copies(const Progress& progress) {
  // In the order of the files, which is the order disks are fast in.
  std::ranges::stable_sort(copies_, {}, [this](const Copy& copy) {
    const auto file =
        std::ranges::find(files_, copy.from.file, [](const auto& owned) { return owned.get(); });
    return std::pair(file - files_.begin(), copy.from.data);
  });
  uint64_t done = 0, total = 0;
  size_t largest = 0;
  for (const Copy& copy : copies_) {
    total += copy.from.bytes;
    largest = std::max(largest, copy.piece_bytes());
  }
  const auto report = [&](uint64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };
  report(0);

  const Clock::time_point began = Clock::now();
  std::unique_ptr<Stage> stage;
  for (const Copy& copy : copies_) {
    if (copy.backend == nullptr) {
      hash_mapped(copy.from, hashes_, times_, report);
      continue;
    }
    if (!stage || stage->backend() != copy.backend) {
      if (stage) stage->wait();
      stage = std::make_unique<Stage>(*copy.backend, largest);
    }
    if (copy.format != nullptr) {
      hash_whole(copy.matrix.values, hashes_);
      hash_whole(copy.matrix.scales, hashes_);
      auto* const data = static_cast<std::byte*>(copy.device);
      auto* const scales = static_cast<std::byte*>(copy.scales);
      if (copy.outputs > 0) {
        stage->transpose_matrix(copy.matrix, *copy.format, data, scales, copy.first, copy.outputs,
                                times_, report);
      } else {
        stage->send_matrix(copy.matrix, *copy.format, data, scales, times_, report);
      }
      continue;
    }
    const auto blocks = copy.from.generated ? std::span<Hash128>() : hashes_.add(copy.from);
    stage->send_tensor(copy.from, copy.to, static_cast<std::byte*>(copy.device), blocks, times_,
                       report);
  }
  if (stage) stage->wait();
  times_.seconds = seconds_since(began);
}

}  // namespace recurve
