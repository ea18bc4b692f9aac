#include "server/session/state_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/check.h"

namespace recurve {
namespace {

class ImageSource final : public StateSource, public StateParts {
 public:
  ImageSource(StateHeader header, StateImage image)
      : header_(std::move(header)), image_(std::move(image)) {}

  uint64_t bytes() override { return frame().bytes(header_.layout.bytes(header_.position)); }

  void read(uint64_t offset, std::span<char> to) override {
    for (const std::string_view part : all_parts()) {
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

  StateParts* parts() override { return this; }
  int64_t full_pages() const override {
    return header_.layout.grows() ? header_.position / kPageTokens : 0;
  }
  Group group(int64_t first, const PageGroupRef& before, uint64_t id) override {
    StateHeader header = header_;
    header.base = before;
    PageGroup made = page_group_of(header, image_, first, id);
    return {{.front = std::move(made.front), .data = std::move(made.pages)}, made.ref};
  }
  WrittenParts rest(const PageGroupRef& last) override {
    StateHeader header = header_;
    header.base = last;
    StateFrame frame = frame_of(header, image_);
    return {.front = std::move(frame.front),
            .back = std::move(frame.back),
            .data = written_parts(header, image_)};
  }

 private:
  // With the checksums of the state, which are reckoned when they are first wanted.
  const StateFrame& frame() {
    if (!frame_) frame_ = frame_of(header_, image_);
    return *frame_;
  }
  // All that is written, one after the other.
  std::vector<std::string_view> all_parts() {
    std::vector<std::string_view> parts = {frame().front};
    for (const std::string_view part : written_parts(header_, image_)) parts.push_back(part);
    parts.push_back(frame().back);
    return parts;
  }

  const StateHeader header_;
  const StateImage image_;
  std::optional<StateFrame> frame_;
};

ReadAt reader_of(std::string_view written) {
  return [written](uint64_t offset, std::span<std::byte> to) {
    std::memcpy(to.data(), written.data() + offset, to.size());
  };
}

struct ReadParts {
  StateHeader header;
  StateImage image;
};

// The pages of the image take at most so many bytes. read_group: null: it has all its pages.
ReadParts read_parts(std::string_view written, const StateHeader& wanted, uint64_t most_bytes,
                     const ReadGroup& read_group) {
  // First: a position that does not fit takes no memory.
  check_front(written, wanted, /*may_have_base=*/read_group != nullptr);
  const ReadAt read = reader_of(written);
  const int64_t position = read_state_header(written.size(), read).position;
  const auto pages = static_cast<uint64_t>(StateLayout::pages(position));
  if (wanted.layout.grows() && pages > most_bytes / wanted.layout.page_bytes()) {
    throw StateError(EndReason::kForeignState,
                     fmt::format("its {} tokens have {} pages, and it and its page groups only {} "
                                 "bytes",
                                 position, pages, most_bytes));
  }
  const NewImage made = make_image(wanted.layout, position);
  const ReadBase read_base = [&](const PageGroupRef& base, const StateRooms& rooms) {
    auto remaining = static_cast<int64_t>(rooms.size());
    for (PageGroupRef group = base; remaining > 0;) {
      const std::string bytes = read_group(group);
      group = read_page_group(bytes.size(), reader_of(bytes), group, rooms, &remaining);
    }
  };
  return {read_state(written.size(), read, wanted, made.rooms, read_group ? read_base : nullptr),
          made.image};
}

std::shared_ptr<const ReadyState> ready(ReadParts parts, const StateHeader& wanted) {
  StateHeader& header = parts.header;
  if (header.position < 1) {
    throw StateError(EndReason::kForeignState, "the state must have at least one token");
  }
  const auto state = std::make_shared<ImportedState>();
  state->at.position = header.position;
  state->at.pending = header.pending;
  state->adapter = header.adapter;
  state->tokens = std::move(header.tokens);
  state->tokens_first = header.tokens_first;
  state->tokens_before = header.tokens_before;
  header.history.resize(
      std::min(header.history.size(), TokenHistory::most_bytes(wanted.vocab) / 8));
  state->at.history = TokenHistory::of(std::move(header.history));
  state->at.image = std::move(parts.image);
  return state;
}

}  // namespace

TokenLog ImportedState::log(int64_t most) const {
  const bool known = !tokens.empty() || tokens_first > 0;
  return known ? TokenLog::continued(most, tokens_first, tokens_before, tokens)
               : TokenLog::unknown(most, at.position);
}

std::shared_ptr<StateSource> source_of(StateHeader header, StateImage image) {
  return std::make_shared<ImageSource>(std::move(header), std::move(image));
}

const Snapshot& snapshot_of(const InitialState& initial) {
  const auto* state = dynamic_cast<const ImportedState*>(initial.state.get());
  CHECK(state != nullptr);
  return state->at;
}

ReadState state_reader(StateHeader wanted) {
  return [wanted = std::move(wanted)](std::string_view written) {
    return ready(read_parts(written, wanted, written.size(), nullptr), wanted);
  };
}

ReadPagedState paged_state_reader(StateHeader wanted) {
  return [wanted = std::move(wanted)](std::string_view written, uint64_t all_bytes,
                                      const ReadGroup& read) {
    return ready(read_parts(written, wanted, all_bytes, read), wanted);
  };
}

JoinState state_joiner(StateHeader wanted) {
  return [wanted = std::move(wanted)](std::string_view written, uint64_t all_bytes,
                                      const ReadGroup& read) {
    ReadParts parts = read_parts(written, wanted, all_bytes, read);
    parts.header.layout = wanted.layout;
    return source_of(std::move(parts.header), std::move(parts.image));
  };
}

CheckFront front_checker(StateHeader wanted) {
  return [wanted = std::move(wanted)](std::string_view front) { check_front(front, wanted); };
}

}  // namespace recurve
