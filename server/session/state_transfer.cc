#include "server/session/state_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace recurve {
namespace {

class ImageSource final : public StateSource {
 public:
  ImageSource(StateHeader header, StateImage image)
      : header_(std::move(header)), image_(std::move(image)) {}

  uint64_t bytes() override { return frame().bytes(state().size()); }

  void read(uint64_t offset, std::span<char> to) override {
    const std::span<const std::byte> middle = state();
    for (const std::string_view part :
         {std::string_view(frame().front),
          std::string_view(reinterpret_cast<const char*>(middle.data()), middle.size()),
          std::string_view(frame().back)}) {
      if (offset >= part.size()) {
        offset -= part.size();
        continue;
      }
      const size_t count = std::min<size_t>(to.size(), part.size() - offset);
      std::memcpy(to.data(), part.data() + offset, count);
      to = to.subspan(count);
      offset = 0;
    }
  }

 private:
  std::span<const std::byte> state() const { return {image_.get(), header_.layout.bytes()}; }
  // With the checksums of the state, which are reckoned when they are first wanted.
  const StateFrame& frame() {
    if (!frame_) frame_ = frame_of(header_, state());
    return *frame_;
  }

  const StateHeader header_;
  const StateImage image_;
  std::optional<StateFrame> frame_;
};

StateRefused::Why why_of(StateError::Kind kind) {
  switch (kind) {
    case StateError::Kind::kOtherModel:
      return StateRefused::Why::kOtherModel;
    case StateError::Kind::kDamaged:
      return StateRefused::Why::kDamaged;
    default:
      return StateRefused::Why::kForeign;
  }
}

// Checksums say that it is what was written, and not that who wrote it meant well.
void check_ids(const StateHeader& header, int32_t vocab) {
  const auto refuse = [](const std::string& what) {
    throw StateRefused(StateRefused::Why::kForeign, what);
  };
  if (header.position < 1) refuse("a state must have absorbed something");
  if (header.pending && (*header.pending < 0 || *header.pending >= vocab)) {
    refuse(fmt::format("its pending token must be in [0, {}), and is {}", vocab, *header.pending));
  }
  const auto known = static_cast<size_t>(vocab);
  for (size_t word = 0; word < header.history.size(); ++word) {
    const size_t first = 64 * word;
    const uint64_t above = first >= known        ? ~uint64_t{0}
                           : known - first >= 64 ? 0
                                                 : ~uint64_t{0} << (known - first);
    if ((header.history[word] & above) != 0) {
      refuse(fmt::format("its history has ids that are not in [0, {})", vocab));
    }
  }
}

}  // namespace

std::shared_ptr<StateSource> source_of(StateHeader header, StateImage image) {
  return std::make_shared<ImageSource>(std::move(header), std::move(image));
}

ReadState state_reader(StateHeader wanted, int32_t vocab) {
  return [wanted = std::move(wanted), vocab](std::string_view written) {
    const size_t bytes = wanted.layout.bytes();
    const std::shared_ptr<std::byte[]> image(new std::byte[bytes]);
    const auto read = [&](uint64_t offset, std::span<std::byte> to) {
      std::memcpy(to.data(), written.data() + offset, to.size());
    };
    const auto state = std::make_shared<ImportedState>();
    try {
      StateHeader header = read_state(written.size(), read, wanted, {image.get(), bytes});
      check_ids(header, vocab);
      state->at.position = header.position;
      state->at.pending = header.pending;
      header.history.resize(std::min(header.history.size(), TokenHistory::most_bytes(vocab) / 8));
      state->at.history = TokenHistory::of(std::move(header.history));
    } catch (const StateError& error) {
      throw StateRefused(why_of(error.kind()), error.what());
    }
    state->at.image = StateImage(image, image.get());
    return state;
  };
}

}  // namespace recurve
