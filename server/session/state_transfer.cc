#include "server/session/state_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace recurve {
namespace {

class ImageSource final : public StateSource {
 public:
  ImageSource(StateHeader header, StateImage image)
      : header_(std::move(header)), image_(std::move(image)) {}

  uint64_t bytes() override { return frame().bytes(header_.layout.bytes(header_.position)); }

  void read(uint64_t offset, std::span<char> to) override {
    for (const std::string_view part : parts()) {
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
  // With the checksums of the state, which are reckoned when they are first wanted.
  const StateFrame& frame() {
    if (!frame_) frame_ = frame_of(header_, image_);
    return *frame_;
  }
  // All that is written, one after the other.
  std::vector<std::string_view> parts() {
    std::vector<std::string_view> parts = {frame().front};
    for (const std::string_view part : written_parts(header_, image_)) parts.push_back(part);
    parts.push_back(frame().back);
    return parts;
  }

  const StateHeader header_;
  const StateImage image_;
  std::optional<StateFrame> frame_;
};

}  // namespace

std::shared_ptr<StateSource> source_of(StateHeader header, StateImage image) {
  return std::make_shared<ImageSource>(std::move(header), std::move(image));
}

ReadState state_reader(StateHeader wanted) {
  return [wanted = std::move(wanted)](std::string_view written) {
    const auto read = [&](uint64_t offset, std::span<std::byte> to) {
      std::memcpy(to.data(), written.data() + offset, to.size());
    };
    check_front(written, wanted);  // first: a position that does not fit takes no memory
    const NewImage made =
        make_image(wanted.layout, read_state_header(written.size(), read).position);
    const auto state = std::make_shared<ImportedState>();
    StateHeader header = read_state(written.size(), read, wanted, made.rooms);
    if (header.position < 1) {
      throw StateError(EndReason::kForeignState, "the state must have at least one token");
    }
    state->at.position = header.position;
    state->at.pending = header.pending;
    state->tokens = std::move(header.tokens);
    header.history.resize(
        std::min(header.history.size(), TokenHistory::most_bytes(wanted.vocab) / 8));
    state->at.history = TokenHistory::of(std::move(header.history));
    state->at.image = made.image;
    return state;
  };
}

CheckFront front_checker(StateHeader wanted) {
  return [wanted = std::move(wanted)](std::string_view front) { check_front(front, wanted); };
}

}  // namespace recurve
