// The copies of Checkpoint::finish(): from the files, through two buffers on the host, to memory of
// a backend.
#include <algorithm>
#include <array>

#include "kernels/backend.h"
#include "model/weights/checkpoint.h"
#include "model/weights/convert.h"

namespace recurve {
namespace {

constexpr int64_t kStageElements = 2 << 20;  // 4 or 8 MiB a buffer

// While one buffer is on its way to the device, the other is filled. Allocated at first use.
class Stage {
 public:
  explicit Stage(Backend& backend) : backend_(&backend), stream_(backend.make_stream()) {}
  ~Stage() {
    try {
      stream_->wait();  // the device may still be reading the buffers
    } catch (...) {     // only reached while another error is on its way
    }
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  Backend* backend() const { return backend_; }
  void wait() { stream_->wait(); }

  // Elements [begin, end) of the tensor, at most kStageElements. device: where they go.
  void send(const TensorView& from, int64_t begin, int64_t end, DType to, std::byte* device) {
    std::vector<std::byte>& buffer = buffers_[turn_];
    turn_ = 1 - turn_;
    const size_t bytes = static_cast<size_t>(end - begin) * size_of(to);
    buffer.resize(std::max(buffer.size(), bytes));
    convert_elements(from, begin, end, to, buffer.data());
    stream_->wait();  // the other buffer has left
    backend_->upload(device, buffer.data(), bytes, *stream_);
  }

 private:
  Backend* backend_;
  std::array<std::vector<std::byte>, 2> buffers_;
  size_t turn_ = 0;
  std::unique_ptr<Stream> stream_;
};

}  // namespace

void Checkpoint::finish(const Progress& progress) {
  check_all_used();
  // In the order of the files, which is the order disks are fast in.
  std::ranges::stable_sort(copies_, {}, [this](const Copy& copy) {
    const auto file =
        std::ranges::find(files_, copy.from.file, [](const auto& owned) { return owned.get(); });
    return std::pair(file - files_.begin(), copy.from.data);
  });
  uint64_t done = 0, total = 0;
  for (const Copy& copy : copies_) total += copy.from.bytes;
  if (progress) progress(done, total);

  std::unique_ptr<Stage> stage;
  for (const Copy& copy : copies_) {
    if (!stage || stage->backend() != copy.backend) {
      if (stage) stage->wait();
      stage = std::make_unique<Stage>(*copy.backend);
    }
    const int64_t count = copy.from.count();
    for (int64_t begin = 0; begin < count; begin += kStageElements) {
      const int64_t end = std::min(begin + kStageElements, count);
      auto* device =
          static_cast<std::byte*>(copy.device) + static_cast<size_t>(begin) * size_of(copy.to);
      stage->send(copy.from, begin, end, copy.to, device);
      done += static_cast<uint64_t>(end - begin) * size_of(copy.from.type);
      if (progress) progress(done, total);
    }
  }
  if (stage) stage->wait();
  copies_.clear();
}

}  // namespace recurve
